"""Law 2: from far away, a correlated Gaussian is found: mean, covariance, Kullback–Leibler divergence."""

import math

import pytest

from .convergence import convergence
from .harness import Settings
from .makers import real

CASES = [
    Settings(sampler, h=0.2, c=c, t=t, mu=0.3)
    for sampler in ("ATMC", "SGNHT", "SGHMC", "SGLD")
    for c in (math.inf, 1.2)
    for t in (0.1, 1.0, 2.0)
    if not (sampler == "SGLD" and c == 1.2)
]


@pytest.mark.parametrize("settings", CASES, ids=lambda s: f"{s}-T={s.t}")
def test_a_correlated_gaussian_is_found(settings: Settings) -> None:
    verdict, divergence = convergence(real, settings)
    assert verdict.passed, str(verdict)
    assert divergence.passed, divergence
