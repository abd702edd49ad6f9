"""Started in the law it is meant to leave invariant, does a sampler stay in it?

θ, p and ξ are drawn from exp(−[U + K + (μ/2)(ξ − ξ̄)²]/T), on harmonic targets of several stiffnesses under several
levels of gradient noise (each column of the parameter is one pair), and followed for many periods. Mass, temperature
and inertia all differ from 1, so that a factor forgotten anywhere shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .harness import SEED, Chain, Estimate, Maker, Settings, Verdict, extrapolate, judge, noisy, run
from .laws import draw_momentum, momentum_mean, sgld_harmonic

STIFFNESS = torch.tensor([0.5, 2.0, 0.5, 2.0])
#: Gradient noise per unit time, B = h Var G.
NOISE = torch.tensor([0.0, 0.0, 0.9, 2.5])


def _statistics(settings: Settings, with_noise: bool) -> dict[str, float]:
    """What the law says: moments of θ/σ, of the momentum, and of (ξ − ξ̄)√(μ/T)."""
    m, c, t = settings.m, settings.c, settings.t
    expected = {"θ": 0.0, "θ²": 1.0, "θ⁴": 3.0}
    if settings.sampler != "SGLD":
        expected |= {"pK'": t, "mK'²": momentum_mean(lambda p: _slow(p, m, c) ** 2 * p**2 / m, m, c, t)}
    if settings.sampler in ("ATMC", "SGNHT"):
        expected |= {"ξ": 0.0, "ξ²": 1.0, "θ²ξ": 0.0}
    return {f"{name} [{j}]": value for name, value in expected.items() for j in range(len(NOISE) if with_noise else 2)}


def _slow(p: object, m: float, c: float) -> object:
    return 1.0 if math.isinf(c) else (1 + (p / (m * c)) ** 2) ** -0.5  # type: ignore[operator]


def follow(make: Maker, settings: Settings, rows: int, time: float, seed: int, with_noise: bool) -> dict[str, Estimate]:
    """Averages along chains started in the law."""
    columns = len(NOISE) if with_noise else 2
    k, b = STIFFNESS[:columns], NOISE[:columns]
    generator = torch.Generator().manual_seed(1000 + seed)
    sigma, spread = (settings.t / k).sqrt(), math.sqrt(settings.t / settings.mu)
    if settings.sampler == "SGLD":  # of first order only, but its discrete law is known
        sigma = torch.tensor([sgld_harmonic(float(stiffness), settings.h, settings.t, 0.0) for stiffness in k]).sqrt()
    centre = b / (2 * settings.m * settings.t)
    shape = torch.Size((rows, columns))
    theta = sigma * torch.randn(shape, generator=generator)
    p = draw_momentum(shape, settings.m, settings.c, settings.t, generator, theta.dtype)
    xi = centre + spread * torch.randn(shape, generator=generator)
    chain = make(settings, theta, p, xi, seed)

    def statistics(chain: Chain) -> Mapping[str, Tensor]:
        z2 = (chain.theta / sigma) ** 2
        values = {"θ": chain.theta / sigma, "θ²": z2, "θ⁴": z2**2}
        if settings.sampler != "SGLD":
            pp, r = chain.momentum, _slow(chain.momentum, settings.m, settings.c)
            values |= {"pK'": pp**2 * r / settings.m, "mK'²": pp**2 * r**2 / settings.m}  # type: ignore[operator]
        if settings.sampler in ("ATMC", "SGNHT"):
            x = (chain.thermostat - centre) / spread
            values |= {"ξ": x, "ξ²": x**2, "θ²ξ": (z2 - 1) * x}
        return values

    return run(
        chain,
        noisy(lambda th: k * th, (b / settings.h).sqrt(), 5000 + seed),
        round(time / settings.h),
        statistics,
        every=4,
        columns=[f"[{j}]" for j in range(columns)],
    )


def invariance(make: Maker, settings: Settings, rows: int = 4096, time: float = 20.0, seed: int = SEED) -> Verdict:
    """The law at h and at h/2, extrapolated, against theory; for SGLD the exact law at h."""
    # Without a thermostat gradient noise is not corrected: that has a test of its own.
    with_noise = settings.sampler in ("ATMC", "SGNHT")
    coarse = follow(make, settings, rows, time, seed, with_noise)
    if settings.sampler == "SGLD":
        return judge(coarse, _statistics(settings, with_noise))
    fine = follow(make, settings.halved(), rows, time, seed + 1, with_noise)
    return judge(extrapolate(coarse, fine), _statistics(settings, with_noise))
