"""Running a recipe: from a folder that may be empty to one that holds all its samples, through any number of stops.

`run` can be called again and again on the same folder; each call goes on exactly where the last one stopped, however it
stopped. The loop is a conversation between three parties that know nothing of each other: `Chain` moves on the device,
`ChainStore` keeps files, and `Runner` decides when one speaks to the other.
"""

import copy
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atmc.common.atomic_files import refuse_foreign
from atmc.common.errors import InputError
from atmc.engine.batches import make_feed
from atmc.engine.chain import AHEAD, Chain
from atmc.engine.checkpointing import Checkpointer, GaveUpError
from atmc.engine.compiled_loss import NOT_HERE
from atmc.engine.open_run import made_elsewhere, prepare
from atmc.engine.optimizer import try_optimizer
from atmc.engine.processes import World, join, pick_device
from atmc.engine.progress import Progress, choose_progress
from atmc.engine.run_data import RunData, check_fits, check_length, load_data
from atmc.engine.run_outcome import end_together
from atmc.engine.schedule import make_schedule
from atmc.engine.tensorboard import WithBoard
from atmc.engine.torch_settings import numerics
from atmc.nn.parts import Tail
from atmc.nn.with_noise import WithNoise
from atmc.recipe.build import build_likelihood, build_model, chain_seed, start_weights
from atmc.recipe.settings import Recipe
from atmc.recipe.validation import check_recipe
from atmc.storage.chain_folder import ChainStore
from atmc.storage.lock import RunLock
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import NAMES, chain_folders

GAVE_UP = "gave_up"  # in a chain's manifest: how it diverged for good


@dataclass(frozen=True)
class RunResult:
    """How a call of `run` ended: `done`, `budget` (out of time) or `interrupted` (a signal).

    Samples and steps are those of all chains, also where other processes run them. Of several processes one `speaks`.
    """

    status: str
    path: Path
    samples: int
    steps: int
    seconds: float
    speaks: bool = True


def run(
    recipe: Recipe,
    out: str | Path,
    time_budget: float | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
    *,
    model: nn.Module | Sequence[nn.Module] | None = None,
    data: RunData | None = None,
    prior: Any = None,
    fixed: dict[str, Tensor] | None = None,
    pilots: Sequence[dict[str, Any]] = (),
    likelihood: Any = None,
) -> RunResult:
    """Run `recipe` in the folder `out`, or go on with it there.

    `time_budget` (seconds, of this call) ends it with a checkpoint. `progress` None says nothing. `model`, `data`
    and `prior` (a rule) stand in for those that the recipe names: for a network or tensors of the user's own. Of a
    sequence of networks chain k begins at the weights of the k-th. `pilots` are the runs that chose the recipe's
    temperature, to be kept with it. `fixed` are the tensors of that network that are not sampled, which the run keeps
    once.
    """
    began = time.monotonic()
    check_recipe(recipe)
    device = pick_device(recipe.run.device)
    world = join(recipe, device)
    folder = Path(out)
    if recipe.run.compile and device.type != "cuda" and model is None and world.rank == 0:
        warnings.warn(NOT_HERE, stacklevel=2)  # of a network that was handed over it may be a default: see the caller
    with ExitStack() as stack:
        stack.callback(world.leave)
        with world.together():
            if world.rank == 0:
                stack.enter_context(RunLock(folder))
                refuse_foreign(folder, NAMES)
            stack.enter_context(numerics(recipe, device))
            teller = choose_progress() if progress == "auto" else progress or Progress()
            if recipe.run.tensorboard and world.writes:
                teller = WithBoard(teller, folder / "tensorboard")
            runner = Runner(recipe, folder, device, world, model, data, prior, teller, fixed, pilots, likelihood)
            stack.callback(runner.close)
        deadline = None if time_budget is None else began + time_budget
        with _signals(runner):
            status, samples, steps = end_together(world, runner, deadline)
    return RunResult(status, folder, samples, steps, time.monotonic() - began, world.rank == 0)


