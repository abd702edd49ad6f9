"""The splitting integrator shared by every sampler with a momentum, written once for every body.

The dynamics, per element, with friction β and noise level α set by the thermostat (see the samplers):

    dθ = K'(p) dt
    dp = −G dt − β m K'(p) dt + √(2 T α m) dW
    dξ = [m K'(p)² − T m K''(p)]/μ dt

split into A, which moves (θ, ξ) with p fixed, and B, which moves p with (θ, ξ) fixed. B is an Ornstein–Uhlenbeck
process for a friction b = β r frozen over the step, solved exactly with φ(x) = (1 − e^(−x))/x:

    B(h):  p ← e^(−b h) p − h φ(b h) G + √(2 T α m h φ(2 b h)) η,    η ~ N(0, 1)
    A(h):  θ ← θ + h K'(p),    ξ ← ξ + (h/μ) [m K'(p)² − T m K''(p)]

All arguments may be numbers, tensors or `TensorList`s, so these few lines serve the plain body, the foreach body and
the flat-buffer body on a CPU. The Triton kernel repeats them; a test holds the bodies together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .kinetic import slowing
from .tensorlist import absolute, expm1, sqrt

# Added to b h so that φ(0) = 1 comes out of the same formula: e^(−tiny) − 1 = −tiny exactly, and any b h that matters
# is too large to notice. Negative b (Nosé–Hoover) needs nothing special.
TINY = 1e-30


class Ornstein(NamedTuple):
    """The coefficients of one exact momentum step: decay − 1, h φ(b h), and the variance of the noise it adds."""

    decay_minus_one: Any
    kick: Any
    variance: Any


def ornstein(b: Any, alpha: Any, lr: Any, mass: Any, temperature: Any) -> Ornstein:
    """Coefficients of B(h) for friction b and noise level α, exact for every b including 0 and negative ones.

    The variance 2 T α m h φ(2 b h) equals T α m · h φ(b h) · (1 + e^(−b h)), so one `expm1` serves all three.
    """
    x = b * lr + TINY
    decay_minus_one = expm1(-x)
    kick = -(decay_minus_one / x) * lr
    variance = kick * (decay_minus_one + 2.0) * alpha * mass * temperature
    return Ornstein(decay_minus_one, kick, variance)


def momentum_step(
    p: Any,
    grad: Any,
    eta: Any,
    alpha: Any,
    beta: Any,
    *,
    lr: Any,
    mass: Any,
    inverse_scale: Any,
    temperature: Any,
    corrected: bool,
) -> Any:
    """B(h): the new momentum.

    With a hyperbolic K the friction b = β r(p) depends on p. Freezing r at its old value, as the paper does, is exact
    only to first order in h. The corrected step adds the half of the change of drag that freezing left out,
    −(h/2) β (r(p̂) − r(p)) p̂ with p̂ the frozen result, which makes the step second order in law (Heun's rule for the
    non-linear rest, the linear part staying exact). As a factor 1 − x/(1 + |x|) it can neither turn the momentum round
    nor more than double it, however large h β is. For a Gaussian K both are the same exact step.
    """
    r = slowing(p, inverse_scale)
    step = ornstein(beta * r, alpha, lr, mass, temperature)
    new = p + p * step.decay_minus_one - grad * step.kick + eta * sqrt(step.variance)
    if corrected and not isinstance(r, float):
        change = (slowing(new, inverse_scale) - r) * beta * lr * 0.5
        new = new - new * (change / (absolute(change) + 1.0))
    return new


def drift_step(
    p: Any, *, lr: Any, mass: Any, inverse_scale: Any, temperature: Any, inverse_inertia: float
) -> tuple[Any, Any]:
    """A(h): the increments of θ and of ξ while p stays where it is."""
    r = slowing(p, inverse_scale)
    velocity = p * r / mass
    excess = velocity * velocity * mass - (r * r * r) * temperature
    return velocity * lr, excess * lr * inverse_inertia


def synchronised_virial(
    p: Any, grad: Any, alpha: Any, beta: Any, *, lr: Any, mass: Any, inverse_scale: Any, temperature: Any
) -> Any:
    """E[q K'(q)] of the momentum q in the middle of B(h), where it and θ belong to the same time.

    The fused step never stops there, but the law of q given the momentum before the step is known: normal with mean
    e^(−b h/2) p − (h/2) φ(b h/2) G and variance T α m h φ(b h). Its expectation needs no random draw and has less
    variance than one. For a Gaussian K it is (mean² + variance)/m; otherwise three-point Gauss–Hermite.

    Gradient noise makes it read low: both halves of the step share one G, so half way through only a quarter of its
    variance has arrived, where that of two independent halves would have brought a half. A chain at T then reads about
    T (1 − h ξ̄/2) for h ξ̄ ≪ 1, and 0.7 T at h ξ̄ = 1 (tests/law pins the exact value). Read it together with ξ.
    """
    r = slowing(p, inverse_scale)
    step = ornstein(beta * r, alpha, lr, mass, temperature)
    half_decay = sqrt(step.decay_minus_one + 1.0)
    mean = p * half_decay - grad * (step.kick / (half_decay + 1.0))
    variance = step.kick * alpha * mass * temperature
    if isinstance(r, float):
        return (mean * mean + variance) / mass
    reach = sqrt(variance * 3.0)
    low, high = mean - reach, mean + reach
    return (virial(low, mass, inverse_scale) + virial(high, mass, inverse_scale)) / 6.0 + virial(
        mean, mass, inverse_scale
    ) * (2.0 / 3.0)


def virial(p: Any, mass: Any, inverse_scale: Any) -> Any:
    """p K'(p), whose expectation is the temperature."""
    return p * p * slowing(p, inverse_scale) / mass
