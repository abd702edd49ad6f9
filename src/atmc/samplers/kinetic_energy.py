"""Kinetic energies.

| | Gaussian (c = ∞) | hyperbolic, with r = (1 + p²/m²c²)^(−1/2) |
| --- | --- | --- |
| K(p) | p²/2m | m c² (√(1 + p²/m²c²) − 1) |
| K'(p) | p/m | r p/m, so that no parameter moves faster than c |
| m K''(p) | 1 | r³ |

Both are the hyperbolic one: c = ∞ gives r = 1, as a plain number, so the Gaussian case costs nothing extra.
At temperature T the momentum's law is exp(−K(p)/T), and ⟨p K'(p)⟩ = T whatever K is: that is what the kinetic
temperature measures.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atmc.samplers.tensor_list import rsqrt


def inverse_momentum_scale(mass: Any, speed_limit: float) -> Any:
    """1/(m c)², the one number by which the hyperbolic law differs from the Gaussian one (0 for c = ∞)."""
    if math.isinf(speed_limit):
        return 0.0
    scaled = mass * speed_limit
    return 1.0 / (scaled * scaled)


def least_friction(group: dict[str, Any]) -> Any:
    """D of a group at this step: its `friction` or, where a scheduler sets `momentum`, the D with e^(−D h) = momentum.

    The invariant density does not depend on D, so D may change from step to step. With a step size on a GPU it is a
    tensor there.
    """
    momentum, lr = group.get("momentum"), group["lr"]
    if momentum is not None and isinstance(lr, Tensor) and lr.device.type != "cpu":
        return (0.0 - math.log(momentum)) / lr
    if momentum is None or not float(lr) > 0.0:
        friction: float = group["friction"]
        return friction
    return (0.0 - math.log(momentum)) / float(lr)


def thermostat_weight(group: dict[str, Any]) -> Any:
    """(h/h₀)(T₀/T) of a group at this step, at most 1: the factor from its thermostat ζ, stated for h₀ and T₀, to ξ.

    1 without h₀ or a thermostat. A device tensor where the step size or the temperature is one. The increment of ζ has
    the same factor, so a factor w > 1 would make the thermostat w² times lighter, and unstable below zero. At T = 0 it
    is 0: the thermostat keeps its value, and the step is that of SGD with momentum.
    """
    reference, warm = group.get("reference_lr"), group.get("reference_temperature")
    if reference is None:
        return 1.0
    lr, temperature = group["lr"], group["temperature"]
    now, full = (lr, reference) if warm is None else (lr * warm, temperature * reference)
    weight: Any
    if isinstance(now, Tensor) or isinstance(full, Tensor):
        weight = torch.where(torch.as_tensor(full > now), now / full, 1.0)
    else:
        weight = now / full if full > now else 1.0
    if isinstance(temperature, Tensor):
        return weight * (temperature > 0).double()  # of no dimension: parameters keep their own precision
    return weight if temperature > 0 else 0.0


def slowing(p: Any, inverse_scale: Any) -> Any:
    """r(p) = (1 + p²/m²c²)^(−1/2), by which the speed limit slows a momentum; 1.0 for a Gaussian K."""
    if isinstance(inverse_scale, float) and inverse_scale == 0.0:
        return 1.0
    return rsqrt(p * p * inverse_scale + 1.0)


def sample_momentum(
    like: Tensor, mass: Any, speed_limit: float, temperature: float, rng: np.random.Generator
) -> Tensor:
    """Momenta drawn exactly from exp(−K(p)/T), shaped like `like`; all zero at T = 0."""
    shape = tuple(like.shape)
    m = mass.double().cpu().numpy() if isinstance(mass, Tensor) else np.float64(mass)
    if temperature == 0.0:
        return torch.zeros(shape, dtype=torch.float64)
    if math.isinf(speed_limit):
        return torch.from_numpy(np.asarray(rng.standard_normal(shape) * np.sqrt(temperature * m)))
    a = np.broadcast_to(m * speed_limit**2 / temperature, shape)
    return torch.from_numpy(np.asarray(_hyperbolic(a, rng) * (m * speed_limit)))


def _hyperbolic(a: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draws x from exp(−a(√(1 + x²) − 1)) by the ratio of uniforms, for any a > 0 and without tables.

    (u, v) uniform on {0 < u ≤ √f(v/u)} makes v/u a draw from f. The region lies in (0, 1] × [−v*, v*] with
    v* = max |x| √f(x), reached where a x² = 2√(1 + x²).
    """
    flat = np.ascontiguousarray(a).reshape(-1)
    y_excess = (1.0 + 1.0 / (flat + np.sqrt(1.0 + flat * flat))) / flat  # y − 1 for y = (1 + √(1 + a²))/a
    bound = np.sqrt(y_excess * (2.0 + y_excess) * np.exp(-flat * y_excess))
    out = np.empty(flat.size)
    todo = np.arange(flat.size)
    while todo.size:
        u = 1.0 - rng.random(todo.size)  # in (0, 1]
        x = bound[todo] * (2.0 * rng.random(todo.size) - 1.0) / u
        excess = x * x / (1.0 + np.hypot(1.0, x))  # √(1 + x²) − 1 without cancellation
        accepted = 2.0 * np.log(u) <= -flat[todo] * excess
        out[todo[accepted]] = x[accepted]
        todo = todo[~accepted]
    return out.reshape(a.shape)


@lru_cache(maxsize=256)
def degrees_per_element(stiffness: float) -> float:
    """How many χ² degrees of freedom one momentum element is worth in a kinetic-temperature reading.

    `stiffness` is a = m c²/T. With g = p K'(p)/T = a x²/√(1 + x²), E g = 1 for every law and Var g = 2 for the Gaussian
    one; an element counts as 2/Var g degrees. It tends to 1 as a → ∞ and to 2 as a → 0, where p is Laplace.
    """
    if stiffness > 1e8:  # Gaussian to every digit
        return 1.0
    x_max = math.sqrt((1.0 + 60.0 / stiffness) ** 2 - 1.0)
    x = np.linspace(0.0, x_max, 200_001)
    root = np.hypot(1.0, x)
    weight = np.exp(-stiffness * (root - 1.0))
    g = stiffness * x * x / root
    total = np.trapezoid(weight, x)
    mean = np.trapezoid(weight * g, x) / total
    variance = np.trapezoid(weight * g * g, x) / total - mean * mean
    return float(2.0 / variance)


def light_inertia(friction: float, temperature: float) -> float:
    """μ = T/(D/3)², with which ξ spreads over a third of D and follows gradient noise within hundreds of steps.

    A heavier thermostat is slower in proportion: the paper's μ = 1 is, at D = 100, a thousand times as heavy, and with
    noisy gradients the chain stays above the target temperature. At most 1; 1 without D; at T = 0 that of T = 1.
    """
    return min(1.0, (temperature or 1.0) / (friction / 3.0) ** 2) if friction > 0.0 else 1.0
