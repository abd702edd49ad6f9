"""The moving part of a chain: network, optimizer and data on one device, and the step that joins them.

It has phases. The warm start, where there is one, is SGD or Adam on the same target; then the recipe's sampler (or
SGD) takes over. Each phase has one optimizer and one step, which on CUDA is recorded once and replayed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atmc.data import Batches
from atmc.engine.batches import HostBatches
from atmc.engine.compiled_loss import BatchLoss
from atmc.engine.cuda_graph import GraphStep
from atmc.engine.device_schedule import DeviceSchedule
from atmc.engine.gradient_statistics import change_masses, look, masses, set_thermostats
from atmc.engine.optimizer import build_optimizer, common_mass
from atmc.engine.optimizer_state import new_adam, new_sgd, optimizer_state, restore_optimizer_
from atmc.engine.precision import precision_for
from atmc.engine.processes import World
from atmc.engine.schedule import Schedule
from atmc.engine.step import Feed, Step
from atmc.nn.scale_output import values_and_scales
from atmc.recipe.build import build_likelihood, build_prior, chain_seed
from atmc.recipe.settings import Recipe
from atmc.samplers import Sampler, noise_friction, noise_rows
from atmc.storage.state_packing import cloned
from atmc.target import Potential


class DeviceLoop:
    """Makes the steps of chain `number`; `done` of them are enqueued."""

    def __init__(
        self,
        number: int,
        recipe: Recipe,
        schedule: Schedule,
        model: nn.Module,
        feed: Batches,
        device: torch.device,
        world: World,
        window: int,
        rule: Any = None,
        likelihood: Any = None,
    ) -> None:
        self.number, self.recipe, self.schedule, self.device, self.world = number, recipe, schedule, device, world
        self.model = model.to(device)
        if (recipe.sampler.name == "sgd" and not recipe.model.only) or recipe.model.name != "custom":
            self.model.train()  # a user's network is sampled in the modes it has: its BatchNorm may be frozen
        compiled = recipe.run.compile and device.type == "cuda"
        # What is sampled. Examples were looked at before the run began, and a step must not wait for the device.
        self.potential = Potential(
            self.model,
            feed.num_data,
            build_prior(recipe, self.model, rule),
            build_likelihood(recipe, likelihood),
            improper_ok=True,
            validate=False,
        )
        self.loss = BatchLoss(self.potential, precision_for(recipe, self.model).autocast, compiled)
        # A recorded step reads the host's batches from a fixed address; on a CPU every kind is simply asked.
        self.feed: Feed = feed if feed.capturable or device.type == "cpu" else HostBatches(feed)
        self.clock = DeviceSchedule(schedule, device)
        self.losses = torch.zeros(window, device=device)  # of the last steps: that of step t at t mod window
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.optimizer: torch.optim.Optimizer | None = None
        self.warming = False
        self.fresh = False  # whether the sampler has yet to look around and make its first step
        self.masses: Any = None  # one for each parameter, where the recipe has them measured
        self.done = 0
        self._step: Step = None  # type: ignore[assignment]  # made by `begin_phase`
        self._run: Any = None
        self._marks: list[Any] = []

    def start(self, step: int = 0) -> None:
        """Make the optimizer of the phase that `step` is in, and get ready to make that step."""
        self.done = step
        self.fresh = True
        self.begin_phase()
        self.clock.set(step, self.clock.scale)
        self.synchronize()  # all that was made so far was made on another stream
        self.on_stream(lambda: self.feed.start(step))

    def _late_lr(self, optimizer: Any, *_: Any) -> None:
        """The step size of what comes late in the warm start: none in its first half."""
        now = self.clock.step >= self.schedule.warm_steps // 2
        optimizer.param_groups[1]["lr"].copy_(self.clock.lr * now)

    def begin_phase(self) -> None:
        """Make the optimizer and the step for where the chain is: SGD in the warm start, then the recipe's own."""
        named: list[tuple[str, Tensor]] = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.warming = self.done < self.schedule.warm_steps
        if self.warming:
            plan, momentum = self.recipe.schedule, self.recipe.schedule.warm_start_momentum
            if plan.warm_start_optimizer == "adam":
                values, late = values_and_scales(self.model)
                self.optimizer = new_adam(values, self.clock.lr, momentum, late)
                if late:
                    self.optimizer.register_step_pre_hook(self._late_lr)
            else:
                self.optimizer = new_sgd(named, self.clock.lr, momentum, 0.0, False)
        else:
            seed = chain_seed(self.recipe.seed, self.number, "noise")
            lr, temperature = self.clock.lr, self.clock.temperature
            self.optimizer = build_optimizer(self.recipe, named, lr, temperature, seed, self.masses)
        if self._step is not None and self._step.exchange is not None:
            self._step.exchange.close()
        self._step = Step(
            self.potential,
            self.optimizer,
            self.feed,
            self.clock,
            self.loss,
            self.losses,
            sampling=not self.warming and self.recipe.sampler.name != "sgd",
            world=self.world,
        )
        self._run = None

    def _look_around(self) -> None:
        """Measure the gradient where the sampler begins, and begin again with masses and thermostats from it."""
        section = self.recipe.sampler
        if self.warming or section.name == "sgd" or not (section.thermostat_from_noise or section.mass_from != "none"):
            return
        self.feed.start(self.done)
        found = look(self._step, self.done, section.look_batches)
        self.masses = masses(found, section, common_mass(section))
        self.begin_phase()
        assert self.optimizer is not None
        if section.thermostat_from_noise:
            temperature = self.clock.host_temperature(self.done)
            set_thermostats(self.optimizer, self._step.params, found, temperature, self.clock.host_lr(self.done))
        self.feed.start(self.done)

    def look_again(self) -> None:
        """Measure masses once more, where the recipe says so; the step is recorded anew.

        Nothing of it depends on the masses before, so a chain that is resumed here finds the same.
        """
        if self.done not in self.schedule.look_again or self.fresh or not isinstance(self.optimizer, Sampler):
            return
        self.on_stream(self._look_again)
        self._run = None

    def _look_again(self) -> None:
        assert isinstance(self.optimizer, Sampler)
        section = self.recipe.sampler
        self.feed.start(self.done)
        self.masses = masses(look(self._step, self.done, section.look_batches), section, common_mass(section))
        assert self.masses is not None
        change_masses(self.optimizer, self.masses)
        self.feed.start(self.done)

    def begin_sampling(self) -> None:
        """The recipe's sampler (or SGD) is about to make its first step."""

    def ready(self) -> None:
        """Record the step where there is a GPU, once per phase."""
        if self._run is not None:
            return
        if self.fresh:
            self.fresh = False
            self.on_stream(self._look_around)
            if not self.warming:
                self.on_stream(self.begin_sampling)
        if self.stream is None:
            self._run = self._step
        else:
            self.on_stream(lambda: self.feed.ensure(self.done))
            with torch.cuda.stream(self.stream):
                recordable = self._compile()
            self.synchronize()
            if recordable:
                self._run = GraphStep(self._step, self.stream, self._snapshot, self._put_back)
            else:
                self._run = self._step

    def _compile(self) -> bool:
        """On the batch of the next step, which is only looked at; returns whether the step can be recorded."""
        x, y = self.feed.batch(self.clock.step)
        weights = self.feed.weights
        if not self._step.by_example:
            self.loss.compile(x, y, self._step.params, weights)
        return self.loss.recordable(x, y, self._step.params, weights)

    def _snapshot(self) -> Any:
        assert self.optimizer is not None
        return cloned(self.changing()), optimizer_state(self.optimizer), self.losses.clone(), cloned(self.feed.scores)

    def _put_back(self, saved: Any) -> None:
        assert self.optimizer is not None
        weights, optimizer, losses, scores = saved
        self.set_weights(weights)
        restore_optimizer_(self.optimizer, optimizer)
        self.losses.copy_(losses)
        if self.feed.scores is not None:
            self.feed.scores.copy_(scores)
        self.clock.set(self.done, self.clock.scale)

    def enqueue(self, count: int) -> None:
        """Make `count` steps: on a CPU now, on CUDA as soon as the device gets there."""
        self.ready()
        self.on_stream(lambda: self._enqueue(count))

    def _enqueue(self, count: int) -> None:
        self.feed.ensure(self.done, count)
        for number in range(self.done, self.done + count):
            if isinstance(self.feed, HostBatches):
                self.feed.fetch(number)
            self._run()
            self._learn_noise(number + 1)
        self.done += count
        if self.stream is not None:
            # Never more than two stretches ahead: a signal or a divergence must not wait for a long queue.
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record()
            self._marks.append(mark)
            if len(self._marks) > 2:
                self._marks.pop(0).synchronize()

    def _learn_noise(self, done: int) -> None:
        """What a recorded step of a sampler with `noise_rank` cannot do by itself; others do it themselves."""
        sampler = self.optimizer
        if not isinstance(self._run, GraphStep) or not isinstance(sampler, Sampler) or not sampler.noise_rank:
            return
        steps = done - self.schedule.warm_steps
        if steps % noise_rows.EVERY == 0:
            noise_friction.update(sampler, steps)

    def changing(self) -> dict[str, Tensor]:
        """The tensors of the network that a run may change: all of them, or of a part of a network what is sampled.

        BatchNorm in training mode, which SGD may have, changes its buffers; where sampling is refused it cannot be.
        """
        own = dict(self.model.state_dict())
        sampled = {name for name, p in self.model.named_parameters() if p.requires_grad}
        whole = len(sampled) == len(list(self.model.named_parameters()))
        if whole or (self.recipe.sampler.name == "sgd" and not self.recipe.model.only):
            return own
        return {name: tensor for name, tensor in own.items() if name in sampled}

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put weights (and buffers) in place, into the memory that a recorded step reads."""
        own = self.changing()
        if own.keys() != weights.keys():
            odd = sorted(own.keys() ^ weights.keys())
            raise ValueError(f"tensors differ: {', '.join(odd[:4])}")
        for name, tensor in own.items():
            if tensor.shape != weights[name].shape:
                raise ValueError(f"{name} has shape {list(weights[name].shape)}, not {list(tensor.shape)}")
            tensor.copy_(weights[name])

    def on_stream(self, work: Callable[[], None]) -> None:
        """Do something in the order of the chain's own stream, where it has one."""
        if self.stream is None:
            work()
            return
        with torch.cuda.stream(self.stream):
            work()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.stream is not None:
            torch.cuda.synchronize(self.device)
