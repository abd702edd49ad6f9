"""The one harness: run many chains as the rows of a tensor, and judge averages by their Monte-Carlo errors.

Rows are independent chains, so the time average of a statistic over one row is one replicate and the scatter over
rows is its standard error, whatever the autocorrelation within a row. A `Verdict` is a list of z-scores; it passes
when none exceeds the two-sided Student quantile at `ALARM` shared equally over the comparisons (Bonferroni), so a
right sampler fails one verdict in ten thousand. There is no tolerance anywhere. Where the step size biases a
statistic, either the exact law of the discrete step is known (`laws.py`) or two runs at h and h/2 are extrapolated,
(4 E(h/2) − E(h))/3, which removes the h² term that theory predicts and costs only a larger standard error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from scipy import stats
from torch import Tensor

ALARM = 1e-4
#: Where all seeds start. `ATMC_LAW_RUN=7 pytest tests/law` runs everything on other random numbers: nothing may hang
#: on a lucky seed.
SEED = 1000 * int(os.environ.get("ATMC_LAW_RUN", "0"))


class Chain(Protocol):
    """What the harness asks of a sampler, real or not: state with one chain per row, and a step."""

    theta: Tensor
    momentum: Tensor
    thermostat: Tensor

    def step(self, gradient: Tensor) -> None: ...


@dataclass(frozen=True)
class Settings:
    """One sampler with all its numbers, in the paper's letters."""

    sampler: str = "ATMC"
    h: float = 0.1
    m: float = 1.0
    d: float = 1.0
    c: float = math.inf
    t: float = 1.0
    mu: float = 1.0
    integrator: str = "leapfrog"

    def halved(self) -> Settings:
        """The same with half the step."""
        return replace(self, h=self.h / 2)

    def __str__(self) -> str:
        kinetic = "gaussian" if math.isinf(self.c) else "hyperbolic"
        return self.sampler if self.sampler == "SGLD" else f"{self.sampler}-{kinetic}-{self.integrator}"


class Maker(Protocol):
    """Builds chains: the library's (`real`), the reference's, or a mutant's."""

    def __call__(
        self,
        settings: Settings,
        theta: Tensor,
        momentum: Tensor | None = None,
        thermostat: Tensor | None = None,
        seed: int = 0,
    ) -> Chain: ...


@dataclass(frozen=True)
class Estimate:
    """A mean over independent replicates, its standard error and the degrees of freedom of the latter."""

    mean: float
    se: float
    df: int

    @staticmethod
    def of(replicates: Tensor) -> Estimate:
        """From one number per replicate."""
        x = replicates.double().flatten()
        return Estimate(x.mean().item(), x.std().item() / math.sqrt(len(x)), len(x) - 1)

    def z(self, expected: float) -> float:
        """Distance from `expected` in standard errors; infinite for anything not a number."""
        z = (self.mean - expected) / self.se if self.se > 0 else math.inf * (self.mean != expected)
        return z if math.isfinite(z) else math.inf


def combine(weights: Sequence[float], estimates: Sequence[Estimate]) -> Estimate:
    """A linear combination of independent estimates."""
    mean = sum(w * e.mean for w, e in zip(weights, estimates, strict=True))
    se = math.sqrt(sum((w * e.se) ** 2 for w, e in zip(weights, estimates, strict=True)))
    return Estimate(mean, se, min(e.df for e in estimates))


def extrapolate(at_h: Mapping[str, Estimate], at_half: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """To h = 0, for a bias of second order."""
    return {name: combine((-1 / 3, 4 / 3), (at_h[name], at_half[name])) for name in at_h}


@dataclass(frozen=True)
class Comparison:
    """One statistic against its expected value."""

    name: str
    estimate: Estimate
    expected: float

    @property
    def z(self) -> float:
        return self.estimate.z(self.expected)


@dataclass(frozen=True)
class Verdict:
    """Comparisons judged together at one false-alarm rate."""

    comparisons: tuple[Comparison, ...]
    alarm: float = ALARM

    def limit(self, df: int) -> float:
        """The |z| that one comparison may reach."""
        return float(stats.t.isf(self.alarm / (2 * len(self.comparisons)), df))

    @property
    def failures(self) -> tuple[Comparison, ...]:
        return tuple(c for c in self.comparisons if not abs(c.z) <= self.limit(c.estimate.df))

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def worst(self) -> float:
        return max(abs(c.z) for c in self.comparisons)

    def __str__(self) -> str:
        rows = [
            f"{c.name:>28} {c.estimate.mean:12.5g} ± {c.estimate.se:9.2g}  expected {c.expected:10.5g}  z {c.z:7.2f}"
            f"{'  <-- beyond ' + format(self.limit(c.estimate.df), '.2f') if c in self.failures else ''}"
            for c in self.comparisons
        ]
        return "\n" + "\n".join(rows)


def judge(estimates: Mapping[str, Estimate], expected: Mapping[str, float], alarm: float = ALARM) -> Verdict:
    """Every expected value against its estimate."""
    return Verdict(tuple(Comparison(name, estimates[name], value) for name, value in expected.items()), alarm)


def join(verdicts: Iterable[Verdict], alarm: float = ALARM) -> Verdict:
    """Several verdicts as one, at one false-alarm rate for all."""
    return Verdict(tuple(c for v in verdicts for c in v.comparisons), alarm)


Gradient = Callable[[Tensor], Tensor]
Statistics = Callable[[Chain], Mapping[str, Tensor]]


def run(
    chain: Chain,
    gradient: Gradient,
    steps: int,
    statistics: Statistics,
    drop: int = 0,
    every: int = 1,
    columns: Sequence[str] = (),
) -> dict[str, Estimate]:
    """Averages over time, row by row, of `steps` steps after `drop` that are not looked at.

    With `columns` a statistic has one for each of them, and an estimate named "statistic column" for each.
    """
    totals: dict[str, Tensor] = {}
    count = 0
    for i in range(drop + steps):
        chain.step(gradient(chain.theta))
        if i >= drop and (i - drop) % every == every - 1:
            count += 1
            for name, value in statistics(chain).items():
                totals[name] = totals[name] + value.double() if name in totals else value.double()
    if not columns:
        return {name: Estimate.of(total / count) for name, total in totals.items()}
    parts = {name: (total / count).unbind(1) for name, total in totals.items()}
    return {f"{name} {c}": Estimate.of(x) for name, xs in parts.items() for c, x in zip(columns, xs, strict=True)}


def noisy(gradient: Gradient, sd: Tensor | float, seed: int) -> Gradient:
    """A gradient with normal noise of its own stream added to it."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(sd, float) and sd == 0:
        return gradient

    def estimate(theta: Tensor) -> Tensor:
        return gradient(theta) + sd * torch.randn(theta.shape, generator=generator, dtype=theta.dtype)

    return estimate
