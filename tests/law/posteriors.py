"""Posteriors without a Gaussian shape, and what quadrature on a grid says of them.

Each `Target` has a row-by-row gradient, a set of statistics that see its shape, and their expectations, computed from
the same potential by summing over a grid that is fine and wide enough for ten digits. The logistic regression's
gradient comes from real mini-batches: every chain draws its own half of the examples at every step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .harness import SEED, Chain, Estimate, Gradient, Maker, Settings, Verdict, combine, judge, run


@dataclass(frozen=True)
class Target:
    """A posterior small enough to be summed over."""

    name: str
    potential: Callable[[Tensor], Tensor]  # [n, d] → [n]
    gradient: Callable[[int], Gradient]  # seed → (estimate of) ∇U, row by row
    statistics: Callable[[Tensor], Mapping[str, Tensor]]  # [n, d] → name → [n]
    width: float
    dimension: int

    @functools.cache  # noqa: B019 - a handful of targets, summed once for all the samplers that are held against them
    def expectations(self, temperature: float) -> dict[str, float]:
        """E f under exp(−U/T), summed over a grid."""
        points = 40_001 if self.dimension == 1 else 801
        axis = torch.linspace(-self.width, self.width, points, dtype=torch.float64)
        grid = torch.cartesian_prod(*[axis] * self.dimension).reshape(-1, self.dimension)
        u = self.potential(grid) / temperature
        weight = torch.softmax(-u, 0)
        return {name: float((value * weight).sum()) for name, value in self.statistics(grid).items()}


def exact(gradient: Gradient) -> Callable[[int], Gradient]:
    """A gradient without noise, whatever the seed."""
    return lambda _: gradient


def double_well() -> Target:
    """U = (θ² − 2)²/2.5 + θ/4: two unequal wells and a barrier of 1.6 between them."""
    return Target(
        "double well",
        lambda x: ((x**2 - 2) ** 2 / 2.5 + x / 4).sum(-1),
        exact(lambda x: 4 * x * (x**2 - 2) / 2.5 + 0.25),
        lambda x: {"θ": x[:, 0], "θ²": x[:, 0] ** 2, "θ⁴": x[:, 0] ** 4, "right": torch.sigmoid(8 * x[:, 0])},
        width=6.0,
        dimension=1,
    )


def banana() -> Target:
    """U = x²/2 + (y − (x² − 1)/2)²/(2·0.4): bent, and skewed in y."""

    def gradient(theta: Tensor) -> Tensor:
        x, y = theta[:, 0], theta[:, 1]
        off = (y - (x**2 - 1) / 2) / 0.4
        return torch.stack((x - off * x, off), 1)

    def statistics(theta: Tensor) -> Mapping[str, Tensor]:
        x, y = theta[:, 0], theta[:, 1]
        return {"x": x, "y": y, "x²": x**2, "y²": y**2, "x²y": x**2 * y, "high": torch.sigmoid(4 * (y - 1))}

    def potential(theta: Tensor) -> Tensor:
        return theta[:, 0] ** 2 / 2 + (theta[:, 1] - (theta[:, 0] ** 2 - 1) / 2) ** 2 / 0.8

    return Target("banana", potential, exact(gradient), statistics, width=34.0, dimension=2)


@functools.cache  # the same target each time, so that its expectations are summed once
def logistic_regression(symmetric: bool, examples: int = 40) -> Target:
    """Intercept and slope of a logistic regression with N(0, 2²) priors, few data, and mini-batches of half of them.

    A thermostat per element corrects gradient noise that is uncorrelated between parameters. In the symmetric data set
    (x, y) and (−x, 1 − y) come in pairs and the noise is so at the mode; in the other one its correlation is 0.5, and
    theory leaves a bias of order h.
    """
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(examples, generator=generator)
    labels = torch.bernoulli(torch.sigmoid(1.5 * x - 1), generator=generator)
    if symmetric:
        x = torch.cat((x[::2], -x[::2]))
        labels = torch.bernoulli(torch.sigmoid(1.5 * x[: examples // 2]), generator=generator)
        labels = torch.cat((labels, 1 - labels))
    design = torch.stack((torch.ones(examples), x), 1)
    # Random halves, each with its complement, so that drawing one of them is unbiased to the last digit.
    half = (torch.rand((1024, examples), generator=generator).argsort(1) < examples // 2).float()
    batches = torch.cat((half, 1 - half))

    def potential(theta: Tensor) -> Tensor:
        logits = theta @ design.to(theta.dtype).T
        nll = torch.nn.functional.softplus(logits) - labels.to(theta.dtype) * logits
        return nll.sum(1) + (theta**2).sum(1) / 8

    def gradient(seed: int) -> Gradient:
        rng = torch.Generator().manual_seed(30_000 + seed)

        def estimate(theta: Tensor) -> Tensor:
            mine = batches[torch.randint(len(batches), (len(theta),), generator=rng)]  # every chain its own
            residual = torch.sigmoid(theta @ design.T) - labels
            return 2 * (mine * residual) @ design + theta / 4

        return estimate

    def statistics(theta: Tensor) -> Mapping[str, Tensor]:
        a, b = theta[:, 0], theta[:, 1]
        predictive = torch.sigmoid(a + 2 * b)
        return {"a": a, "b": b, "a²": a**2, "b²": b**2, "ab": a * b, "b³": b**3, "p(y=1|x=2)": predictive}

    return Target("logistic regression", potential, gradient, statistics, width=9.0, dimension=2)


def sample(
    make: Maker, settings: Settings, target: Target, rows: int, burn_in: float, time: float, seed: int
) -> dict[str, Estimate]:
    """Averages of the target's statistics over time, from the origin."""
    generator = torch.Generator().manual_seed(40_000 + seed)
    chain = make(settings, torch.randn(rows, target.dimension, generator=generator), seed=seed)

    def statistics(chain: Chain) -> Mapping[str, Tensor]:
        return target.statistics(chain.theta)

    every = max(1, round(0.4 / settings.h))
    steps, drop = round(time / settings.h), round(burn_in / settings.h)
    return run(chain, target.gradient(seed), steps, statistics, drop, every)


def against_quadrature(
    make: Maker,
    settings: Settings,
    target: Target,
    rows: int = 512,
    burn_in: float = 25.0,
    time: float = 60.0,
    seed: int = SEED,
    first_order: bool = False,
) -> Verdict:
    """The posterior's expectations, extrapolated from h and h/2: (4 E(h/2) − E(h))/3, or 2 E(h/2) − E(h)."""
    at_h = sample(make, settings, target, rows, burn_in, time, seed)
    at_half = sample(make, settings.halved(), target, rows, burn_in, time, seed + 1)
    weights = (-1.0, 2.0) if first_order else (-1 / 3, 4 / 3)
    estimates = {name: combine(weights, (at_h[name], at_half[name])) for name in at_h}
    return judge(estimates, target.expectations(settings.t))
