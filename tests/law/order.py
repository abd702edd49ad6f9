"""How fast the bias falls with the step: two runs and Fieller's test on their ratio.

With b(h) the bias of a mean, the ratio b(h)/b(h/2) is ρ exactly when b(h) − ρ b(h/2) is zero, which is a z-score. So
"the confidence interval of the ratio contains 4 and excludes 2" needs no division: the z-score for ρ = 4 is small and
the one for ρ = 2 is large.

The second half is free of Monte-Carlo error: the law of the momentum step alone, on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from atmc.samplers.integrator import momentum_step

from .harness import ALARM, SEED, Chain, Estimate, Maker, Settings, combine, run
from .laws import draw_momentum, kinetic


def stiffness(mass: float) -> float:
    """k = 4m: a frequency of 2 whatever the mass, so that one step size suits all."""
    return 4.0 * mass


@dataclass(frozen=True)
class Order:
    """The bias of Var θ, relative, at h and at h/2."""

    at_h: Estimate
    at_half: Estimate

    @property
    def ratio(self) -> float:
        return self.at_h.mean / self.at_half.mean

    def allows(self, ratio: float) -> bool:
        """Whether the ratio lies in the confidence interval of level 1 − ALARM/10.

        Wider than elsewhere: what is left of fourth order may shift z by up to 0.8, which this pays for.
        """
        z = combine((1.0, -ratio), (self.at_h, self.at_half)).z(0.0)
        return abs(z) <= float(stats.norm.isf(ALARM / 20))

    def __str__(self) -> str:
        b, half = self.at_h, self.at_half
        return f"bias {b.mean:.5f} ± {b.se:.5f} at h, {half.mean:.5f} ± {half.se:.5f} at h/2: ratio {self.ratio:.2f}"


def bias(make: Maker, settings: Settings, rows: int, time: float, seed: int) -> Estimate:
    """k⟨θ²⟩/T − 1 on a harmonic target, the chains started in the continuous law."""
    s, k = settings, stiffness(settings.m)
    generator = torch.Generator().manual_seed(60_000 + seed)
    shape = torch.Size((rows, 1))
    theta = math.sqrt(s.t / k) * torch.randn(shape, generator=generator)
    p = draw_momentum(shape, s.m, s.c, s.t, generator, theta.dtype)
    xi = math.sqrt(s.t / s.mu) * torch.randn(shape, generator=generator)
    chain = make(s, theta, p, xi, seed)

    def statistics(chain: Chain) -> Mapping[str, Tensor]:
        return {"bias": chain.theta[:, 0] ** 2 * (k / s.t) - 1}

    return run(chain, lambda x: k * x, round(time / s.h), statistics, round(10 / s.h))["bias"]


def order(make: Maker, settings: Settings, rows: int = 24_576, time: float = 80.0, seed: int = SEED) -> Order:
    """Bias at h and at h/2."""
    return Order(bias(make, settings, rows, time, seed), bias(make, settings.halved(), rows, time, seed + 1))


def momentum_bias(h: float, corrected: bool, m: float = 1.0, d: float = 1.0, c: float = 1.0, t: float = 1.0) -> float:
    """E[mK'² − T mK'']/T under the hyperbolic momentum step's own stationary law, by quadrature: 0 under exp(−K/T).

    It is what drives the thermostat: a bias here becomes a wrong temperature of everything.

    The library's step maps a grid of momenta and of normals to new momenta; their probability is shared out to the four
    nearest grid points by cubic interpolation, which keeps the first three moments, and the chain is run to rest.
    """
    points, normals, width = 601, 301, 14.0 * math.sqrt(m * t)
    p = np.linspace(-width, width, points)
    eta = np.linspace(-6.5, 6.5, normals)
    weight = np.exp(-(eta**2) / 2)
    weight /= weight.sum()
    grid_p, grid_eta = (torch.from_numpy(a) for a in np.meshgrid(p, eta, indexing="ij"))
    new = momentum_step(
        grid_p,
        torch.zeros((), dtype=torch.float64),
        grid_eta,
        d,
        d,
        lr=h,
        mass=m,
        inverse_scale=1 / (m * c) ** 2,
        temperature=t,
        corrected=corrected,
    ).numpy()
    x = np.clip((new + width) / (p[1] - p[0]), 1, points - 3)
    cell = np.floor(x).astype(int)
    f = x - cell
    shares = (
        -f * (f - 1) * (f - 2) / 6,
        (f + 1) * (f - 1) * (f - 2) / 2,
        -(f + 1) * f * (f - 2) / 2,
        (f + 1) * f * (f - 1) / 6,
    )
    start = np.arange(points)[:, None] * points
    transition = np.zeros(points * points)
    for offset, share in zip((-1, 0, 1, 2), shares, strict=True):
        transition += np.bincount((start + cell + offset).ravel(), (share * weight).ravel(), points * points)
    matrix = transition.reshape(points, points)
    law = np.exp(-kinetic(p, m, c) / t)
    for _ in range(math.ceil(math.log2(60 / (d * h)))):  # squaring: a time of 60/D in few products
        matrix = matrix @ matrix
    settled = law @ matrix
    r = (1 + (p / (m * c)) ** 2) ** -0.5
    return float(((r**2 * p**2 / m - t * r**3) * settled).sum() / settled.sum()) / t
