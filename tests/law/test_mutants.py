"""Law 9: every error, alone, is caught by the very functions that the library passes.

Each is put into the library itself (by replacing one function of its integrator while it steps) and, as a check of the
checks, into the independent reference. That the unbroken ones pass the same functions with the same settings is
asserted here too: a harness that fails everything would catch every mutant.
"""

from collections.abc import Callable
from functools import partial

import pytest

from .harness import SEED, Maker, Settings, Verdict
from .invariance import invariance
from .makers import mutant, real, reference
from .reference import Flaw
from .starts import global_stream, thermostat_starts_at_zero

GAUSSIAN = Settings("ATMC", h=0.1, m=2.0, d=1.2, t=1.5, mu=0.5)
HYPERBOLIC = Settings("ATMC", h=0.1, m=2.0, d=1.2, c=0.9, t=1.5, mu=0.5)

Check = Callable[[Maker], Verdict]
CHECKS: dict[str, Check] = {
    "invariance, gaussian": lambda make: invariance(make, GAUSSIAN, rows=512),
    "invariance, hyperbolic": lambda make: invariance(make, HYPERBOLIC, rows=512),
    # A fine point of the noise variance shows where bh is not small.
    "invariance, strong friction": lambda make: invariance(
        make, Settings("ATMC", h=0.1, m=2.0, d=6.0, t=1.5), rows=1024
    ),
    "start": lambda make: thermostat_starts_at_zero(make, GAUSSIAN, rows=512),
    "streams": lambda make: global_stream(make, SEED),
}

CATCHES: dict[Flaw, str] = {
    Flaw.SIGN: "invariance, gaussian",
    Flaw.NO_MASS: "invariance, gaussian",
    Flaw.ASSIGN_PARAMS: "invariance, gaussian",
    Flaw.ASSIGN_THERMOSTAT: "invariance, gaussian",
    Flaw.NO_CORRECTION: "invariance, gaussian",
    Flaw.NO_TEMPERATURE: "invariance, gaussian",
    Flaw.NO_EXCESS_FRICTION: "invariance, gaussian",
    Flaw.NO_INERTIA: "invariance, gaussian",
    Flaw.NOISE_OF_ONE_B: "invariance, strong friction",
    Flaw.GAUSSIAN_A: "invariance, hyperbolic",
    Flaw.CORRECTION_IS_ONE: "invariance, hyperbolic",
    Flaw.FULL_FRICTION: "invariance, hyperbolic",
    Flaw.XI_OR_NOISE: "start",
    Flaw.SAME_STREAM: "streams",
}


def test_every_flaw_has_its_check() -> None:
    assert set(CATCHES) == set(Flaw)
    assert set(CATCHES.values()) == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "make",
    [real, partial(real, backend="single"), partial(real, backend="foreach"), reference],
    ids=["library", "library, single", "library, foreach", "reference"],
)
def test_the_whole_sampler_passes(make: Maker, check: str) -> None:
    verdict = CHECKS[check](make)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("flaw", Flaw, ids=lambda flaw: flaw.name)
def test_the_library_with_an_error_is_caught(flaw: Flaw) -> None:
    assert not CHECKS[CATCHES[flaw]](mutant(flaw)).passed


@pytest.mark.parametrize("flaw", Flaw, ids=lambda flaw: flaw.name)
def test_the_reference_with_an_error_is_caught(flaw: Flaw) -> None:
    assert not CHECKS[CATCHES[flaw]](partial(reference, flaw=flaw)).passed


def test_hyperbolic_errors_are_none_for_a_gaussian() -> None:
    """And so the Gaussian check passes them: each check sees what it is about, not any change whatever."""
    assert invariance(mutant(Flaw.FULL_FRICTION), GAUSSIAN, rows=512, time=5.0).passed
