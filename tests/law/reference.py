"""The corrected dynamics written a second time, straight from the equations, to judge the library and to be broken.

Nothing here is shared with `src/`: no helper, no constant. One elementwise step in plain torch,

    B(h):  p ← e^(−bh) p − hφ(bh) G + √(2 T α m h φ(2bh)) η,   φ(x) = (1 − e^(−x))/x,   b = β · r
    A(h):  θ ← θ + h K'(p);   ξ ← ξ + (h/μ) [ m K'(p)² − T m K''(p) ]

with r = (1 + p²/m²c²)^(−1/2) and α, β by the kind of thermostat: ATMC α = max(D − ξ, 0), β = max(D, ξ);
Nosé–Hoover α = D, β = D + ξ; none α = β = D. Leapfrog is B(h) A(h); Strang is B(h/2) A(h) B(h/2) with
one gradient shared by the two halves that meet. `Flaw` names the ways in which the step can be made wrong on
purpose: those of the paper's printed algorithm, one at a time, and those seen in other implementations.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


class Flaw(enum.Enum):
    """One deliberate error. The first five are printed in the paper, the rest have been met in the wild."""

    SIGN = "e^(+βh) in front of the bracket"
    NO_MASS = "noise without the mass"
    ASSIGN_PARAMS = "θ assigned instead of added to"
    ASSIGN_THERMOSTAT = "ξ assigned instead of added to"
    GAUSSIAN_A = "Gaussian θ and ξ lines under a hyperbolic K"
    NO_CORRECTION = "ξ without the term T·mK''"
    CORRECTION_IS_ONE = "ξ with T·1 instead of T·mK'' = T·r³"
    NO_TEMPERATURE = "ξ with mK'' instead of T·mK''"
    FULL_FRICTION = "friction β instead of βr under a hyperbolic K"
    NO_EXCESS_FRICTION = "friction D where ξ > D: the printed 'β < D', taken at its word"
    NO_INERTIA = "ξ without 1/μ"
    NOISE_OF_ONE_B = "noise variance with φ(bh) instead of φ(2bh)"
    XI_OR_NOISE = "ξ = 0 read as 'unset' and replaced by the noise level"
    SAME_STREAM = "noise from a plain generator with the program's own seed"


def phi(x: Tensor) -> Tensor:
    """(1 − e^(−x))/x, which is 1 at 0."""
    safe = torch.where(x == 0, torch.ones_like(x), x)
    return torch.where(x == 0, torch.ones_like(x), -torch.expm1(-safe) / safe)


def ou_moments(
    p: Tensor, gradient: Tensor, b: Tensor, alpha: Tensor, m: float, h: float, t: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of dp = −G dt − b p dt + √(2Tαm) dW after a time h, in closed form."""
    return torch.exp(-b * h) * p - h * phi(b * h) * gradient, 2 * t * alpha * m * h * phi(2 * b * h)


