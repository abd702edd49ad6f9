"""The splitting integrator shared by every sampler with a momentum, written once for every backend.

The dynamics, per element, with friction β and noise level α set by the thermostat (see the samplers):

    dθ = K'(p) dt
    dp = −G dt − β m K'(p) dt + √(2 T α m) dW
    dξ = [m K'(p)² − T m K''(p)]/μ dt

split into A, which moves (θ, ξ) with p fixed, and B, which moves p with (θ, ξ) fixed. B is an Ornstein–Uhlenbeck
process for a friction b = β r frozen over the step, solved exactly with φ(x) = (1 − e^(−x))/x:

    B(h):  p ← e^(−b h) p − h φ(b h) G + √(2 T α m h φ(2 b h)) η,    η ~ N(0, 1)
    A(h):  θ ← θ + h K'(p),    ξ ← ξ + (h/μ) [m K'(p)² − T m K''(p)]

All arguments may be numbers, tensors or `TensorList`s, so these few lines serve the single, the foreach and the
flat-buffer backend on a CPU. The Triton kernel repeats them; a test holds the backends together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from atmc.samplers.kinetic_energy import slowing
from atmc.samplers.tensor_list import absolute, expm1, sqrt

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


def synchronised_virial(p: Any, grad: Any, beta: Any, *, lr: Any, mass: Any, inverse_scale: Any) -> Any:
    """q K'(q), whose expectation is the temperature, for the momentum q in the middle of B(h), at the time of θ.

    Read off the momentum p before the step, without stopping there. In equilibrium p is q with half a kick more by the
    gradient behind it, so that E F(p) = E F(q) + (h²/8) E g² E F″(q) and E[g F'(p)] = (h/2) E g² E F″(q) for an even F,
    and the kick comes off again by F(p) − (h/4) G F'(p). With F = p K' and tanh(b h/2)/b for h/2, which makes it exact
    for a Gaussian K on a harmonic target, at any step (tests/law):

        q K'(q) ≈ K'(p) [p − (tanh(b h/2)/b) · (1 + r²)/2 · G]

    It is linear in G, and the noise of G is independent of p: unlike the square of the momentum half way, which has the
    gradient's noise in it but only a quarter of its variance, it is not biased by that noise.
    """
    r = slowing(p, inverse_scale)
    x = beta * r * lr + TINY
    e = expm1(-x)
    reach = -(e / x) * lr / (e + 2.0)  # tanh(b h/2)/b
    return (p - grad * reach * ((r * r + 1.0) * 0.5)) * p * r / mass
