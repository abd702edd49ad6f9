"""Law 1: chains started in the target law (θ, p and ξ all drawn from it) stay in it."""

import math

import pytest

from .harness import Settings
from .invariance import invariance
from .makers import real

# Mass, temperature and inertia differ from 1 so that a forgotten factor shows. A fifth of the momenta of the
# hyperbolic law are beyond m c, where it is far from Gaussian.
BASE = {"h": 0.1, "m": 2.0, "d": 1.2, "t": 1.5, "mu": 0.5}
CASES = [
    Settings(sampler, c=c, integrator=integrator, **BASE)
    for sampler in ("ATMC", "SGNHT", "SGHMC")
    for c in (math.inf, 0.9)
    for integrator in ("leapfrog", "strang")
] + [Settings("SGLD", **BASE)]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_law_is_left_invariant(settings: Settings) -> None:
    verdict = invariance(real, settings)
    assert verdict.passed, str(verdict)
