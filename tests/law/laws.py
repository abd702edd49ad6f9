"""What theory says: the momentum law, and exact stationary moments of the *discrete* step on a harmonic target.

The second kind needs no allowance for the step size. On U = kθ²/2 with a Gaussian K and a friction b that does
not change, one fused step is linear: p' = a p − gθ + noise, θ' = θ + v p', with x = bh, a = e^(−x), g = hφ(x)k,
v = h/m. Stationarity of E θ² gives E[θ'p'] = vP/2 with P = E p'², stationarity of E θp then

    Var θ = (T/k) · (x/2) coth(x/2) · P/(mT)                                                       (1)

and stationarity of E p² gives, with s² the variance of everything random in p',

    P (1 − a²) = P g v (1 − a)/2 + s².                                                             (2)

SGHMC has b = D and s² = T m (1 − a²) + h²φ(x)² Var G: both moments follow. ATMC while ξ < D has b = D and
s² = 2T(D − ξ)m hφ(2x) + h²φ² Var G, and stationarity of ξ is P = mT, so that exactly, at any h,

    Var θ = (T/k)(x/2) coth(x/2),   E ξ = [ B/(2mT) + hkx/(4m) ] · (2/x) tanh(x/2),   x = Dh.      (3)

The bias is (Dh)²/12 whatever k, m, T, μ or the gradient noise: second order, as it should be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


def momentum_grid(m: float, c: float, t: float, points: int = 20_001) -> tuple[Array, Array]:
    """Momenta and their probabilities under exp(−K/T), dense and wide enough that sums are exact to 1e-10."""
    # Far out the hyperbolic K grows as c|p|, so that 45 T of energy bounds |p| by either of these.
    width = math.sqrt(2 * 45 * t * m) if math.isinf(c) else math.sqrt(2 * 45 * t * m) + 45 * t / c
    p = np.linspace(-width, width, points)
    weight = np.exp(-kinetic(p, m, c) / t)
    return p, weight / weight.sum()


def kinetic(p: Array, m: float, c: float) -> Array:
    """K(p): p²/2m, or m c² (√(p²/m²c² + 1) − 1)."""
    return p**2 / (2 * m) if math.isinf(c) else m * c**2 * (np.sqrt(p**2 / (m * c) ** 2 + 1) - 1)


def momentum_mean(f: Callable[[Array], Array], m: float, c: float, t: float) -> float:
    """E f(p) under exp(−K/T), by quadrature."""
    p, weight = momentum_grid(m, c, t)
    return float((f(p) * weight).sum())


def draw_momentum(
    shape: torch.Size, m: float, c: float, t: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Momenta from exp(−K/T): scaled normals, or by inverting the distribution function on the grid."""
    if math.isinf(c):
        return math.sqrt(m * t) * torch.randn(shape, generator=generator, dtype=dtype)
    p, weight = momentum_grid(m, c, t)
    u = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
    # Mid-point distribution function: the mass of a cell is half on either side of its centre.
    return torch.from_numpy(np.interp(u, np.cumsum(weight) - weight / 2, p)).to(dtype)


def _phi(x: float) -> float:
    return -math.expm1(-x) / x if x else 1.0


def atmc_harmonic(k: float, h: float, m: float, d: float, t: float, grad_var: float) -> tuple[float, float]:
    """Var θ and E ξ of the fused ATMC step, exactly, as long as ξ stays below D: equation (3)."""
    x = d * h
    return (
        t / k * (x / 2) / math.tanh(x / 2),
        (h * grad_var / (2 * m * t) + h * k * x / (4 * m)) * 2 / x * math.tanh(x / 2),
    )


def sghmc_harmonic(k: float, h: float, m: float, d: float, t: float, grad_var: float) -> tuple[float, float]:
    """Var θ and Var p (after the kick) of the fused SGHMC step, exactly: equations (1) and (2)."""
    x = d * h
    a, g, v = math.exp(-x), h * _phi(x) * k, h / m
    s2 = t * m * (1 - a**2) + (h * _phi(x)) ** 2 * grad_var
    p2 = s2 / (1 - a**2 - g * v * (1 - a) / 2)
    return v * p2 * (1 + a) / (2 * g), p2


def synchronised(p2: float, k: float, h: float, m: float, d: float) -> float:
    """The kinetic temperature that `synchronised_virial` reads under a friction D, exactly, for P = E p².

    It is E[p² − (tanh(x/2)/D) G p]/m with E[G p] = k E[θp] = kvP/2, whatever the noise of G: p comes from before it.
    For SGHMC equation (2) makes it s²/(m(1 − a²)) = T + tanh(x/2) Var G/(mD²), the temperature of the bath and T itself
    where gradients are exact. ATMC holds P at mT, and reads low by h²k/4m, as the force between two half steps asks.
    """
    return p2 / m * (1 - h * k / (2 * m) * math.tanh(d * h / 2) / d)


def sgld_harmonic(k: float, h: float, t: float, grad_var: float) -> float:
    """Var θ of θ ← θ − hG + √(2Th) η, exactly."""
    return (2 * t + h * grad_var) / (k * (2 - h * k))
