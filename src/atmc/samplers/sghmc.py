"""SGHMC: Hamiltonian Monte Carlo with friction for stochastic gradients (Chen et al. 2014)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

from atmc.samplers.checks import check_option
from atmc.samplers.kinetic_energy import least_friction
from atmc.samplers.kinetic_sampler import KineticSampler
from atmc.samplers.sampler import Options


class SGHMC(KineticSampler):
    """Stochastic-gradient Hamiltonian Monte Carlo, without a thermostat.

        dθ = K'(p) dt
        dp = −G dt − D m K'(p) dt + √(2 T (D − B̂) m) dW

    leaves exp(−[U(θ) + K(p)]/T) invariant when the gradient's noise is what `noise_estimate` B̂ = h Var(G)/(2 m T) says.
    With B̂ = 0, the default, gradient noise raises the temperature to T (1 + B/(2 m T D)).

    At T = 0 with a Gaussian K this is SGD with momentum: `torch.optim.SGD` with momentum = e^(−D h) and
    lr = (h/m) (1 − e^(−D h))/D on the gradient of U takes the same steps.

    Args:
        noise_estimate: B̂, the known noise of the gradient, at most `friction`.

    The other arguments are those of `ATMC`.
    """

    slots = ("momentum",)
    saved = (*KineticSampler.saved, "noise_estimate")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        mass: Any = 1.0,
        friction: float = 100.0,
        speed_limit: float = math.inf,
        temperature: Any = 1.0,
        *,
        noise_estimate: float = 0.0,
        momentum_init: str = "zero",
        **options: Unpack[Options],
    ) -> None:
        self.noise_estimate: float = check_option("noise_estimate", noise_estimate)
        defaults = {
            "lr": lr,
            "mass": mass,
            "friction": friction,
            "momentum": None,
            "speed_limit": speed_limit,
            "temperature": temperature,
            "momentum_init": momentum_init,
        }
        super().__init__(params, defaults, **options)

    def check_together(self, group: dict[str, Any], number: int, options: Mapping[str, Any]) -> None:
        """Friction must leave room for `noise_estimate`, or no noise would be added and the group would descend."""
        super().check_together(group, number, options)
        estimate = options["noise_estimate"]
        if estimate and (friction := least_friction(group)) < estimate:
            raise ValueError(f"friction of group {number} is {friction:g}, less than noise_estimate ({estimate:g})")

    def coefficients(self, xi: Any, friction: float) -> tuple[Any, Any]:
        return (max(friction - self.noise_estimate, 0.0) if self.noise_estimate else friction), friction
