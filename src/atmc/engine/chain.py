"""One chain: its motor, what was learned of it so far, and all that exact continuation needs.

This knows nothing of files: `advance` enqueues steps, `settle` reads what has come back and says whether the chain
diverged, `state` and `load` are the contents of a checkpoint. `runner.py` decides when.
"""

import copy
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atmc.common.errors import RunError
from atmc.data import Batches
from atmc.engine.device_loop import DeviceLoop
from atmc.engine.divergence_guard import Divergence, Guard
from atmc.engine.guessing import guess
from atmc.engine.loss_log import Observation, observe
from atmc.engine.noise_reading import READINGS, NoiseReader
from atmc.engine.optimizer_state import optimizer_state, restore_optimizer_
from atmc.engine.processes import World
from atmc.engine.run_data import RunData
from atmc.engine.sample_predictions import Evaluator
from atmc.engine.schedule import Schedule
from atmc.engine.step_stability import StepStability
from atmc.recipe.settings import Recipe
from atmc.samplers import Sampler
from atmc.storage.state_packing import all_finite, pack, unpack

AHEAD = 64  # steps enqueued at a time; the device is at most two such stretches behind the host


def log_steps(recipe: Recipe, schedule: Schedule) -> int:
    """How many steps one row of metrics sums up: an epoch's, but of a long run with tiny epochs a thousandth."""
    if recipe.run.log_steps:
        return recipe.run.log_steps
    return max(1, min(400, max(round(schedule.steps_per_epoch), schedule.steps // 1000)))


class Chain(DeviceLoop):
    """Chain `number` of a run. Call `start` or `load` before anything else.

    Where a `leader` is given, the curvature that it has measured serves this chain too.
    """

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
        likelihood: Any = None,
        leader: "Chain | None" = None,
    ) -> None:
        twin = copy.deepcopy(model)  # before the network is moved and compiled
        super().__init__(
            number, recipe, schedule, model, feed, device, world, log_steps(recipe, schedule), rule, likelihood
        )
        splits = data.evaluate if world.writes else {}
        batch, workers = recipe.run.evaluate_batch, recipe.data.workers
        likelihood = self.potential.likelihood
        self.guess = guess(likelihood, data.train.labels, data.classes)
        self.evaluator = Evaluator(twin, likelihood, splits, device, batch, workers, probe=data.train)
        self.guard = Guard(recipe.run.explode, self.guess.loss)
        self.seen = 0  # steps observed
        self.rollbacks = 0
        self.leader = leader
        largest = float(schedule.lr[schedule.warm_steps :].max())
        self.stability = StepStability(recipe.sampler, largest, feed.num_data)
        self.seconds = 0.0
        serves = NoiseReader.serves(recipe, feed)
        self.reader = NoiseReader(recipe, schedule, feed, number) if serves else None
        self.window: list[float] = []
        self.noise: list[float] = []  # temperatures along the gradient noise that belong to the window
        self._untimed = 0  # losses of the window that came with a checkpoint: their steps took no time of this session
        self.rows: list[dict[str, Any]] = []
        self._pending: list[Observation] = []
        self._since = time.monotonic()
        self._active = 0.0

    def start(self, step: int = 0) -> None:
        """Begin at a step, with the network as it is."""
        super().start(step)
        self.seen = step

    # -- moving ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.done >= self.schedule.steps

    def begin_sampling(self) -> None:
        """Look, once a run, how curved the potential is here; a step size far beyond that is said in a row."""
        mine = self.stability
        if mine.curvature is not None or not self.world.writes:
            return
        if self.leader is not None and self.leader.stability.curvature is not None:
            mine.curvature = self.leader.stability.curvature
            return
        mine.measure(self.potential, self.optimizer, self.evaluator)
        if row := mine.complaint(self.optimizer):
            self.rows.append({"step": self.done, **row})

    @property
    def overshoot(self) -> float:
        """How far the largest step overshoots now, 1 being the edge of stability; NaN where that is not known."""
        return self.stability.overshoot(self.optimizer, self.clock.scale)

    def advance(self, most: int = AHEAD) -> None:
        """Enqueue up to `most` steps, not beyond the next moment that needs the host (a log, a sample, a phase)."""
        if self.done == self.schedule.warm_steps and self.warming:
            self.on_stream(self._observe)
            self.synchronize()
            self.fresh = True
            self.begin_phase()
        self.look_again()
        capacity = len(self.losses)
        stop = min(self.schedule.next_stop(self.done), (self.done // capacity + 1) * capacity)
        if self.reader is not None:
            stop = min(stop, (self.done // self.reader.every + 1) * self.reader.every)
        ahead = getattr(self.feed, "most_ahead", int(self.schedule.steps_per_epoch))
        count = min(most, stop - self.done, most if ahead is None else max(1, ahead))
        self.enqueue(count)
        self._read_noise()
        if self.done % capacity == 0 or self.finished:
            self.on_stream(self._observe)

    def _read_noise(self) -> None:
        """The temperature along the gradient noise, at its stops; at T = 0 there is none."""
        reader = self.reader
        if reader is None or self.warming or self.done % reader.every:
            return
        if self.clock.host_temperature(self.done - 1) > 0.0:
            self.on_stream(lambda: reader.read(self._step, self.done))

    def _observe(self) -> None:
        if self.done > self.seen and self.optimizer is not None:
            noise = [] if self.reader is None else self.reader.take()
            self._pending.append(observe(self.losses, self.optimizer, self.seen, self.done - self.seen, noise))
            self.seen = self.done

    def settle(self) -> Divergence | None:
        """Take in every observation that has arrived; rows for the metrics file are put into `rows`."""
        while self._pending and (self._pending[0].ready or len(self._pending) > 2):
            if divergence := self._take(self._pending.pop(0)):
                return divergence
        return None

    def finish(self) -> Divergence | None:
        """Wait for all enqueued steps and take in what they lost. After this nothing about the chain is unknown."""
        self.on_stream(self._observe)
        while self._pending:
            if divergence := self._take(self._pending.pop(0)):
                return divergence
        if self.stream is not None:
            self.stream.synchronize()
        if not all_finite(list(self.model.state_dict().values())):
            return self.guard.divergence(self.done, "a weight is not finite")
        if skipped := self._skipped():
            return self.guard.divergence(self.done, skipped)
        return self.guard.suspect()

    def _skipped(self) -> str | None:
        """What the sampler has to say about steps it left out on the device, for a gradient that was not finite."""
        if isinstance(self.optimizer, Sampler):
            try:
                self.optimizer.check()
            except RuntimeError as error:
                return str(error)
        return None

    def _take(self, seen: Observation) -> Divergence | None:
        losses = seen.losses()
        divergence = self.guard.judge(losses, seen.first)
        if divergence is not None:
            self._pending.clear()
            return divergence
        self.window += losses
        self.noise += seen.noise()
        end = seen.first + seen.count
        if end % len(self.losses) == 0 or end == self.schedule.steps:
            self._row(end, seen.readings())
        return None

    def _row(self, end: int, readings: Mapping[str, float]) -> None:
        self.pause()
        spent, self._active = self._active, 0.0
        self.resume()
        noise: dict[str, float] = {}
        if self.noise:
            noise = {
                "noise_temperature": sum(self.noise) / len(self.noise),
                "noise_readings": READINGS * len(self.noise),
            }
        images = (len(self.window) - self._untimed) * self.recipe.data.batch_size
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
                **noise,
                "images_per_second": images / spent if spent > 0 else None,
                "seconds": self.seconds,
            }
        )
        self.window, self._untimed, self.noise = [], 0, []

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
        """The weights (and buffers) that change, as they are now, on the CPU. Only after a good `finish`."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self.changing().items()}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that exact continuation needs, as tensors and JSON. Only after `finish`."""
        assert self.optimizer is not None
        tensors: dict[str, Tensor] = {}
        values = {
            "model": pack(self.changing(), "model", tensors),
            "optimizer": pack(optimizer_state(self.optimizer), "optimizer", tensors),
            "predictive": pack(self.evaluator.state(), "predictive", tensors),
            "scores": pack(self.feed.scores, "scores", tensors),
            "warming": self.warming,
            "fresh": self.fresh,
            "lr_scale": self.clock.scale,
            "guard": self.guard.state(),
            "window": list(self.window),
            "noise": list(self.noise),
            "rollbacks": self.rollbacks,
            "curvature": self.stability.to_save(),
            "seconds": self.seconds,
        }
        return {name: t.to("cpu", copy=True) for name, t in tensors.items()}, values

    def load(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Continue from a state, on whatever device it was made. A recorded step stays valid."""
        self.synchronize()
        try:
            self.clock.scale = float(values["lr_scale"])
            optimizer = unpack(values["optimizer"], tensors)
            warming, fresh = bool(values["warming"]), bool(values["fresh"])
            if self.optimizer is None or warming != self.warming or fresh:
                self.done = step - 1 if warming else step  # in which phase, not where
                mass = optimizer["param_groups"][0].get("mass")
                self.masses = [_on(m, self.device) for m in mass] if isinstance(mass, list) else None
                self.begin_phase()
            assert self.optimizer is not None
            self._skipped()  # belongs to the steps that are being given up
            self.fresh = fresh
            self.set_weights(unpack(values["model"], tensors))
            restore_optimizer_(self.optimizer, optimizer)
            if self.feed.scores is not None:
                self.feed.scores.copy_(unpack(values["scores"], tensors))
            if self.schedule.look_again:
                self._run = None  # recorded with masses that may be others
            self.evaluator.load(unpack(values["predictive"], tensors))
            self.guard.load(values["guard"])
            self.window = [float(x) for x in values["window"]]
            self._untimed = len(self.window)
            self.noise = [float(x) for x in values.get("noise", [])]  # a checkpoint of an older version has none
            self.rollbacks = int(values["rollbacks"])
            if values.get("curvature") is not None:
                self.stability.curvature = float(values["curvature"])
            self.seconds = float(values["seconds"])
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise RunError(f"the checkpoint of step {step} does not fit this network and sampler: {error}") from error
        self.done = self.seen = step
        self.rows, self._pending = [], []
        if self.reader is not None:
            self.reader.take()  # of steps that are given up
        self.clock.set(step, self.clock.scale)
        self.on_stream(lambda: self.feed.start(step))
        self.synchronize()
        self._since, self._active = time.monotonic(), 0.0


def _on(mass: Any, device: torch.device) -> Any:
    return mass.to(device) if isinstance(mass, Tensor) else mass