@dataclass
class Reference:
    """Many elementwise chains at once, as the elements of one tensor."""

    theta: Tensor
    h: float
    m: float = 1.0
    d: float = 1.0
    c: float = math.inf
    t: float = 1.0
    mu: float = 1.0
    kind: str = "atmc"  # or "nose-hoover", "none"
    integrator: str = "leapfrog"
    momentum: Tensor = None  # type: ignore[assignment]
    thermostat: Tensor = None  # type: ignore[assignment]
    seed: int = 0
    flaw: Flaw | None = None
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        # The library keys its stream so that equal seeds cannot meet; here a large odd number does.
        key = self.seed if self.flaw is Flaw.SAME_STREAM else self.seed * 2_654_435_761 + 0x5DEECE66D
        self.generator = torch.Generator().manual_seed(key % 2**63)
        self.theta = self.theta.clone()
        self.momentum = torch.zeros_like(self.theta) if self.momentum is None else self.momentum.clone()
        self.thermostat = torch.zeros_like(self.theta) if self.thermostat is None else self.thermostat.clone()
        if self.flaw is Flaw.XI_OR_NOISE:
            self.thermostat = torch.where(self.thermostat == 0, torch.full_like(self.theta, self.d), self.thermostat)
        self._closing = False

    def rate(self) -> Tensor | float:
        """r, by which a hyperbolic K slows the motion: 1 for a Gaussian K."""
        return 1.0 if math.isinf(self.c) else torch.rsqrt(1 + (self.momentum / (self.m * self.c)) ** 2)

    def velocity(self) -> Tensor:
        """K'(p)."""
        return self.rate() * self.momentum / self.m

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """α, which scales the noise, and β, which scales the friction."""
        if self.kind == "atmc":
            return (self.d - self.thermostat).clamp(min=0), self.thermostat.clamp(min=self.d)
        alpha = torch.full_like(self.theta, self.d)
        return alpha, alpha + self.thermostat if self.kind == "nose-hoover" else alpha

    def kick(self, h: float, gradient: Tensor) -> None:
        """B: the momentum for a time h, everything else frozen."""
        alpha, beta = self.coefficients()
        if self.flaw is Flaw.NO_EXCESS_FRICTION:
            beta = beta.clamp(max=self.d)
        b = beta if self.flaw is Flaw.FULL_FRICTION else beta * self.rate()
        noise = torch.randn(self.theta.shape, generator=self.generator, dtype=self.theta.dtype)
        m = 1.0 if self.flaw is Flaw.NO_MASS else self.m
        mean, variance = ou_moments(self.momentum, gradient, b, alpha, m, h, self.t)
        if self.flaw is Flaw.NOISE_OF_ONE_B:
            variance = variance * phi(b * h) / phi(2 * b * h)
        self.momentum = mean + variance.sqrt() * noise
        if self.flaw is Flaw.SIGN:
            self.momentum = self.momentum * torch.exp(2 * b * h)

    def drift(self, h: float) -> None:
        """A: the parameters and the thermostat for a time h, the momentum frozen."""
        gaussian = self.flaw is Flaw.GAUSSIAN_A
        r = 1.0 if gaussian else self.rate()
        velocity = r * self.momentum / self.m
        correction = 0.0 if self.flaw is Flaw.NO_CORRECTION else self.t * r**3
        if self.flaw is Flaw.CORRECTION_IS_ONE:
            correction = self.t
        if self.flaw is Flaw.NO_TEMPERATURE:
            correction = r**3
        self.theta = h * velocity + (0 if self.flaw is Flaw.ASSIGN_PARAMS else self.theta)
        if self.kind == "none":
            return
        change = h / (1.0 if self.flaw is Flaw.NO_INERTIA else self.mu) * (self.m * velocity**2 - correction)
        self.thermostat = change + (0 if self.flaw is Flaw.ASSIGN_THERMOSTAT else self.thermostat)

    def step(self, gradient: Tensor) -> None:
        """One step of size h with one gradient at the current parameters."""
        if self.integrator == "leapfrog":
            self.kick(self.h, gradient)
        else:
            # The half kick that ends the last step, then the one that begins this step: same θ, same gradient.
            if self._closing:
                self.kick(self.h / 2, gradient)
            self.kick(self.h / 2, gradient)
            self._closing = True
        self.drift(self.h)


@dataclass
class ReferenceSGLD:
    """θ ← θ − hG + √(2Th) η, for a scalar pre-conditioner of one."""

    theta: Tensor
    h: float
    t: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed * 2_654_435_761 + 0x5DEECE66D)
        self.theta = self.theta.clone()
        self.momentum = self.thermostat = torch.zeros_like(self.theta)

    def step(self, gradient: Tensor) -> None:
        """One step of size h."""
        noise = torch.randn(self.theta.shape, generator=self.generator, dtype=self.theta.dtype)
        self.theta = self.theta - self.h * gradient + math.sqrt(2 * self.t * self.h) * noise
