"""Law 10: the step size may change, and where a cycle ends the chain is in its law; with the paper's ξ it is not."""

import math
from typing import Any
from unittest import mock

import pytest

from atmc.samplers import kinetic_sampler
from atmc.samplers.kinetic_energy import thermostat_weight

from . import schedules
from .harness import Settings

BASE = {"h": 0.1, "m": 2.0, "d": 1.2, "t": 1.5, "mu": 0.5}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(sampler, c=c, integrator=integrator, **BASE)
        for sampler in ("ATMC", "SGNHT")
        for c in (math.inf, 0.9)
        for integrator in ("leapfrog", "strang")
    ],
    ids=str,
)
def test_the_law_does_not_depend_on_the_step_size(settings: Settings) -> None:
    """Friction of up to two D in noisy directions at the largest step, and next to none fifty times below it."""
    verdict = schedules.invariance(settings, rows=4096)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("sampler", ["ATMC", "SGNHT"])
def test_friction_may_rise_as_steps_become_small(sampler: str) -> None:
    """`sampler.friction_follows_step`: fifty times the friction where steps are a fiftieth, and the same law."""
    verdict = schedules.invariance(Settings(sampler, **BASE), rows=4096, momentum=True)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("sampler", ["ATMC", "SGNHT"])
def test_friction_that_keeps_what_large_steps_needed_leaves_noisy_directions_cold(sampler: str) -> None:
    """The paper's thermostat: momenta, and whatever is stiff enough to follow them, end below their temperature."""
    verdict = schedules.invariance(Settings(sampler, **BASE), rows=4096, reference_lr=None)
    wrong = {c.name: c.z for c in verdict.failures if c.name[0] in "θp"}
    assert {"pK' [3]", "pK' [4]", "pK' [5]", "θ² [5]"} <= set(wrong), str(verdict)
    assert max(wrong.values()) < -4, str(verdict)


@pytest.mark.parametrize(("sampler", "c"), [("ATMC", math.inf), ("ATMC", 0.9), ("SGNHT", math.inf)])
def test_a_cycle_that_explores_at_zero_ends_in_the_law(sampler: str, c: float) -> None:
    verdict = schedules.explored(Settings(sampler, c=c, **BASE))
    assert verdict.passed, str(verdict)


def test_a_thermostat_that_does_not_rest_at_zero_is_found() -> None:
    """It takes every motion for heat. In short cycles, after which the library's own is where it should be."""

    def restless(group: dict[str, Any]) -> Any:
        return thermostat_weight({**group, "temperature": max(group["temperature"], 1e-9)})

    def found() -> set[str]:
        verdict = schedules.explored(Settings("ATMC", **BASE), backend="foreach", rows=256, cycles=1, time=40.0)
        return {c.name for c in verdict.failures if c.name[0] == "ξ"}

    assert found() == set()
    with mock.patch.object(kinetic_sampler, "thermostat_weight", restless):
        assert {"ξ [3]", "ξ [4]", "ξ [5]"} <= found()


@pytest.mark.parametrize("sampler", ["ATMC", "SGNHT"])
@pytest.mark.parametrize("first", [0.0001, 0.004, 0.1])
def test_a_schedule_that_rises_far_above_the_first_step(sampler: str, first: float) -> None:
    """`OneCycleLR` sets its own step sizes, whatever the sampler was made with; only gradients without noise here."""
    verdict = schedules.one_cycle(Settings(sampler, h=first, m=1.0, d=1.0, t=1.0, mu=1.0), largest=0.1)
    assert verdict.passed, str(verdict)


def test_a_step_size_that_stays_is_as_it_was() -> None:
    """h = h₀ throughout: bit for bit the chain of the paper's thermostat."""
    settings = Settings("ATMC", **BASE)
    follows, keeps = (schedules.constant(settings, steps=50, reference_lr=given) for given in ("lr", None))
    assert all(a.equal(b) for a, b in zip(follows, keeps, strict=True))
