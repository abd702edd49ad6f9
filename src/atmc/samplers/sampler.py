"""The base class of all samplers.

A subclass defines its hyper-parameters, its state, and how its thermostat sets noise and friction; this class checks
input, owns the flat state, chooses the backend, saves and restores, and reads temperatures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypedDict, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from atmc.samplers import backends, fused_native, fused_triton, noise_examples, noise_friction, noise_rows, state_saving
from atmc.samplers.checks import (
    check_changed_masses,
    check_group,
    check_hyperparameters,
    check_members,
    check_option,
    choose,
    dense_gradients,
    first_nonfinite,
    parameter_name,
    refuse_idle,
    refuse_unknown,
    warn_coarse,
    whole,
)
from atmc.samplers.flat_state import Shard, Slots, build_shard, view_like
from atmc.samplers.kinetic_energy import light_inertia, sample_momentum
from atmc.samplers.noise_kronecker import KroneckerNoise
from atmc.samplers.noise_temperature import Gradients
from atmc.samplers.random_stream import init_generator, stream_key
from atmc.samplers.readings import Readings, read

BACKENDS = ("single", "foreach", "fused")


class Options(TypedDict, total=False):
    """Keyword arguments that every sampler takes; `ATMC` says what they do."""

    seed: int
    integrator: Literal["leapfrog", "strang", "leapfrog-frozen", "strang-frozen"]
    backend: Literal["single", "foreach", "fused"] | None
    measure_every: int
    nonfinite: Literal["raise", "skip", "ignore"] | None
    noise_rank: int
    noise_kronecker: bool
    noise_examples: bool


class Sampler(Optimizer):
    """Base of the samplers; see `ATMC` for the arguments they share.

    One step is one gradient. `params`, groups and schedulers work as in `torch.optim`; the learning rate is the step
    size h, and the gradient must be that of the potential U (`atmc.Potential`), not of a mean loss.
    """

    # What recipes, checks and reports ask the class.
    has_momentum: ClassVar[bool] = False
    has_thermostat: ClassVar[bool] = False
    recipe_keys: ClassVar[tuple[str, ...]] = ()  # keys of a recipe's [sampler] that are arguments of this class alone

    slots: tuple[str, ...] = ("momentum",)
    shared_thermostat: bool = False
    adaptive: bool = False  # whether the thermostat takes away from the noise that is added
    saved: tuple[str, ...] = ("integrator", "measure_every", "nonfinite")  # options that a state carries along

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        seed: int = 0,
        integrator: str = "leapfrog",
        backend: str | None = None,
        measure_every: int = 10,
        nonfinite: str | None = None,
        noise_rank: int = 0,
        noise_kronecker: bool = False,
        noise_examples: bool = False,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown, Options.__annotations__)
        choose("backend", backend, (None, *BACKENDS))
        self.seed = whole("seed", seed)
        self.integrator: str = check_option("integrator", integrator)
        self.backend = backend
        self.measure_every: int = check_option("measure_every", measure_every)
        self.nonfinite: str | None = check_option("nonfinite", nonfinite)
        self.noise_rank = whole("noise_rank", noise_rank, least=0)
        for name, flag in (("noise_kronecker", noise_kronecker), ("noise_examples", noise_examples)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {flag!r}")
        self.noise_examples = noise_examples
        if noise_examples and self.noise_rank:
            raise ValueError("noise_examples is friction for all of the noise: leave noise_rank at 0 with it")
        if (self.noise_rank or noise_examples) and not self.has_momentum:
            key = "noise_rank" if self.noise_rank else "noise_examples"
            raise ValueError(f"{key} is for samplers with momentum, not for {type(self).__name__}")
        if self.noise_rank:
            self.slots = (*self.slots, *noise_rows.slots(self.noise_rank))
        if noise_kronecker and not self.noise_rank:
            raise ValueError(
                "noise_kronecker is for what noise_rank leaves out: set noise_rank as well, for example to 16"
            )
        self.noise_kronecker = noise_kronecker
        self._kronecker: KroneckerNoise | None = None
        self._key = stream_key(self.seed)
        self._calls = 0
        self._skipped: str | None = None
        self._shards: list[Shard] = []
        self._last_lr: list[Tensor] = []
        self._ready = False  # the groups given to the constructor are laid out together, not one by one
        super().__init__(params, defaults)
        self._build()
        self._ready = True

    @property
    def strang(self) -> bool:
        """Whether the momentum step is split in two halves, with a synchronised time between."""
        return self.integrator.startswith("strang")

    @property
    def corrected(self) -> bool:
        """Whether friction under a speed limit is corrected to second order."""
        return not self.integrator.endswith("frozen")

    # -- parameters and their state ------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as in any optimizer; the others keep their state."""
        super().add_param_group(param_group)
        try:
            number, group = len(self.param_groups) - 1, self.param_groups[-1]
            named = {f"reference_{key}": key for key in ("lr", "temperature")}
            follow = [key for key, source in named.items() if isinstance(v := group.get(key), str) and v == source]
            group |= dict.fromkeys(follow)
            light = "inertia" in group and group["inertia"] is None
            if light:
                group["inertia"] = 1.0
            refuse_idle(type(self), group, number, self.defaults, Options.__annotations__)
            check_group(group, number)
            for key in follow:
                value = float(group[named[key]])
                group[key] = value if value > 0.0 else None  # 0 is nothing to refer to
            if light and not self.shared_thermostat:
                group["inertia"] = light_inertia(group["friction"], float(group["temperature"]))
            self.check_together(group, number, {name: getattr(self, name) for name in self.saved})
            warn_coarse(self.param_groups)
            first = self.param_groups[0].get("thermostat_init")
            if self.shared_thermostat and group["thermostat_init"] != first:
                raise ValueError(
                    f"thermostat_init of group {number} is {group['thermostat_init']:g} and that of group 0 {first:g}: "
                    "they share one thermostat, which can start at one value only"
                )
            if self._ready:
                self._build()
        except Exception:
            for p in self.param_groups.pop()["params"]:
                self.state.pop(p, None)
            raise

    @torch.inference_mode(False)  # or a step outside inference mode could not write there
    def _build(self) -> None:
        """Lay out the state of parameters that have none yet, also after `state.clear()`, keeping that of the others.

        All of it is made before any of it is assigned.
        """
        kept: dict[Tensor, dict[str, Any]] = {
            p: dict(self.state.get(p) or {}) for shard in self._shards for p in shard.params
        }
        members: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, str, dict[str, Any]]]] = {}
        numbers: dict[Tensor, int] = {}
        for number, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                numbers[p] = len(numbers)
                members.setdefault((p.device, p.dtype), []).append((p, parameter_name(group, number, i), group))
        shards: list[Shard] = []
        with torch.no_grad():
            for entries in members.values():
                params, names, groups = (list(column) for column in zip(*entries, strict=True))
                shard = build_shard(len(shards), params, names, groups, self.slots, self.shared_thermostat)
                if self.noise_rank:
                    noise_rows.join_rows(shard, self.noise_rank)
                if self._shards:
                    shard.step.copy_(self._shards[0].step)
                for index, p in enumerate(params):
                    views, own = Slots(self._views(shard, index)), kept.get(p, {})
                    which = f"{numbers[p]} at call {self._calls}" if p in kept else numbers[p]
                    self._initialise(shard, index, {k: v for k, v in views.items() if k not in own}, which)
                    for slot in views.keys() & own.keys():
                        views[slot] = own[slot]  # into the view, if it fits
                shards.append(shard)
            if self.shared_thermostat:  # one for all, whenever they came and whatever their precision
                source = self._shards[0] if any("thermostat" in own for own in kept.values()) else shards[0]
                for shard in shards:
                    shard.flat["thermostat"].copy_(source.flat["thermostat"])
        if self.noise_kronecker and len(shards) == 1:
            known = self._kronecker if all("noise_0" in own for own in kept.values()) else None
            self._kronecker = KroneckerNoise(shards[0], self.noise_rank)
            self._kronecker.take_over(known, shards[0])
        self._shards = shards
        for shard in shards:
            self._link(shard)
        while len(self._last_lr) < len(self.param_groups):
            device = self.param_groups[len(self._last_lr)]["params"][0].device
            self._last_lr.append(torch.zeros((), dtype=torch.float64, device=device))

    def _views(self, shard: Shard, index: int) -> dict[str, Tensor]:
        """The state of one parameter as views of the flat buffers, shaped like it (or 0-dim, if shared)."""
        views = {}
        for slot in self.slots:
            shared = slot == "thermostat" and self.shared_thermostat
            flat = shard.flat[slot]
            views[slot] = flat.view(()) if shared else view_like(flat, shard.offsets[index], shard.params[index])
        return views

    def _link(self, shard: Shard) -> None:
        for index, p in enumerate(shard.params):
            self.state[p] = Slots(self._views(shard, index))

    def _lost(self) -> bool:
        """Whether the state of a parameter was taken away or replaced since it was laid out."""
        get, whole = self.state.get, len(self.slots)
        states = [get(p) for shard in self._shards for p in shard.params]
        return any(type(own) is not Slots or len(own) < whole for own in states)

    def _initialise(self, shard: Shard, index: int, views: dict[str, Tensor], number: int | str) -> None:
        """Give one new parameter, the sampler's `number`-th, its first momentum and thermostat."""
        group = shard.groups[index]
        if "momentum" in views and group["momentum_init"] == "law":
            rng = init_generator(self.seed, number)
            temperature = float(group["temperature"])
            drawn = sample_momentum(shard.params[index], shard.mass(index), group["speed_limit"], temperature, rng)
            views["momentum"].copy_(drawn)
        if "square_avg" in views:
            views["square_avg"].fill_(1.0)  # starts at M = 1, not at the 1/ε that zero would give
        if "thermostat" in views:
            views["thermostat"].fill_(group["thermostat_init"])

    def __getstate__(self) -> dict[str, Any]:
        """Everything, since PyTorch's own leaves the flat state behind; except `step`, which a scheduler replaces."""
        private = ("_optimizer_", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured")
        return {k: value for k, value in self.__dict__.items() if k != "step" and not k.startswith(private)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_shards" in state and not self._lost():  # else it begins anew in the copy, too
            for shard in self._shards:
                self._link(shard)

    # -- the step ------------------------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Advance the chain by one step with the gradients in `p.grad`; parameters without one do not move.

        Nothing is changed if the input is bad. Never synchronises with the host on CUDA, except with
        `nonfinite="raise"`, and can be captured in a CUDA graph.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        options = {name: getattr(self, name) for name in self.saved}
        check_members(self._shards, self.param_groups)
        for number, group in enumerate(self.param_groups):
            check_hyperparameters(group, number)
            self.check_together(group, number, options)
        check_changed_masses(self.param_groups, self._shards[0].scratch.setdefault("masses seen", {}))
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if any(shard.moved() for shard in self._shards) or self._lost():
            if capturing:
                raise RuntimeError(
                    "a parameter was moved or converted, or its state taken away, since the last step: take one before "
                    "capturing"
                )
            self._build()
        gradients = [dense_gradients(shard) for shard in self._shards]
        chosen = [self._choose_backend(shard) for shard in self._shards]
        by_hand = False  # whether friction along the noise is put into the gradient; the CUDA kernels have it
        if self.noise_rank or self.noise_examples:
            key = "noise_rank" if self.noise_rank else "noise_examples"
            noise_friction.check(self.param_groups, len(self._shards), self.strang, key)
            by_hand = chosen[0] is not fused_triton.fused
            if by_hand:
                gradients = [noise_friction.gather(self._shards[0], gradients[0])]
        for shard, grads, backend in zip(self._shards, gradients, chosen, strict=True):
            policy = self._policy(shard)
            bad = (
                None
                if policy == "ignore" or (policy == "skip" and backend is fused_triton.fused)
                else first_nonfinite(shard, grads)
            )
            if bad is not None and policy == "raise":
                raise RuntimeError(f"the gradient of parameter {bad} is not finite; the step was not taken")
            if bad is not None:
                self._skipped = self._skipped or f"{bad} was not finite at call {self._calls} of step()"
                for p in shard.params if self.noise_examples else ():
                    p.grad_sample = None  # type: ignore[attr-defined]
                self._calls += 1
                return loss
        # A graph of PyTorch operations cannot choose later whether to measure; the kernels can.
        measure = capturing or self._calls % self.measure_every == 0
        if by_hand:
            correct = noise_examples.correct if self.noise_examples else noise_friction.correct
            correct(self, self._shards[0], gradients[0], measure)
        fused_triton.prepare(self, list(zip(self._shards, gradients, chosen, strict=True)))
        for shard, grads, backend in zip(self._shards, gradients, chosen, strict=True):
            backend(self, shard, grads, measure and not by_hand)
            if backend in (fused_native.fused, fused_triton.fused):  # autograd does not see what compiled code writes
                written = [p for p, grad in zip(shard.params, grads, strict=True) if grad is not None]
                torch.autograd.graph.increment_version(written)
        self._after_step()
        self._calls += 1
        if self.noise_rank and not capturing and self._calls % noise_rows.EVERY == 0:
            noise_friction.update(self, self._calls)
        return loss

    def _policy(self, shard: Shard) -> str:
        if self.nonfinite is not None:
            return self.nonfinite
        if self.noise_examples and shard.device.type != "cpu":
            return "ignore"  # its step on CUDA is made of PyTorch's operations, which would wait for the host
        return "raise" if shard.device.type == "cpu" else "skip"

    def _choose_backend(self, shard: Shard) -> backends.Backend:
        name = self.backend or "fused"
        if name == "single":
            return backends.single
        if type(self).__name__ not in fused_native.KINDS or not type(self).__module__.startswith(__package__):
            name = "foreach"  # a subclass may have other formulas than the compiled code
        if name == "fused" and shard.dense and fused_native.usable(shard):
            return fused_native.fused
        if name == "fused" and shard.dense and fused_triton.usable(shard) and not self.noise_examples:
            return fused_triton.fused
        return backends.foreach

    def _after_step(self) -> None:
        """Called once all shards have moved; for state that spans them."""
        if self.shared_thermostat:
            self._heat_shared()
        if self.strang:
            for last, group in zip(self._last_lr, self.param_groups, strict=True):
                before, taken = last.clone(), fused_triton.taken(self, last.device)
                if isinstance(group["lr"], Tensor):
                    last.copy_(group["lr"])
                else:
                    last.fill_(group["lr"])
                if taken is not None:  # a step that the device has skipped has no second half to come
                    last.copy_(torch.where(taken, last, before))

    def _heat_shared(self) -> None:
        """Move the shared thermostat by the mean over all parameters."""
        home = self._shards[0].device
        elements = sum(p.numel() for shard in self._shards for p in shard.params)
        heats = [torch.stack(h).sum().to(home) for shard in self._shards if (h := shard.scratch.pop("heat", []))]
        if heats:
            mean = torch.stack(heats).sum() / max(elements, 1)
            one = self._shards[0].flat["thermostat"].add_(mean)
            for shard in self._shards[1:]:  # copies of the one: sums of their own would drift apart by rounding
                shard.flat["thermostat"].copy_(one)

    def advance(self, state: dict[str, Any], grad: Any, eta: list[Any], hyper: backends.Hyper) -> backends.Move:
        """One step on what the backend passes: a tensor or a `TensorList`."""
        raise NotImplementedError

    def check_together(self, group: dict[str, Any], number: int, options: Mapping[str, Any]) -> None:
        """Refuse settings of a group that conflict with each other or with the `saved` options."""

    def hyper(self, shard: Shard, index: int, mass: Any, measure: bool) -> backends.Hyper:
        """The hyper-parameters of one parameter of a shard, ready for the formulas."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise if a step was skipped for a non-finite gradient since the last call (`nonfinite="skip"`).

        On CUDA such a step is skipped and noted on the device. This call synchronises: make it once in a while.
        """
        told, self._skipped = self._skipped, None
        told = told or fused_triton.skipped(self._shards)
        if told is not None:
            raise RuntimeError(f"the gradient of parameter {told}; that step was skipped")

    # -- readings ------------------------------------------------------------------------------------------------

    def kinetic_temperature(self) -> Tensor:
        """Mean of p K'(p) over all elements at the last measured synchronised time; T in equilibrium.

        A 0-dim tensor on the device, without synchronisation. Measured at the first and then every `measure_every`-th
        step; NaN before the first step. A state carries the reading along.
        """
        sums, counts = [], []
        home = self._shards[0].device
        for shard in self._shards:
            fused_triton.collect(shard)
            known = ~shard.readings[:, 0].isnan()
            sums.append(torch.where(known, shard.readings[:, 0], 0.0).sum().to(home))
            counts.append((shard.sizes * known).sum().to(home))
        return (torch.stack(sums).sum() / torch.stack(counts).sum()).to(torch.float32)

    def readings(self) -> Readings:
        """All readings: kinetic temperature per tensor with its χ² interval, configurational temperature, thermostat.

        Synchronises with the host.
        """
        for shard in self._shards:
            fused_triton.collect(shard)
        return read(self._shards, adaptive=self.adaptive)

    def noise_temperature(self, first: Gradients, second: Gradients, *more: Gradients) -> Tensor:
        """Temperature along the gradient noise, from the gradients of mini-batches at the present parameters.

        Each argument has one gradient of U (or None) for each parameter, in the order of the groups. Nothing is moved
        and `p.grad` is not looked at. The result is a 0-dim tensor on the device, without synchronisation: one
        reading for each gradient but one, averaged (with `noise_rank` two, also along what the friction does not know).
        Its mean over a chain with the right law is T; where correlated mini-batch noise heats the directions it lives
        in, it is above T. A single reading scatters by √2 T: average a
        few hundred, taken at least as many steps apart as the momentum remembers. NaN for a sampler without momentum,
        and where the gradients are all equal. Use batches that the chain has not just seen.
        """
        del first, second, more
        return torch.full((), float("nan"), device=self._shards[0].device, dtype=torch.float64)

    def kick_excess(self) -> Tensor:
        """With `noise_examples`: the share of the last step's examples that friction cannot balance.

        Such an example alone changes the momentum by more than the thermal momentum √(m T) (its kick), and heats the
        chain. A 0-dim tensor on the device, without synchronisation; NaN before the first step and without
        `noise_examples`. Above 2 % take smaller steps or larger batches: a kick is in proportion to lr/batch.
        """
        shard = self._shards[0]
        found: Tensor = shard.scratch.get("kick excess", torch.full((), float("nan"), device=shard.device))
        return found

    # -- saving and restoring ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What resuming exactly needs: groups, momenta, thermostats, the position in the noise stream, readings.

        Only dicts, lists, strings, numbers and copied tensors.
        """
        if self._lost():
            self._build()
        for shard in self._shards:
            fused_triton.collect(shard)
        return state_saving.pack(self, super().state_dict())

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume exactly from `state_dict`, on this or another device; on bad input nothing changes.

        State buffers and tensor-valued learning rates keep their addresses, so a captured CUDA graph stays valid.
        """
        checked = state_saving.check(self, state_dict)
        held = state_saving.tensor_settings(self)
        super().load_state_dict({"state": {}, "param_groups": checked.groups})
        state_saving.restore(self, checked, held)
        if self.noise_rank:
            for shard in self._shards:
                noise_rows.masses_changed(shard)
                noise_rows.derive(shard, self.noise_rank)
            if self._kronecker is not None:
                self._kronecker.project(self._shards[0])
