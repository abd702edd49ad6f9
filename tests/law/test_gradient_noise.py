"""Law 3: a thermostat finds out and corrects gradient noise, which shifts the law of what has none as predicted."""

import math

import pytest

from . import gradient_noise
from .harness import Settings
from .makers import mutant, real
from .reference import Flaw

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


def test_errors_are_caught() -> None:
    """By the checks that the unbroken library passes above. ξ tells of a mass that is missing in the noise; friction
    that does not grow where ξ > D leaves the noisiest elements hot."""
    exact = gradient_noise.thermostat_exact(mutant(Flaw.NO_MASS), Settings("ATMC", h=0.15, d=6.0, mu=2.0, **BASE))
    assert {c.name[0] for c in exact.failures} == {"ξ"}, str(exact)
    noisy = gradient_noise.thermostat(mutant(Flaw.NO_EXCESS_FRICTION), Settings("ATMC", h=0.15, d=1.0, mu=0.8, **BASE))
    assert any(c.name.startswith("θ²") and c.z > 0 for c in noisy.failures), str(noisy)
    predicted, _ = gradient_noise.without_thermostat(mutant(Flaw.NO_MASS), Settings("SGHMC", h=0.1, d=1.0, **BASE))
    assert not predicted.passed, str(predicted)
