"""From far away to a correlated Gaussian: mean, covariance and Kullback–Leibler divergence.

Chains start six standard deviations out in every principal direction, with the sampler's own defaults for p and ξ.
After a burn-in, first and second moments in whitened coordinates are averaged over time; the states at the very end,
one per chain and so independent, give the divergence of the fitted Gaussian from the target, and 2n·KL of n draws from
the target itself is χ² with d + d(d + 1)/2 degrees of freedom as n grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from .harness import ALARM, SEED, Chain, Estimate, Gradient, Maker, Settings, Verdict, extrapolate, judge, run

MEAN = torch.tensor([1.0, -2.0, 0.5])
COVARIANCE = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.5, -0.6], [0.0, -0.6, 2.0]])
PRECISION = torch.linalg.inv(COVARIANCE.double()).float()


def gradient(theta: Tensor) -> Tensor:
    """∇U of U = (θ − mean)ᵀ P (θ − mean)/2, row by row; at temperature T the law has covariance T · P⁻¹."""
    return (theta - MEAN) @ PRECISION


def law_covariance(settings: Settings) -> Tensor:
    """T P⁻¹, or for SGLD, whose bias is of first order, the exact T (P − hP²/2)⁻¹ of its discrete step."""
    if settings.sampler != "SGLD":
        return settings.t * COVARIANCE.double()
    p = PRECISION.double()
    return settings.t * torch.linalg.inv(p - settings.h * p @ p / 2)


@dataclass(frozen=True)
class Divergence:
    """KL of the fitted Gaussian from the target, and the value that a right sampler exceeds once in 1/ALARM times."""

    kl: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.kl <= self.limit


def divergence(draws: Tensor, covariance: Tensor) -> Divergence:
    """KL(N(sample mean, sample covariance) ‖ N(MEAN, covariance)) of independent rows."""
    n, d = draws.shape
    x = draws.double()
    precision = torch.linalg.inv(covariance)
    shift = x.mean(0) - MEAN.double()
    ratio = torch.cov(x.T) @ precision
    kl = 0.5 * (ratio.trace() - d - torch.logdet(ratio) + shift @ precision @ shift).item()
    return Divergence(kl if kl == kl else float("inf"), float(stats.chi2.isf(ALARM, d + d * (d + 1) // 2)) / (2 * n))


def _travel(
    make: Maker, settings: Settings, target: Gradient, rows: int, burn_in: float, time: float, seed: int
) -> tuple[dict[str, Estimate], Divergence]:
    covariance = law_covariance(settings)
    whiten = torch.linalg.inv(torch.linalg.cholesky(covariance)).float().T
    generator = torch.Generator().manual_seed(2000 + seed)
    far = MEAN + 6 * torch.randn(rows, 3, generator=generator).sign() @ torch.linalg.cholesky(covariance).float().T
    chain = make(settings, far, seed=seed)

    def moments(chain: Chain) -> Mapping[str, Tensor]:
        w = (chain.theta - MEAN) @ whiten
        pairs = {f"w{i}w{j}": w[:, i] * w[:, j] for i in range(3) for j in range(i + 1)}
        return {f"w{i}": w[:, i] for i in range(3)} | pairs

    every = max(1, round(0.5 / settings.h))
    averages = run(chain, target, round(time / settings.h), moments, round(burn_in / settings.h), every)
    return averages, divergence(chain.theta.detach(), covariance)


def convergence(
    make: Maker, settings: Settings, rows: int = 2048, burn_in: float = 80.0, time: float = 40.0, seed: int = SEED
) -> tuple[Verdict, Divergence]:
    """Moments extrapolated from h and h/2, and the divergence at the end of the finer run."""
    expected = {f"w{i}": 0.0 for i in range(3)} | {f"w{i}w{j}": float(i == j) for i in range(3) for j in range(i + 1)}
    fine = settings.halved()
    at_half, kl = _travel(make, fine, gradient, rows, burn_in, time, seed + 1)
    if settings.sampler == "SGLD":
        return judge(at_half, expected), kl
    at_h, _ = _travel(make, settings, gradient, rows, burn_in, time, seed)
    return judge(extrapolate(at_h, at_half), expected), kl
