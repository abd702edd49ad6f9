"""How a chain begins: ξ = 0 is a value, momenta have their law, and equal seeds elsewhere are no echo of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .harness import SEED, Chain, Estimate, Maker, Settings, Verdict, extrapolate, judge, run
from .laws import atmc_harmonic, draw_momentum


def _first_step(make: Maker, settings: Settings, rows: int, seed: int) -> dict[str, Estimate]:
    generator = torch.Generator().manual_seed(70_000 + seed)
    theta = math.sqrt(settings.t) * torch.randn((rows, 1), generator=generator)
    p = draw_momentum(theta.shape, settings.m, settings.c, settings.t, generator, theta.dtype)
    chain = make(settings, theta, p, seed=seed)

    def statistics(chain: Chain) -> Mapping[str, Tensor]:
        return {"ξ": chain.thermostat[:, 0] * (settings.mu / settings.h)}

    return run(chain, lambda x: x, 1, statistics)


def thermostat_starts_at_zero(make: Maker, settings: Settings, rows: int = 8192, seed: int = SEED) -> Verdict:
    """θ and p in their law and ξ left to its default of 0: after one step its mean is still 0.

    Only for that long: a ξ that starts at one value instead of in its law brings a transient with it, in continuous
    time too. (Averaged over half a time unit it was 0.02 under a hyperbolic K, by the library and by the reference.)
    """
    at_h = _first_step(make, settings, rows, seed)
    at_half = _first_step(make, settings.halved(), rows, seed + 1)
    return judge(extrapolate(at_h, at_half), {"ξ": 0.0})


def global_stream(make: Maker, seed: int, rows: int = 1024) -> Verdict:
    """Gradient noise from `torch.randn` after `torch.manual_seed(seed)`, and a sampler of the same seed.

    Were the streams one, the added noise would be the gradient's: ξ settles elsewhere while Var θ may still look right.
    """
    settings = Settings("ATMC", h=0.15, m=2.0, d=6.0, t=1.5, mu=2.0)
    s, sd = settings, 5.0
    variance, centre = atmc_harmonic(1.0, s.h, s.m, s.d, s.t, sd**2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        chain = make(replace(settings), torch.zeros(rows, 1), seed=seed)

        def statistics(chain: Chain) -> Mapping[str, Tensor]:
            return {"θ²": chain.theta[:, 0] ** 2, "ξ": chain.thermostat[:, 0]}

        averages = run(chain, lambda x: x + sd * torch.randn(x.shape), 700, statistics, drop=700, every=4)
    return judge(averages, {"θ²": variance, "ξ": centre})
