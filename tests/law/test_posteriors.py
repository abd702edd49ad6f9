"""Law 5: posteriors without a Gaussian shape, against quadrature on a grid."""

import math

import pytest

from .harness import Settings
from .makers import mutant, real
from .posteriors import Target, against_quadrature, banana, double_well, logistic_regression
from .reference import Flaw

BASE = {"m": 2.0, "t": 1.5}
MINI_BATCH = {"m": 0.7, "t": 1.5}  # lighter: with mT = 1 gradient noise still weighs enough to be seen
KINETICS = pytest.mark.parametrize("c", [math.inf, 1.2], ids=["gaussian", "hyperbolic"])


@KINETICS
@pytest.mark.parametrize("sampler", ["ATMC", "SGNHT", "SGHMC"])
@pytest.mark.parametrize("target", [double_well(), banana()], ids=lambda target: target.name)
def test_shape(target: Target, sampler: str, c: float) -> None:
    verdict = against_quadrature(real, Settings(sampler, h=0.2, c=c, **BASE), target)
    assert verdict.passed, str(verdict)


@KINETICS
@pytest.mark.parametrize("sampler", ["ATMC", "SGNHT"])
def test_logistic_regression_by_mini_batches(sampler: str, c: float) -> None:
    verdict = against_quadrature(real, Settings(sampler, h=0.1, c=c, **MINI_BATCH), logistic_regression(symmetric=True))
    assert verdict.passed, str(verdict)


def test_logistic_regression_by_mini_batches_needs_the_thermostat() -> None:
    """The same target and the same mini-batches without one: the posterior comes out too wide."""
    verdict = against_quadrature(real, Settings("SGHMC", h=0.1, **MINI_BATCH), logistic_regression(symmetric=True))
    assert not verdict.passed
    assert "a²" in {c.name for c in verdict.failures if c.z > 0}, str(verdict)


@KINETICS
def test_correlated_gradient_noise_leaves_a_bias_of_first_order(c: float) -> None:
    """One thermostat per element cannot correct noise that is correlated between elements: what is left falls as h."""
    verdict = against_quadrature(
        real, Settings("ATMC", h=0.1, c=c, **MINI_BATCH), logistic_regression(symmetric=False), first_order=True
    )
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize(
    ("flaw", "target", "sampler", "c"),
    [
        (Flaw.NO_MASS, banana(), "SGHMC", math.inf),
        (Flaw.FULL_FRICTION, banana(), "SGHMC", 1.2),
        (Flaw.NO_TEMPERATURE, banana(), "ATMC", math.inf),
        (Flaw.CORRECTION_IS_ONE, double_well(), "ATMC", 1.2),
    ],
    ids=lambda value: value.name if isinstance(value, Flaw | Target) else "",
)
def test_an_error_is_caught(flaw: Flaw, target: Target, sampler: str, c: float) -> None:
    """With the settings with which the unbroken sampler passes `test_shape`."""
    assert not against_quadrature(mutant(flaw), Settings(sampler, h=0.2, c=c, **BASE), target).passed


def test_an_error_is_caught_through_mini_batches() -> None:
    verdict = against_quadrature(
        mutant(Flaw.CORRECTION_IS_ONE),
        Settings("ATMC", h=0.1, c=1.2, **MINI_BATCH),
        logistic_regression(symmetric=True),
    )
    assert not verdict.passed
