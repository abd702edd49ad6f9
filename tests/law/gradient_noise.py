"""Noisy gradients: a thermostat must find B/(2mT) by itself and keep the θ-law; what has none must be off as predicted.

The columns of one parameter are harmonic targets, each with its own level of noise, in four patterns: none, the same
everywhere, variances that span a factor of 600, and, `per element`, a level of its own for every single chain. For
ATMC with a Gaussian K and ξ below D the discrete step's law is known exactly (`laws.py`, equation 3), and so it is for
SGHMC and SGLD: nothing is extrapolated there. Where something is, B = h Var G is held while h is halved, for then
theory has even powers of h only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .harness import SEED, Chain, Estimate, Maker, Settings, Verdict, extrapolate, judge, noisy, run
from .laws import atmc_harmonic, sghmc_harmonic, sgld_harmonic

ROWS = 1024
#: Pattern, noise per unit time B = h Var G (None: one of its own for each chain) and stiffness k of every column.
COLUMNS = (
    ("none", 0.0, 2.0),
    ("isotropic", 6.0, 0.5),
    ("isotropic", 6.0, 2.0),
    ("anisotropic", 12.0, 0.5),
    ("anisotropic", 1.0, 2.0),
    ("anisotropic", 0.02, 4.0),
    ("per element", None, 1.0),
    ("per element", None, 4.0),
)
STIFFNESS = torch.tensor([k for *_, k in COLUMNS])
NAMES = [f"{pattern} B={b} k={k:g}" for pattern, b, k in COLUMNS]


def noise() -> Tensor:
    """B, [rows, columns]."""
    b = torch.tensor([level or 0.0 for _, level, _ in COLUMNS]).repeat(ROWS, 1)
    # Log-uniform between the two extremes of the anisotropic pattern.
    spread = torch.rand((ROWS, len(COLUMNS)), generator=torch.Generator().manual_seed(7))
    own = torch.tensor([level is None for _, level, _ in COLUMNS])
    return torch.where(own, 0.02 * (12 / 0.02) ** spread, b)


def average(make: Maker, settings: Settings, burn_in: float, time: float, seed: int) -> dict[str, Estimate]:
    """Second moments of θ over Bayes' T/k, ξ minus its theoretical centre, and its spread; from θ = p = ξ = 0."""
    variance = settings.t / STIFFNESS
    b = noise()
    centre = b / (2 * settings.m * settings.t)
    chain = make(settings, torch.zeros(ROWS, len(COLUMNS)), seed=seed)
    thermostat = settings.sampler in ("ATMC", "SGNHT")

    def statistics(chain: Chain) -> Mapping[str, Tensor]:
        values = {"θ²": chain.theta**2 / variance}
        if thermostat:
            off = chain.thermostat - centre
            values |= {"ξ": off, "ξ²": off**2 * settings.mu / settings.t}
        return values

    gradient = noisy(lambda theta: STIFFNESS * theta, (b / settings.h).sqrt(), 9000 + seed)
    steps, drop = round(time / settings.h), round(burn_in / settings.h)
    return run(chain, gradient, steps, statistics, drop, every=max(1, round(0.4 / settings.h)), columns=NAMES)


def thermostat_exact(make: Maker, settings: Settings, seed: int = SEED) -> Verdict:
    """ATMC, Gaussian K, D well above every ξ: the exact law of the discrete step, at a step that is not small."""
    s, b = settings, noise()
    expected = {}
    for j, (name, k) in enumerate(zip(NAMES, STIFFNESS.tolist(), strict=True)):
        variances = (b[:, j] / s.h).tolist()
        laws = [atmc_harmonic(k, s.h, s.m, s.d, s.t, v) for v in variances]
        shifts = [xi - s.h * v / (2 * s.m * s.t) for (_, xi), v in zip(laws, variances, strict=True)]
        expected |= {f"θ² {name}": laws[0][0] * k / s.t, f"ξ {name}": sum(shifts) / len(shifts)}
    return judge(average(make, s, 120.0, 150.0, seed), expected)


def thermostat(
    make: Maker, settings: Settings, seed: int = SEED, burn_in: float = 80.0, time: float = 100.0
) -> Verdict:
    """Any thermostat and K: the continuous law, extrapolated from h and h/2."""
    at_h = average(make, settings, burn_in, time, seed)
    at_half = average(make, settings.halved(), burn_in, time, seed + 1)
    return judge(extrapolate(at_h, at_half), {f"{key} {n}": v for key, v in _LAW.items() for n in NAMES})


_LAW = {"θ²": 1.0, "ξ": 0.0, "ξ²": 1.0}


def without_thermostat(make: Maker, settings: Settings, seed: int = SEED) -> tuple[Verdict, Verdict]:
    """SGHMC or SGLD: judged by the biased law that theory predicts, and by the posterior they are meant to have."""
    s = settings
    # Each chain of the last two columns has noise of its own: the mean over rows is what is predicted.
    level = (noise() / s.h).T.tolist()
    estimates = average(make, s, 60.0, 120.0, seed)
    biased = {}
    for j, (name, k) in enumerate(zip(NAMES, STIFFNESS.tolist(), strict=True)):
        if s.sampler == "SGLD":
            variances = [sgld_harmonic(k, s.h, s.t, v) for v in level[j]]
        elif math.isinf(s.c):
            variances = [sghmc_harmonic(k, s.h, s.m, s.d, s.t, v)[0] for v in level[j]]
        else:
            # A hyperbolic K under extra noise is in equilibrium too, at T + B/(2mD).
            variances = [(s.t + s.h * v / (2 * s.m * s.d)) / k for v in level[j]]
        biased[f"θ² {name}"] = sum(variances) / ROWS * k / s.t
    if s.sampler == "SGHMC" and not math.isinf(s.c):
        # Here the law of the discrete step is not known.
        estimates = extrapolate(estimates, average(make, s.halved(), 60.0, 120.0, seed + 1))
    return judge(estimates, biased), judge(estimates, dict.fromkeys(biased, 1.0))
