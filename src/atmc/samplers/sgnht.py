"""SGNHT: the Nosé–Hoover thermostat for stochastic gradients (Ding et al. 2014), per element or one for all."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

from atmc.samplers.checks import choose
from atmc.samplers.kinetic_sampler import KineticSampler
from atmc.samplers.sampler import Options


class SGNHT(KineticSampler):
    """Stochastic-gradient Nosé–Hoover thermostat.

    The dynamics of `ATMC` with α = D and β = D + ξ: noise of level D is always added, and ξ adds friction against the
    gradient's noise:

        dθ = K'(p) dt
        dp = −G dt − (D + ξ) m K'(p) dt + √(2 T D m) dW
        dξ = [m K'(p)² − T m K''(p)]/μ dt

    leaves exp(−[U(θ) + K(p) + (μ/2)(ξ − ξ̄)²]/T) invariant, ξ̄ = h Var(G)/(2 m T). Where ξ < −D the friction is negative
    and momentum grows; the exact momentum step stays right there.

    Args:
        thermostat: "element" keeps one ξ for each parameter element; "scalar" one for all of them, driven by the mean
            of their heat, as in the original method. A scalar ξ corrects gradient noise that is the same everywhere.
            Its law is exp(−(d μ/2)(ξ − ξ̄)²/T) for d elements, and its μ is 1 where none is given.

    The other arguments are those of `ATMC`, and as there the thermostat that is kept is that of a step of size h₀
    (`reference_lr`). A scalar one is shared by all groups, so their step sizes should change together.
    """

    has_thermostat = True
    recipe_keys = ("thermostat",)
    slots = ("momentum", "thermostat")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        mass: Any = 1.0,
        friction: float = 100.0,
        speed_limit: float = math.inf,
        temperature: Any = 1.0,
        inertia: float | None = None,
        *,
        reference_lr: float | Literal["lr"] | None = "lr",
        reference_temperature: float | Literal["temperature"] | None = "temperature",
        thermostat: str = "element",
        momentum_init: str = "zero",
        thermostat_init: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        choose("thermostat", thermostat, ("element", "scalar"))
        self.shared_thermostat = thermostat == "scalar"
        defaults = {
            "lr": lr,
            "mass": mass,
            "friction": friction,
            "momentum": None,
            "speed_limit": speed_limit,
            "temperature": temperature,
            "inertia": inertia,
            "reference_lr": reference_lr,
            "reference_temperature": reference_temperature,
            "momentum_init": momentum_init,
            "thermostat_init": thermostat_init,
        }
        super().__init__(params, defaults, **options)

    def coefficients(self, xi: Any, friction: float) -> tuple[Any, Any]:
        return friction, xi + friction
