"""Law 8: simulation-based calibration with mini-batch gradients, and Geweke's joint test."""

import math

import pytest

from .calibration import ASIDE, POINTS, calibrate, geweke, variances
from .harness import Settings
from .makers import mutant, real
from .reference import Flaw

MINI_BATCH = {"h": 0.1, "m": 4.0, "d": 2.0}
KINETICS = pytest.mark.parametrize("c", [math.inf, 0.8], ids=["gaussian", "hyperbolic"])


@KINETICS
def test_ranks_are_uniform_with_mini_batches(c: float) -> None:
    """Batches of 4 of 16 examples."""
    ranks = calibrate(real, Settings("ATMC", c=c, **MINI_BATCH))
    assert ranks.passed, ranks


def test_ranks_without_a_thermostat_are_not() -> None:
    """The same data and batches, with the gradient noise left uncorrected. Lighter, or it would heat too little to be
    told apart on every seed (p = 1e-4 once, with m = 4; below 1e-60 with m = 1)."""
    ranks = calibrate(real, Settings("SGHMC", **MINI_BATCH | {"m": 1.0}))
    assert not ranks.passed, ranks


def test_ranks_see_noise_that_is_correlated_between_parameters() -> None:
    """All x on one side of zero: what a thermostat per element cannot correct is seen, and whole batches are right."""
    settings = Settings("ATMC", **MINI_BATCH)
    assert not calibrate(real, settings, design=ASIDE).passed
    ranks = calibrate(real, settings, batch=POINTS, design=ASIDE)
    assert ranks.passed, ranks


def test_correlated_noise_makes_variances_too_small_in_first_order_of_the_step() -> None:
    """Chains are too sure there, and half as much so at half the step."""
    settings = Settings("ATMC", **MINI_BATCH)
    whole, half = (variances(real, s, ASIDE) for s in (settings, settings.halved()))
    for name in whole:
        missing, less = 1 - whole[name].mean, 1 - half[name].mean
        assert missing > 0.15
        assert 1.7 < missing / less < 2.4, (name, whole, half)


def test_ranks_see_an_error_of_the_thermostat() -> None:
    """T for T·mK'' under a hyperbolic K: the posterior comes out too wide."""
    ranks = calibrate(mutant(Flaw.CORRECTION_IS_ONE), Settings("ATMC", c=0.8, **MINI_BATCH))
    assert not ranks.passed, ranks


@KINETICS
@pytest.mark.parametrize("sampler", ["ATMC", "SGNHT", "SGHMC"])
def test_geweke(sampler: str, c: float) -> None:
    verdict = geweke(real, Settings(sampler, h=0.1, m=4.0, d=1.0, c=c))
    assert verdict.passed, str(verdict)


def test_geweke_sees_a_missing_mass() -> None:
    """In SGHMC: a thermostat would repair it, as if it were gradient noise of the other sign, and only ξ would tell."""
    assert not geweke(mutant(Flaw.NO_MASS), Settings("SGHMC", h=0.1, m=4.0, d=1.0), rows=512).passed
