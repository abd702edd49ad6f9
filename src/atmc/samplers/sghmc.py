"""SGHMC: Hamiltonian Monte Carlo with friction for stochastic gradients (Chen et al. 2014)."""

from __future__ import annotations

import math
from typing import Any, Unpack

from .checks import check_hyperparameters
from .kinetic_sampler import KineticSampler
from .sampler import Options


class SGHMC(KineticSampler):
    """Stochastic-gradient Hamiltonian Monte Carlo, without a thermostat.

        dθ = K'(p) dt
        dp = −G dt − D m K'(p) dt + √(2 T (D − B̂) m) dW

    leaves exp(−[U(θ) + K(p)]/T) invariant when the gradient's noise is what `noise_estimate` B̂ = h Var(G)/(2 m T) says.
    With B̂ = 0, the default, gradient noise heats the chain to T (1 + B/(2 m T D)), which is what thermostats are for.

    At T = 0 with a Gaussian K this is SGD with momentum: `torch.optim.SGD` with momentum = e^(−D h) and
    lr = (h/m) (1 − e^(−D h))/D on the gradient of U takes the same steps.

    Args:
        noise_estimate: B̂, at most `noise`; the part of the noise that the gradient is known to bring along.

    The other arguments are those of `ATMC`.
    """

    slots = ("momentum",)
    saved = (*KineticSampler.saved, "noise_estimate")

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        mass: Any = 1.0,
        noise: float = 100.0,
        speed_limit: float = math.inf,
        temperature: Any = 1.0,
        *,
        noise_estimate: float = 0.0,
        momentum_init: str = "zero",
        **options: Unpack[Options],
    ) -> None:
        check_hyperparameters({"noise": noise}, 0)
        if not 0.0 <= noise_estimate <= noise:
            raise ValueError(f"noise_estimate must lie between 0 and noise ({noise}), not {noise_estimate}")
        self.noise_estimate = noise_estimate
        defaults = {
            "lr": lr,
            "mass": mass,
            "noise": noise,
            "speed_limit": speed_limit,
            "temperature": temperature,
            "momentum_init": momentum_init,
        }
        super().__init__(params, defaults, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as in any optimizer; their noise must leave room for `noise_estimate`, too."""
        noise, number = param_group.get("noise", self.defaults["noise"]), len(self.param_groups)
        check_hyperparameters({"noise": noise}, number)
        if noise < self.noise_estimate:
            raise ValueError(
                f"noise of group {number} is {noise:g}, less than noise_estimate ({self.noise_estimate:g})"
            )
        super().add_param_group(param_group)

    def coefficients(self, xi: Any, noise: float) -> tuple[Any, Any]:
        return max(noise - self.noise_estimate, 0.0), noise
