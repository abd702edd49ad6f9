"""Simulation-based calibration and Geweke's joint test, on Bayesian linear regression.

Calibration: draw θ* from the prior and a data set from θ*, sample the posterior, and count how many draws lie below θ*.
If the sampler has the posterior, that rank is uniform. Every row of one parameter is such a pair, with a data set and
mini-batches of its own. The draws are far enough apart to count as independent.

Geweke: alternate a few steps of the sampler with drawing the data anew given its θ. If the sampler leaves the posterior
invariant for every data set, θ keeps its prior for ever. Nothing need be known about the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from .harness import ALARM, SEED, Chain, Estimate, Gradient, Maker, Settings, Verdict, extrapolate, judge, run

POINTS = 16
# With x around zero the mini-batch noise of intercept and slope is uncorrelated (on average over data sets), as one
# thermostat per element needs it; with x on one side of zero it is correlated.
CENTRED, ASIDE = (torch.stack((torch.ones(POINTS), torch.linspace(x, x + 3, POINTS)), 1) for x in (-1.5, 0.0))
NOISE = 1.0


def simulate(theta: Tensor, generator: torch.Generator, design: Tensor = CENTRED) -> Tensor:
    """A data set per row: y = a + b x + N(0, NOISE²)."""
    return theta @ design.T + NOISE * torch.randn((len(theta), POINTS), generator=generator)


def gradient(y: Tensor, batch: int, generator: torch.Generator, design: Tensor = CENTRED) -> Gradient:
    """∇U for a standard normal prior, from `batch` examples of each row's own data, drawn anew at every call."""
    # Random orders of the examples cut into batches: all batches of an order together have each example once.
    order = torch.rand((1024 if batch < POINTS else 1, POINTS), generator=generator).argsort(1)
    batches = torch.cat([(order // batch == i) * (POINTS / batch) for i in range(POINTS // batch)])

    def estimate(theta: Tensor) -> Tensor:
        residual = theta @ design.T - y
        if batch < POINTS:
            residual = residual * batches[torch.randint(len(batches), (len(y),), generator=generator)]
        return residual @ design / NOISE**2 + theta

    return estimate


@dataclass(frozen=True)
class Ranks:
    """χ² tests of the uniformity of ranks, one per quantity."""

    pvalues: Mapping[str, float]

    @property
    def passed(self) -> bool:
        return all(p > ALARM / len(self.pvalues) for p in self.pvalues.values())


def calibrate(
    make: Maker,
    settings: Settings,
    rows: int = 2500,
    draws: int = 39,
    batch: int = 4,
    seed: int = SEED,
    design: Tensor = CENTRED,
) -> Ranks:
    """Ranks of intercept, slope and a prediction among the draws, in 20 bins."""
    generator = torch.Generator().manual_seed(90_000 + seed)
    truth = torch.randn((rows, 2), generator=generator)
    estimate = gradient(simulate(truth, generator, design), batch, generator, design)
    chain = make(settings, torch.randn((rows, 2), generator=generator), seed=seed)

    def quantities(theta: Tensor) -> Tensor:
        return torch.cat((theta, theta @ torch.tensor([[1.0], [-2.0]])), 1)

    ranks = torch.zeros((rows, 3), dtype=torch.int64)
    gap = round(4 / settings.h)
    for step in range(round(40 / settings.h) + draws * gap):
        chain.step(estimate(chain.theta))
        if step >= round(40 / settings.h) and (step - round(40 / settings.h)) % gap == gap - 1:
            ranks += quantities(chain.theta) < quantities(truth)
    counts = [torch.bincount(ranks[:, j] * 20 // (draws + 1), minlength=20) for j in range(3)]
    return Ranks({name: float(stats.chisquare(c).pvalue) for name, c in zip(("a", "b", "a − 2b"), counts, strict=True)})


def shares(theta: Tensor, y: Tensor, design: Tensor) -> Tensor:
    """Squared distances from each row's posterior mean of a, b and a − 2b, as shares of the posterior's variances."""
    covariance = torch.linalg.inv(torch.eye(2) + design.T @ design / NOISE**2)
    ways = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, -2.0]])
    off = theta - y @ design @ covariance / NOISE**2
    return (off @ ways) ** 2 / (ways * (covariance @ ways)).sum(0)


def variances(
    make: Maker, settings: Settings, design: Tensor, rows: int = 2500, draws: int = 100, seed: int = SEED
) -> dict[str, Estimate]:
    """Variances of intercept, slope and a − 2b in chains with mini-batches of 4, as shares of the posterior's own."""
    generator = torch.Generator().manual_seed(97_000 + seed)
    y = simulate(torch.randn((rows, 2), generator=generator), generator, design)
    estimate = gradient(y, 4, generator, design)
    chain = make(settings, torch.randn((rows, 2), generator=generator), seed=seed)

    def statistics(chain: Chain) -> Mapping[str, Tensor]:
        return {"Var": shares(chain.theta, y, design)}

    gap = round(4 / settings.h)
    return run(chain, estimate, draws * gap, statistics, round(40 / settings.h), gap, ("a", "b", "a − 2b"))


def _alternate(make: Maker, settings: Settings, rows: int, seed: int) -> dict[str, Estimate]:
    generator = torch.Generator().manual_seed(95_000 + seed)
    theta = torch.randn((rows, 2), generator=generator)
    spread = math.sqrt(settings.t / settings.mu)
    p = math.sqrt(settings.m) * torch.randn(theta.shape, generator=generator)
    chain: Chain = make(settings, theta, p, spread * torch.randn(theta.shape, generator=generator), seed)
    totals = torch.zeros((rows, 4), dtype=torch.float64)
    sweeps = 120
    for _ in range(sweeps):
        estimate = gradient(simulate(chain.theta, generator), POINTS, generator)
        for _ in range(round(0.8 / settings.h)):
            chain.step(estimate(chain.theta))
        totals += torch.cat((chain.theta, chain.theta**2), 1)
    names = ("a", "b", "a²", "b²")
    return {name: Estimate.of(totals[:, j] / sweeps) for j, name in enumerate(names)}


def geweke(make: Maker, settings: Settings, rows: int = 2048, seed: int = SEED) -> Verdict:
    """Moments of the prior after many rounds of sampling and simulating, extrapolated from h and h/2."""
    at_h, at_half = _alternate(make, settings, rows, seed), _alternate(make, settings.halved(), rows, seed + 1)
    return judge(extrapolate(at_h, at_half), {"a": 0.0, "b": 0.0, "a²": 1.0, "b²": 1.0})
