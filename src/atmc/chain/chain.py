"""One chain on one device: its network, its sampler, its place in the data, and what was learned of it so far.

This is the moving part and knows nothing of files: `advance` enqueues steps, `settle` reads what has come back and says
whether the chain diverged, `state` and `load` are everything that exact continuation needs. `runner.py` decides when.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atmc.chain.build import build_likelihood, build_optimizer, build_prior, chain_seed
from atmc.chain.capture import GraphStep
from atmc.chain.clock import Clock
from atmc.chain.evaluate import Evaluator
from atmc.chain.examples import RunData
from atmc.chain.feed import HandedOver
from atmc.chain.guard import Divergence, Guard
from atmc.chain.observe import Observation, observe
from atmc.chain.optim_state import new_sgd, optimizer_state, restore_optimizer_
from atmc.chain.pack import all_finite, cloned, pack, unpack
from atmc.chain.parallel import World
from atmc.chain.schedule import Schedule
from atmc.chain.settings import Recipe
from atmc.chain.step import Feed, Step
from atmc.data import Batches
from atmc.errors import RunError

AHEAD = 64  # steps enqueued at a time; the device is at most two such stretches behind the host


def log_steps(recipe: Recipe, schedule: Schedule) -> int:
    """How many steps one row of metrics sums up."""
    return recipe.run.log_steps or max(1, min(400, round(schedule.steps_per_epoch)))


class Chain:
    """Chain `number` of a run. Call `start` before anything else."""

    def __init__(
        self,
        number: int,
        recipe: Recipe,
        schedule: Schedule,
        data: RunData,
        model: nn.Module,
        feed: Batches,
        device: torch.device,
        world: World,
        rule: Any = None,
    ) -> None:
        self.number, self.recipe, self.schedule, self.device, self.world = number, recipe, schedule, device, world
        self.likelihood = build_likelihood(recipe)
        splits = data.evaluate if world.writes else {}
        self.evaluator = Evaluator(model, self.likelihood, splits, device, recipe.run.evaluate_batch)
        self.model = model.to(device)
        if recipe.sampler.name == "sgd" or recipe.model.name != "custom":
            self.model.train()  # a user's network is sampled in the modes it has: its BatchNorm may be frozen
        compile_blocks: Any = getattr(self.model, "compile_blocks", None)
        if recipe.run.compile and device.type == "cuda" and compile_blocks is not None:
            compile_blocks()
        self.prior = build_prior(recipe, self.model, rule)
        # A recorded step reads the host's batches from a fixed address; on a CPU every kind is simply asked.
        self.feed: Feed = feed if feed.capturable or device.type == "cpu" else HandedOver(feed)
        self.clock = Clock(schedule, device)
        self.guard = Guard(recipe.run.explode, data.classes)
        self.losses = torch.zeros(log_steps(recipe, schedule), device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.done = 0  # steps enqueued
        self.seen = 0  # steps observed
        self.rollbacks = 0
        self.seconds = 0.0
        self.window: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self._pending: list[Observation] = []
        self._marks: list[Any] = []
        self._since = time.monotonic()
        self._active = 0.0

    # -- beginning ---------------------------------------------------------------------------------------------------

    def start(self, step: int = 0) -> None:
        """Make the optimizer of the phase that `step` is in, and get ready to make that step."""
        self.done = self.seen = step
        self._begin_phase()
        self.clock.set(step, self.clock.scale)
        self._on_stream(lambda: self.feed.start(step))
        self._run: Any = None

    def _begin_phase(self) -> None:
        named: list[tuple[str, Tensor]] = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.warming = self.done < self.schedule.warm_steps
        if self.warming:
            momentum = self.recipe.schedule.warm_start_momentum
            self.optimizer: torch.optim.Optimizer = new_sgd(named, self.clock.lr, momentum, 0.0, False)
        else:
            seed = chain_seed(self.recipe.seed, self.number, "noise")
            self.optimizer = build_optimizer(self.recipe, named, self.clock.lr, self.clock.temperature, seed)
        ours = type(self.model).__module__.startswith("atmc.nn")
        half = self.recipe.run.precision == "bf16"
        self._step = Step(
            self.model,
            self.optimizer,
            self.feed,
            self.clock,
            self.likelihood,
            self.prior,
            self.losses,
            sampling=not self.warming and self.recipe.sampler.name != "sgd",
            world=self.world,
            # Our networks follow their input's precision; others are left to torch's own rules.
            autocast=torch.bfloat16 if half and not ours else None,
        )
        self._run = None

    def _ready(self) -> None:
        """Record the step where there is a GPU, once per phase."""
        if self._run is not None:
            return
        if self.stream is None:
            self._run = self._step
        else:
            self._on_stream(lambda: self.feed.ensure(self.done))
            torch.cuda.synchronize(self.device)
            self._run = GraphStep(self._step, self.stream, self._snapshot, self._put_back)

    def _snapshot(self) -> Any:
        return (
            cloned(dict(self.model.state_dict())),
            optimizer_state(self.optimizer),
            self.losses.clone(),
        )

    def _put_back(self, saved: Any) -> None:
        weights, optimizer, losses = saved
        self._set_weights(weights)
        restore_optimizer_(self.optimizer, optimizer)
        self.losses.copy_(losses)
        self.clock.set(self.done, self.clock.scale)

    # -- moving ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.done >= self.schedule.steps

    def advance(self, most: int = AHEAD) -> None:
        """Enqueue up to `most` steps, not beyond the next moment that needs the host (a log, a sample, a phase)."""
        if self.done == self.schedule.warm_steps and self.warming:
            self._on_stream(self._observe)
            self._begin_phase()
        self._ready()
        capacity = len(self.losses)
        stop = min(self.schedule.next_stop(self.done), (self.done // capacity + 1) * capacity)
        count = min(most, stop - self.done, max(1, int(self.schedule.steps_per_epoch)))
        self._on_stream(lambda: self._enqueue(count))
        if self.done % capacity == 0 or self.finished:
            self._on_stream(self._observe)

    def _enqueue(self, count: int) -> None:
        self.feed.ensure(self.done, count)
        for number in range(self.done, self.done + count):
            if isinstance(self.feed, HandedOver):
                self.feed.fetch(number)
            self._run()
        self.done += count
        if self.stream is not None:
            # Never more than two stretches ahead: a signal or a divergence must not wait for a long queue.
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record()
            self._marks.append(mark)
            if len(self._marks) > 2:
                self._marks.pop(0).synchronize()

    def _observe(self) -> None:
        if self.done > self.seen:
            self._pending.append(observe(self.losses, self.optimizer, self.seen, self.done - self.seen))
            self.seen = self.done

    def settle(self) -> Divergence | None:
        """Take in every observation that has arrived; rows for the metrics file are put into `rows`."""
        while self._pending and (self._pending[0].ready or len(self._pending) > 2):
            if divergence := self._take(self._pending.pop(0)):
                return divergence
        return None

    def finish(self) -> Divergence | None:
        """Wait for all enqueued steps and take in what they lost. After this nothing about the chain is unknown."""
        self._on_stream(self._observe)
        while self._pending:
            if divergence := self._take(self._pending.pop(0)):
                return divergence
        if self.stream is not None:
            self.stream.synchronize()
        if not all_finite(list(self.model.state_dict().values())):
            return Divergence(self.done, float("nan"), "a weight is not finite")
        return None

    def _take(self, seen: Observation) -> Divergence | None:
        losses = seen.losses()
        divergence = self.guard.judge(losses, seen.first)
        if divergence is not None:
            self._pending.clear()
            return divergence
        self.window += losses
        end = seen.first + seen.count
        if end % len(self.losses) == 0 or end == self.schedule.steps:
            self._row(end, seen.readings())
        return None

    def _row(self, end: int, readings: Mapping[str, float]) -> None:
        self.pause()
        spent, self._active = self._active, 0.0
        self.resume()
        images = len(self.window) * self.recipe.data.batch_size
        self.rows.append(
            {
                "event": "log",
                "chain": self.number,
                "step": end,
                "epoch": self.schedule.epoch(end),
                "cycle": self.schedule.cycle(end - 1),
                "phase": "warm" if end <= self.schedule.warm_steps else "main",
                "loss": sum(self.window) / len(self.window),
                "lr": self.clock.host_lr(end - 1),
                "temperature": self.clock.host_temperature(end - 1),
                **readings,
                "images_per_second": images / spent if spent > 0 else None,
                "seconds": self.seconds,
            }
        )
        self.window = []

    def pause(self) -> None:
        """From here to `resume` the host is busy with other things (evaluation, files): no time of the steps."""
        now = time.monotonic()
        self._active += now - self._since
        self.seconds += now - self._since
        self._since = now

    def resume(self) -> None:
        now = time.monotonic()
        self.seconds += now - self._since
        self._since = now

    # -- state -------------------------------------------------------------------------------------------------------

    def sample(self) -> dict[str, Tensor]:
        """The weights (and buffers) now, on the CPU. Only after `finish` has found nothing wrong."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self.model.state_dict().items()}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that exact continuation needs, as tensors and JSON. Only after `finish`."""
        tensors: dict[str, Tensor] = {}
        values = {
            "model": pack(dict(self.model.state_dict()), "model", tensors),
            "optimizer": pack(optimizer_state(self.optimizer), "optimizer", tensors),
            "predictive": pack(self.evaluator.state(), "predictive", tensors),
            "warming": self.warming,
            "lr_scale": self.clock.scale,
            "guard": self.guard.state(),
            "window": list(self.window),
            "rollbacks": self.rollbacks,
            "seconds": self.seconds,
        }
        return {name: t.to("cpu", copy=True) for name, t in tensors.items()}, values

    def load(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Continue from a state, on whatever device it was made. A recorded step stays valid."""
        try:
            self.clock.scale = float(values["lr_scale"])
            if not hasattr(self, "optimizer") or bool(values["warming"]) != self.warming:
                self.done = step if not values["warming"] else step - 1  # in which phase, not where
                self._begin_phase()
            self._set_weights(unpack(values["model"], tensors))
            restore_optimizer_(self.optimizer, unpack(values["optimizer"], tensors))
            if self.evaluator.batches:
                self.evaluator.load(unpack(values["predictive"], tensors))
            self.guard.load(values["guard"])
            self.window = [float(x) for x in values["window"]]
            self.rollbacks = int(values["rollbacks"])
            self.seconds = float(values["seconds"])
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise RunError(f"the checkpoint of step {step} does not fit this network and sampler: {error}") from error
        self.done = self.seen = step
        self.rows, self._pending = [], []
        self.clock.set(step, self.clock.scale)
        self._on_stream(lambda: self.feed.start(step))
        if self.stream is not None:
            torch.cuda.synchronize(self.device)
        self._since, self._active = time.monotonic(), 0.0

    @torch.no_grad()
    def _set_weights(self, weights: Mapping[str, Tensor]) -> None:
        own = self.model.state_dict()
        if own.keys() != weights.keys():
            odd = sorted(own.keys() ^ weights.keys())
            raise ValueError(f"tensors differ: {', '.join(odd[:4])}")
        for name, tensor in own.items():
            if tensor.shape != weights[name].shape:
                raise ValueError(f"{name} has shape {list(weights[name].shape)}, not {list(tensor.shape)}")
            tensor.copy_(weights[name])

    def _on_stream(self, work: Any) -> None:
        if self.stream is None:
            work()
            return
        with torch.cuda.stream(self.stream):
            work()
