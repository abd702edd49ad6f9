"""The radius of a direction: the one-dimensional law behind the Direction prior, in float64 and stable for any d.

In d dimensions p(φ) ∝ exp(−(d/2)(‖φ‖² − 1)²) has the normaliser Z = S ∫₀^∞ r^(d−1) exp(−(d/2)(r² − 1)²) dr with
S = 2π^(d/2)/Γ(d/2) the area of the unit sphere. With r = e^t the integral becomes ∫ exp(d·f(t)) dt over the whole line,

    f(t) = t − ½ (e^(2t) − 1)²,      greatest at e^(2t) = (1 + √3)/2 for **every** d.

(It is also a parabolic cylinder function of order −d/2, which overflows long before the d of a real layer.) The
integrand is analytic and falls off on both sides, so the trapezoid rule on a window that holds all but e⁻⁵⁰ of it
converges geometrically, and all is relative to the peak, in log space: no overflow, no cancellation, one pass per d.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Nodes of the trapezoid rule. 4,001 already gives machine precision; the draws interpolate between nodes.
_NODES = 16_001
#: The window ends where the integrand is e⁻⁵⁰ of its peak.
_DROP = 50.0
#: Where f is greatest, whatever the dimension, and f there.
_PEAK = 0.5 * math.log((1.0 + math.sqrt(3.0)) / 2.0)
#: The radius around which a high-dimensional direction concentrates, √1.366 = 1.169 (not 1: volume pushes outwards).
TYPICAL_RADIUS = math.exp(_PEAK)


def _f(t: float) -> float:
    return t - 0.5 * math.expm1(2.0 * t) ** 2


def _edge(d: int, sign: int) -> float:
    """The t on one side of the peak where d·f has fallen by `_DROP`: double outwards, then bisect."""
    target = _f(_PEAK) - _DROP / d
    step = 1e-3
    while _f(_PEAK + sign * step) > target:
        step *= 2.0
    low, high = step / 2.0, step
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _f(_PEAK + sign * middle) > target else (low, middle)
    return _PEAK + sign * high


def _nodes(d: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes t and exp(d·(f(t) − f(peak))) there."""
    t = np.linspace(_edge(d, -1), _edge(d, +1), _NODES)
    return t, np.exp(d * (t - 0.5 * np.expm1(2.0 * t) ** 2 - _f(_PEAK)))


@cache
def log_normaliser(d: int) -> float:
    """log of ∫ exp(−(d/2)(‖φ‖² − 1)²) dφ over R^d."""
    t, weight = _nodes(d)
    log_area = math.log(2.0) + 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d)
    integral = float(weight.sum()) * float(t[1] - t[0])
    return log_area + d * _f(_PEAK) + math.log(integral)


@lru_cache(maxsize=64)
def _quantile_table(d: int) -> tuple[Tensor, Tensor]:
    """Distribution function of t = log radius at the nodes, by the trapezoid rule."""
    t, weight = _nodes(d)
    mass = np.concatenate(([0.0], np.cumsum(0.5 * (weight[1:] + weight[:-1]))))
    return torch.from_numpy(mass / mass[-1]), torch.from_numpy(t)


def radius_from_uniform(u: Tensor, d: int) -> Tensor:
    """Radii of the prior from uniforms (float64): the inverse distribution function, linear between the nodes.

    The law drawn from differs from the exact one by at most about 1e-6 in distribution function.
    """
    cdf, t = (table.to(u.device) for table in _quantile_table(d))
    right = torch.searchsorted(cdf, u.contiguous()).clamp_(1, cdf.numel() - 1)
    left = right - 1
    part = (u - cdf[left]) / (cdf[right] - cdf[left]).clamp_min(1e-300)
    return torch.exp(t[left] + part.clamp(0.0, 1.0) * (t[right] - t[left]))
