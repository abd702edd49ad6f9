"""The base class of samplers with momentum, and the paper's parametrisation by speeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from atmc.samplers import backends, noise_rows
from atmc.samplers.checks import plain_number
from atmc.samplers.flat_state import Shard, view_like
from atmc.samplers.kinetic_energy import inverse_momentum_scale, least_friction, thermostat_weight
from atmc.samplers.noise_temperature import Gradients, check_gradients, contrasts, reading, remainders, sums_along
from atmc.samplers.sampler import Sampler


def speed_settings(lr: float, speed: float, max_speed: float = math.inf, momentum: float = 0.9) -> dict[str, float]:
    """Mass, friction and speed limit from speeds per step; see `from_speeds`."""
    for key, value in (("lr", lr), ("speed", speed)):
        plain_number(key, value, "a finite and positive number", lambda v: 0.0 < v < math.inf)
    plain_number("max_speed", max_speed, "a positive number", lambda v: v > 0.0)
    momentum = plain_number("momentum", momentum, "a number in (0, 1]", lambda v: 0.0 < v <= 1.0)
    return {"mass": (speed / lr) ** -2, "friction": -math.log(momentum) / lr, "speed_limit": max_speed / lr}


class KineticSampler(Sampler):
    """A sampler with momentum: the split step, given how its thermostat sets noise α and friction β."""

    has_momentum = True

    def coefficients(self, xi: Any, friction: float) -> tuple[Any, Any]:
        """(α, β) for a thermostat value."""
        raise NotImplementedError

    def check_together(self, group: dict[str, Any], number: int, options: Mapping[str, Any]) -> None:
        """Refuse a `momentum` set by a scheduler that gives no friction."""
        momentum, lr = group.get("momentum"), group["lr"]
        if momentum is None:
            return
        plain_number(f"momentum of group {number}", momentum, "None or a number in (0, 1]", lambda v: 0.0 < v <= 1.0)
        if isinstance(lr, Tensor) and lr.device.type != "cpu":
            if self.backend in ("single", "foreach") or options.get("noise_estimate"):
                raise ValueError(
                    f"momentum of group {number} is set while its lr is a tensor on a device, which backend='single' "
                    "or 'foreach' and noise_estimate cannot do without waiting for it: leave them out, give lr as a "
                    "number, or use the scheduler's cycle_momentum=False"
                )
            return
        if math.isinf(least_friction(group)):
            raise ValueError(f"lr of group {number} is {float(lr):g}: too small for its momentum of {momentum:g}")

    def advance(self, state: dict[str, Any], grad: Any, eta: list[Any], hyper: backends.Hyper) -> backends.Move:
        return backends.kinetic_advance(self.coefficients, self.corrected, state, grad, eta, hyper)

    def hyper(self, shard: Shard, index: int, mass: Any, measure: bool) -> backends.Hyper:
        group = shard.groups[index]
        number = next(i for i, g in enumerate(self.param_groups) if g is group)
        return backends.Hyper(
            lr=group["lr"],
            mass=mass,
            inverse_scale=inverse_momentum_scale(mass, group["speed_limit"]),
            friction=least_friction(group),
            temperature=group["temperature"],
            inverse_inertia=1.0 / group["inertia"] if "inertia" in group else 0.0,
            last_lr=self._last_lr[number] if self.strang else None,
            measure=measure,
            shared_thermostat=self.shared_thermostat,
            thermostat_weight=thermostat_weight(group),
        )

    @torch.no_grad()
    def noise_temperature(self, first: Gradients, second: Gradients, *more: Gradients) -> Tensor:
        gradients = (first, second, *more)
        check_gradients(gradients, sum(len(group["params"]) for group in self.param_groups))
        place = {p: i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        home = self._shards[0].device
        sums: Any = 0.0
        for shard in self._shards:
            fields, means = [], []
            for p in shard.params:
                own = [each[place[p]] for each in gradients]
                dense = [torch.zeros_like(p, dtype=shard.dtype) if g is None else g.to(shard.dtype) for g in own]
                fields.append(contrasts(dense))
                means.append(torch.stack(dense).mean(0))
            if self.noise_rank:
                fields = [[*own, *rest] for own, rest in zip(fields, self._unknown(shard, fields), strict=True)]
            for index in range(len(shard.params)):
                hyper = self.hyper(shard, index, shard.mass(index), measure=False)
                state = self._views(shard, index)
                xi = state["thermostat"] * hyper.thermostat_weight if "thermostat" in state else None
                parts = sums_along(
                    fields[index],
                    means[index],
                    state["momentum"],
                    self.coefficients(xi, hyper.friction)[1],
                    lr=hyper.lr if hyper.last_lr is None else hyper.last_lr,
                    mass=hyper.mass,
                    inverse_scale=hyper.inverse_scale,
                )
                sums = sums + torch.stack(parts).to(home)
        return reading(sums)

    def _unknown(self, shard: Shard, fields: list[list[Tensor]]) -> Any:
        """The parts of the contrasts that friction along the noise does not know."""
        flat = noise_rows.rows_of(shard, self.noise_rank)[: self.noise_rank]
        views = [[view_like(row, o, p) for row in flat] for o, p in zip(shard.offsets, shard.params, strict=True)]
        masses = [shard.mass(index) for index in range(len(shard.params))]
        scale = noise_rows.scale_of(shard, self.noise_rank)
        return remainders(fields, [torch.stack(own) for own in views], masses, scale)

    noise_temperature.__doc__ = Sampler.noise_temperature.__doc__

    @classmethod
    def from_speeds(
        cls,
        params: Any,
        lr: float,
        speed: float,
        max_speed: float = math.inf,
        momentum: float = 0.9,
        **options: Any,
    ) -> Self:
        """The paper's parametrisation: how far a parameter moves per step, on average (at T = 1) and at most.

        m = (speed/lr)⁻², c = max_speed/lr, D = −log(momentum)/lr. The paper's CIFAR-10 values are lr = 1e-3,
        speed = 3e-4, max_speed = 1e-3, momentum = 0.9. A group may have its own `speed`, `max_speed` and `momentum`,
        for a step of its own lr. A group with only its own lr keeps the masses of the others.
        """
        _refuse_both(options)
        whole = {"lr": lr, "speed": speed, "max_speed": max_speed, "momentum": momentum}
        groups = params if isinstance(params, Tensor) else [_with_speeds(group, whole) for group in params]
        return cls(groups, **{"lr": lr, **speed_settings(**whole), **options})


def _with_speeds(group: Any, whole: dict[str, Any]) -> Any:
    """A group with its own speeds, where it has any, as mass, friction and speed limit; anything else as it is."""
    if not isinstance(group, dict) or not group.keys() & {"speed", "max_speed", "momentum"}:
        return group
    _refuse_both(group)
    settings = speed_settings(**{key: group.get(key, value) for key, value in whole.items()})
    return {key: value for key, value in group.items() if key == "lr" or key not in whole} | settings


def _refuse_both(given: Mapping[str, Any]) -> None:
    both = [key for key in ("mass", "friction", "speed_limit") if key in given]
    if both:
        raise ValueError(f"{', '.join(both)}: from_speeds sets it from the speeds; give one or the other")
