"""Running a recipe: from a folder that may be empty to one that holds all its samples, through any number of stops.

`run` can be called again and again on the same folder; each call goes on exactly where the last one stopped, however it
stopped. The loop is a conversation between three parties that know nothing of each other: `Chain` moves on the device,
`ChainStore` keeps files, and `Runner` decides when one speaks to the other.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from atmc.chain.board import WithBoard
from atmc.chain.build import build_likelihood, build_model, chain_seed, start_weights
from atmc.chain.chain import AHEAD, Chain
from atmc.chain.examples import RunData, check_fits, load_data
from atmc.chain.feed import make_feed
from atmc.chain.keeper import Keeper
from atmc.chain.lock import RunLock
from atmc.chain.numerics import numerics
from atmc.chain.parallel import World, join, pick_device
from atmc.chain.prepare import prepare
from atmc.chain.progress import Progress, choose_progress
from atmc.chain.recipe_rules import check_recipe
from atmc.chain.rundir import chain_folders
from atmc.chain.schedule import make_schedule
from atmc.chain.settings import Recipe
from atmc.chain.store import ChainStore


@dataclass(frozen=True)
class RunResult:
    """How a call of `run` ended: `done`, `budget` (out of time) or `interrupted` (a signal)."""

    status: str
    path: Path
    samples: int
    steps: int
    seconds: float


def run(
    recipe: Recipe,
    out: str | Path,
    time_budget: float | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
    *,
    model: nn.Module | None = None,
    data: RunData | None = None,
    prior: Any = None,
) -> RunResult:
    """Run `recipe` in the folder `out`, or go on with it there.

    `time_budget` (seconds, of this call) ends it with a checkpoint. `progress` None says nothing. `model`, `data`
    and `prior` (a rule) stand in for those that the recipe names: for a network or tensors of the user's own.
    """
    began = time.monotonic()
    check_recipe(recipe)
    device = pick_device(recipe.run.device)
    world = join(recipe, device)
    folder = Path(out)
    with ExitStack() as stack:
        stack.callback(world.leave)
        if world.writes and world.rank == 0:
            stack.enter_context(RunLock(folder))
        stack.enter_context(numerics(recipe, device))
        teller = choose_progress() if progress == "auto" else progress or Progress()
        if recipe.run.tensorboard and world.writes:
            teller = WithBoard(teller, folder / "tensorboard")
        runner = Runner(recipe, folder, device, world, model, data, prior, teller)
        stack.callback(runner.close)
        with _signals(runner):
            status = runner.run(None if time_budget is None else began + time_budget)
    samples, steps = runner.totals()
    return RunResult(status, folder, samples, steps, time.monotonic() - began)


class Runner:
    """All chains of one process, and the decisions about them."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        device: torch.device,
        world: World,
        model: nn.Module | None,
        data: RunData | None,
        prior: Any,
        progress: Progress,
    ) -> None:
        self.recipe, self.world, self.stop_asked = recipe, world, False
        self.progress = progress if world.rank == 0 else Progress()
        data = data if data is not None else load_data(recipe)
        schedule = make_schedule(recipe, len(data.train))
        numbers = world.chains(recipe)
        first = model if model is not None else build_model(recipe, data.train.shape, data.classes, numbers[0])
        check_fits(first, data, recipe, build_likelihood(recipe))
        if world.rank == 0:
            network = {"class": f"{type(first).__module__}.{type(first).__qualname__}"}
            for note in prepare(folder, recipe, data, device, network).notes:
                self.progress.note(f"damaged: {note}")
        world.wait_for_all()
        feed = make_feed(recipe, data, device, world, chain_seed(recipe.seed, numbers[0], "order"))
        folders = chain_folders(folder, recipe)
        self.keepers: list[Keeper] = []
        for position, number in enumerate(numbers):
            if model is not None:
                own = start_weights(model, recipe, number)
            else:
                own = first if position == 0 else build_model(recipe, data.train.shape, data.classes, number)
            batches = feed if position == 0 else feed.with_seed(chain_seed(recipe.seed, number, "order"))
            chain = Chain(number, recipe, schedule, data, own, batches, device, world, prior)
            store = ChainStore.open(folders[number], number) if world.writes else None
            self.keepers.append(Keeper(chain, store, folders[number], self.progress))
        done = min(keeper.begin() for keeper in self.keepers)
        self.progress.begin(recipe.name, schedule, recipe.chains, done)
        for keeper in self.keepers:
            keeper.tell_notes()

    def run(self, deadline: float | None) -> str:
        """Until all chains are done, the deadline is near, or a signal came."""
        status = "done"
        every = self.recipe.run.checkpoint_minutes * 60
        last = time.monotonic()
        stretch = 1
        while active := [keeper for keeper in self.keepers if not keeper.done]:
            # The device is kept busy first; then the host looks at what has come back.
            began = time.monotonic()
            for keeper in active:
                keeper.chain.advance(stretch)
            for keeper in active:
                keeper.attend()
            now = time.monotonic()
            stretch = self._stretch(stretch, now - began)
            patience = 0.0 if deadline is None else deadline - self._closing_time()
            stop, out_of_time, due = self.world.agree(
                [self.stop_asked, deadline is not None and now >= patience, now - last >= every]
            )
            if stop or out_of_time:
                status = "interrupted" if stop else "budget"
                break
            if due:
                for keeper in active:
                    keeper.checkpoint()
                last = time.monotonic()
        for keeper in self.keepers:
            keeper.end(status)
        # A deadline that passed with the last step is no reason to call again.
        return "done" if all(keeper.done for keeper in self.keepers) else status

    def _stretch(self, before: int, took: float) -> int:
        """How many steps to enqueue before looking up again: about a fifth of a second's worth."""
        if self.world.data_size > 1:
            return 16  # the processes of one chain must look up at the same steps
        return max(1, min(AHEAD, before * 2 if took < 0.1 else before // 2 if took > 0.4 else before))

    def _closing_time(self) -> float:
        """What the last checkpoints need, from what earlier ones took."""
        return 1.5 * sum(keeper.slowest for keeper in self.keepers)

    def totals(self) -> tuple[int, int]:
        """Samples in the bank and steps made, of this process's chains."""
        return sum(keeper.samples for keeper in self.keepers), sum(keeper.chain.done for keeper in self.keepers)

    def close(self) -> None:
        self.progress.end()
        for keeper in self.keepers:
            close: Any = getattr(keeper.chain.feed, "close", None)
            if close is not None:
                close()


@contextmanager
def _signals(runner: Runner) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a checkpoint and a clean end; a second SIGINT does not wait for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: Any) -> None:
        if runner.stop_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        runner.stop_asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
