"""Law 2: from far away, a correlated Gaussian is found: mean, covariance, Kullback–Leibler divergence."""

import math

import pytest

from .convergence import convergence
from .harness import Settings
from .makers import mutant, real
from .reference import Flaw

CASES = [
    Settings(sampler, h=0.2, m=2.0, c=c, t=t, mu=0.3)
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


@pytest.mark.parametrize(
    ("flaw", "settings"),
    [
        (Flaw.NO_MASS, Settings("SGHMC", h=0.2, m=2.0, t=2.0)),
        (Flaw.FULL_FRICTION, Settings("SGHMC", h=0.2, m=2.0, c=1.2, t=2.0)),
        (Flaw.NO_TEMPERATURE, Settings("ATMC", h=0.2, m=2.0, t=2.0, mu=0.3)),
    ],
    ids=lambda value: value.name if isinstance(value, Flaw) else "",
)
def test_an_error_is_caught(flaw: Flaw, settings: Settings) -> None:
    """With a quarter of the chains, on which the unbroken sampler passes. A missing mass is given to SGHMC: a
    thermostat repairs it, and only its ξ, which is not compared here, would tell."""
    verdict, divergence = convergence(real, settings, rows=512)
    assert verdict.passed, str(verdict)
    assert divergence.passed, divergence
    verdict, divergence = convergence(mutant(flaw), settings, rows=512)
    assert not verdict.passed
    assert not divergence.passed
