"""What the samplers with a momentum share: the split step, and the paper's way of setting its speeds."""

from __future__ import annotations

import math
import numbers
from typing import Any, Self

from . import bodies
from .kinetic import inverse_momentum_scale
from .layout import Shard
from .sampler import Sampler


def speed_settings(lr: float, speed: float, max_speed: float = math.inf, momentum: float = 0.9) -> dict[str, float]:
    """Mass, noise and speed limit from what a parameter does per step; `from_speeds` has the formulas."""
    for key, value in (("lr", lr), ("speed", speed), ("max_speed", max_speed)):
        if not isinstance(value, numbers.Real) or not value > 0 or (math.isinf(value) and key != "max_speed"):
            raise ValueError(f"{key} must be {'' if key == 'max_speed' else 'finite and '}positive, not {value}")
    if not 0 < momentum <= 1:
        raise ValueError(f"momentum must be in (0, 1], not {momentum}")
    return {"mass": (speed / lr) ** -2, "noise": -math.log(momentum) / lr, "speed_limit": max_speed / lr}


class KineticSampler(Sampler):
    """A sampler with momentum: the split step, given how its thermostat sets noise α and friction β."""

    def coefficients(self, xi: Any, noise: float) -> tuple[Any, Any]:
        """(α, β) for a thermostat value."""
        raise NotImplementedError

    def advance(self, state: dict[str, Any], grad: Any, eta: list[Any], hyper: bodies.Hyper) -> bodies.Move:
        return bodies.kinetic_advance(self.coefficients, self.friction == "corrected", state, grad, eta, hyper)

    def hyper(self, shard: Shard, index: int, mass: Any, measure: bool) -> bodies.Hyper:
        group = shard.groups[index]
        number = next(i for i, g in enumerate(self.param_groups) if g is group)
        return bodies.Hyper(
            lr=group["lr"],
            mass=mass,
            inverse_scale=inverse_momentum_scale(mass, group["speed_limit"]),
            noise=group["noise"],
            temperature=group["temperature"],
            inverse_inertia=1.0 / group["inertia"] if "inertia" in group else 0.0,
            last_lr=self._last_lr[number] if self.scheme == "strang" else None,
            measure=measure,
            shared_thermostat=self.shared_thermostat,
        )

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
        """The paper's way to say it: how far a parameter moves per step, on average (at T = 1) and at most.

        m = (speed/lr)⁻², c = max_speed/lr, D = −log(momentum)/lr. The paper's CIFAR-10 values are lr = 1e-3,
        speed = 3e-4, max_speed = 1e-3, momentum = 0.9.
        """
        given = [key for key in ("mass", "noise", "speed_limit") if key in options]
        if given:
            raise ValueError(f"{', '.join(given)}: from_speeds sets it from the speeds; give one or the other")
        return cls(params, **{"lr": lr, **speed_settings(lr, speed, max_speed, momentum), **options})
