"""Law 3: a thermostat finds out and corrects gradient noise, which shifts the law of what has none as predicted."""

import math

import pytest

from . import gradient_noise
from .harness import Settings
from .makers import real

BASE = {"m": 2.0, "t": 1.5}


def test_atmc_has_exactly_the_law_of_its_discrete_step() -> None:
    """Var θ and E ξ at Dh = 0.9, where the bias of 7 % is itself a prediction."""
    verdict = gradient_noise.thermostat_exact(real, Settings("ATMC", h=0.15, d=6.0, mu=2.0, **BASE))
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("c", [math.inf, 0.9], ids=["gaussian", "hyperbolic"])
@pytest.mark.parametrize("sampler", ["ATMC", "SGNHT"])
def test_a_thermostat_corrects_gradient_noise(sampler: str, c: float) -> None:
    """ξ finds B/(2mT), up to 2 D here, and neither Var θ nor Var ξ knows of the noise."""
    verdict = gradient_noise.thermostat(real, Settings(sampler, h=0.15, d=1.0, c=c, mu=0.8, **BASE))
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize(
    "settings",
    [
        Settings("SGHMC", h=0.1, d=1.0, **BASE),
        Settings("SGHMC", h=0.1, d=1.0, c=0.9, **BASE),
        Settings("SGLD", h=0.1, **BASE),
    ],
    ids=str,
)
def test_without_a_thermostat_the_law_is_off_as_theory_says(settings: Settings) -> None:
    predicted, posterior = gradient_noise.without_thermostat(real, settings)
    assert predicted.passed, str(predicted)
    assert not posterior.passed
    assert posterior.worst > 15, str(posterior)