class Runner:
    """All chains of one process, and the decisions about them."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        device: torch.device,
        world: World,
        model: nn.Module | Sequence[nn.Module] | None,
        data: RunData | None,
        prior: Any,
        progress: Progress,
        fixed: dict[str, Tensor] | None = None,
        pilots: Sequence[dict[str, Any]] = (),
        likelihood: Any = None,
    ) -> None:
        self.recipe, self.world, self.folder, self.stop_asked = recipe, world, folder, False
        self.progress = progress if world.rank == 0 else Progress()
        self.given_up: dict[int, str] = {}  # chains that diverged for good, and how
        self.keepers: list[Checkpointer] = []
        data = data if data is not None else load_data(recipe)
        numbers = world.chains(recipe)
        if isinstance(model, Sequence):
            _check_networks(model, recipe.chains)
        given = model[numbers[0]] if isinstance(model, Sequence) else model
        first = given if given is not None else build_model(recipe, data.train.shape, data.classes, numbers[0])
        check_fits(first, data, recipe, build_likelihood(recipe, likelihood))
        check_length(recipe, len(data.train))
        self.schedule = make_schedule(recipe, len(data.train))  # only now: too large a batch would be blamed on it
        try_optimizer(recipe, first, device)
        feed = make_feed(recipe, data, first, device, world, chain_seed(recipe.seed, numbers[0], "order"))
        self.chains: list[Chain] = []
        for position, number in enumerate(numbers):
            if isinstance(model, Sequence):
                own = copy.deepcopy(model[number])
            elif model is not None:
                own = start_weights(model, recipe, number)
            else:
                own = first if position == 0 else build_model(recipe, data.train.shape, data.classes, number)
            batches = feed if position == 0 else feed.with_seed(chain_seed(recipe.seed, number, "order"))
            leader = self.chains[0] if self.chains else None
            self.chains.append(
                Chain(number, recipe, self.schedule, data, own, batches, device, world, prior, likelihood, leader)
            )
        # Only now, when nothing of the recipe can turn out to be wrong any more, does the folder become its run.
        if world.rank == 0:
            known = first.network if isinstance(first, WithNoise) else first
            kind = f"{type(known).__module__}.{type(known).__qualname__}"
            network = {"class": known.whole if isinstance(known, Tail) else kind}
            manifest = prepare(folder, recipe, data, device, network, fixed, pilots)
            for note in [*(f"damaged: {note}" for note in manifest.notes), *made_elsewhere(manifest)]:
                self.progress.note(note)

    def begin(self) -> None:
        """Every chain at its newest checkpoint, or at its start."""
        folders = chain_folders(self.folder, self.recipe)
        binding = Manifest.load(self.folder).values.get("binding")
        for chain in self.chains:
            store = ChainStore.open(folders[chain.number], chain.number, binding) if self.world.writes else None
            self.keepers.append(Checkpointer(chain, store, folders[chain.number], self.progress))
        done = min(self._begin(keeper) for keeper in self.keepers)
        self.progress.begin(self.recipe.name, self.schedule, self.recipe.chains, done)
        for keeper in self.keepers:
            keeper.tell_notes()

    def _begin(self, keeper: Checkpointer) -> int:
        """Begin, or go on with, one chain; one that gave up stays where it is until it may roll back more often."""
        store, number = keeper.store, keeper.chain.number
        said = None if store is None else store.manifest.values.get(GAVE_UP)
        done = keeper.begin()
        if keeper.chain.world.agree([said is not None])[0]:
            if keeper.chain.rollbacks >= self.recipe.run.max_rollbacks:
                self.given_up[number] = str(said)
            elif store is not None:
                del store.manifest.values[GAVE_UP]  # true with the next checkpoint
        return done

    def run(self, deadline: float | None) -> str:
        """Until all chains are done or have given up, the deadline is near, or a signal came."""
        status = "done"
        every = self.recipe.run.checkpoint_minutes * 60
        last = time.monotonic()
        stretch = 1
        while active := self._active():
            # The device is kept busy first; then the host looks at what has come back.
            began = time.monotonic()
            for keeper in active:
                keeper.chain.advance(stretch)
            for keeper in active:
                self._unless_it_gives_up(keeper, keeper.attend)
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
                for keeper in self._active():
                    self._unless_it_gives_up(keeper, keeper.checkpoint)
                last = time.monotonic()
        # A deadline that passed with the last step is no reason to call again.
        status = status if self._active() else "done"
        for keeper in self.keepers:
            if keeper.chain.number in self.given_up:
                self._write_down(keeper)
            else:
                keeper.end(status)
        return status

    def _active(self) -> list[Checkpointer]:
        return [k for k in self.keepers if not k.done and k.chain.number not in self.given_up]

    def _unless_it_gives_up(self, keeper: Checkpointer, work: Callable[[], None]) -> None:
        """Do something for a chain. If it diverges for good it is left out from here on, and the others go on."""
        try:
            work()
        except GaveUpError as error:
            self.given_up[keeper.chain.number] = str(error)
            self._write_down(keeper)
            if self._active():
                self.progress.note(str(error))

    def _write_down(self, keeper: Checkpointer) -> None:
        """That a chain has given up, so that the next call does not make the same steps again to find out the same."""
        if keeper.store is not None:
            keeper.store.manifest.values |= {"status": "diverged", GAVE_UP: self.given_up[keeper.chain.number]}
            keeper.store.manifest.commit()

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
        for chain in self.chains:
            close: Any = getattr(chain.feed, "close", None)
            if close is not None:
                close()


def _check_networks(models: Sequence[nn.Module], chains: int) -> None:
    """Refuse networks that are not one for each chain, or differ by more than their weights."""
    if len(models) != chains:
        raise InputError(f"{len(models)} networks for {chains} chains: each needs one to begin at")
    shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in models]
    for number, found in enumerate(shapes):
        if found != shapes[0]:
            raise InputError(f"network {number} has other tensors than network 0: all chains sample one network")


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
