"""ATMC: the adaptive thermostat of Heek & Kalchbrenner, with its printed algorithm corrected."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

from atmc.samplers.kinetic_sampler import KineticSampler
from atmc.samplers.sampler import Options
from atmc.samplers.tensor_list import clamp_min


class ATMC(KineticSampler):
    """Adaptive Thermostat Monte Carlo.

    Per element, with ξ the thermostat and α(ξ) = max(D − ξ, 0), β(ξ) = max(D, ξ):

        dθ = K'(p) dt
        dp = −G dt − β(ξ) m K'(p) dt + √(2 T α(ξ) m) dW
        dξ = [m K'(p)² − T m K''(p)]/μ dt

    leaves exp(−[U(θ) + K(p) + (μ/2)(ξ − ξ̄)²]/T) invariant, ξ̄ = h Var(G)/(2 m T): ξ estimates the gradient noise of each
    parameter, and the added noise is reduced by it. Friction is at least D.

    Here ξ = (h/h₀) ζ for h ≤ h₀: the thermostat that is kept is ζ, the friction that a step of size h₀ (`reference_lr`)
    needs, with dζ = (h/h₀) [m K'(p)² − T m K''(p)]/μ dt and (μ/2)(ζ − ζ̄)² in the law, ζ̄ = h₀ Var(G)/(2 m T). The law
    does not depend on h, so a schedule may change the step size. With the paper's ξ, friction learned at large steps
    stays: at the end of a cycle, parameters with noisy gradients are below the target temperature (docs/law.md).

    Args:
        params: as for any optimizer. Groups may differ in every argument up to `thermostat_init`.
        lr: step size h; a number, or a float32 device tensor when a CUDA graph is to see it change.
        mass: m, the pre-conditioner; a number, or a sequence with a number or a tensor (one mass per element) for each
            parameter of the group.
        friction: D, the least friction; e^(−D h) is the momentum coefficient of the equivalent SGD. If a scheduler sets
            a group's `momentum` (`OneCycleLR`, `CyclicLR`), D = −log(momentum)/lr at each step: the law does not depend
            on D.
        speed_limit: c. Infinite (the default) is the Gaussian kinetic energy; finite the hyperbolic, with which no
            parameter moves further than c h in a step.
        temperature: T; 1 samples the Bayes posterior; 0 is SGD with momentum. May be a device tensor, as `lr`.
        inertia: μ of the thermostat. The paper has 1; T/(κD)² makes the equilibrium spread of ξ a fraction κ of D, and
            ξ reacts in hundreds of steps. None (default): κ = 1/3 with the group's D and T, at most 1. Infinite
            freezes ξ.
        reference_lr: h₀, the step size that the thermostat is stated for, best the largest of the schedule, since above
            it ξ = ζ. "lr" (default): `lr` as given here or with the group (None if that is 0). None: the paper's ξ.
        reference_temperature: T₀ likewise, for schedules of the temperature: ξ = (h/h₀)(T₀/T) ζ while that is not more
            than ζ, and ζ̄ = h₀ Var(G)/(2 m T₀) depends on neither. None leaves T out of it.
        momentum_init: "zero", or "law" to draw the first momenta from exp(−K(p)/T).
        thermostat_init: ξ at the start, for a step of size h₀. 0 is a value like any other.
        seed: of the sampler's own noise stream. Parallel samplers need different seeds.
        integrator: "leapfrog", one momentum step per gradient; or "strang", two halves. With a finite speed limit both
            correct the friction to second order (`integrator.momentum_step`); "leapfrog-frozen" and "strang-frozen"
            leave it first order, as the paper does.
        backend: "single", "foreach" or "fused" to force an implementation; the fastest one by default.
        measure_every: steps between two readings of the temperatures.
        noise_rank: k directions of the gradient noise along which friction balances it, which makes the law right where
            mini-batch noise is correlated between parameters (`noise_friction`). Draw the examples of each mini-batch
            independently of the others with it, and use one lr, temperature, friction and speed limit for all groups.
            Adds k + 17 numbers per parameter, and no gradient. 0 (default): thermostats alone.
        noise_kronecker: friction for the rest of the noise too, with a model of full rank for each tensor
            (`noise_kronecker.py`). Adds k + 1 numbers per parameter, and matrices of the size of each tensor's sides.
        noise_examples: friction for all of the noise, along the gradient of each example of the step's own batch: no
            estimate that lags behind (`noise_examples.py`). Each step wants `p.grad_sample`, which
            `potential.backward_each(x, y)` leaves; examples are to be drawn independently, and a batch of all data has
            no noise to balance. Takes twice batch × parameters numbers. In place of `noise_rank`; `kick_excess()` says
            whether steps are small enough.
        nonfinite: what a NaN or infinite gradient does. "raise" stops before anything has moved (default on a CPU; on
            CUDA it synchronises). "skip" leaves the step out on the device without synchronising and lets
            `sampler.check()` tell (default on CUDA, where `noise_examples` has "ignore"). "ignore" does not look.

    `state[p]["momentum"]` and `["thermostat"]` are views of flat buffers; assigned tensors are copied in.

    Algorithm 1 as printed has e^(+βh) for e^(−βh), no mass in the noise, and assigns where it should add.
    """

    has_thermostat = True
    slots = ("momentum", "thermostat")
    adaptive = True

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
        momentum_init: str = "zero",
        thermostat_init: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
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
        return clamp_min(friction - xi, 0.0), clamp_min(xi, friction)
