"""Law 11: along the gradient noise a right chain reads T, and one that mini-batches heat reads what theory says."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from atmc.samplers import kinetic_sampler, noise_temperature

from .noise_directions import T, drawn, harmonic, predicted, regression

WHOLE = noise_temperature.sums_along


def test_without_noise_in_the_chain_it_reads_the_temperature() -> None:
    assert predicted(0.0) == pytest.approx(T, rel=1e-9)  # at a step as large as this one: the momentum is synchronised
    verdict = harmonic(0.0)
    assert verdict.passed, str(verdict)


def test_noise_along_one_direction_is_read_as_theory_says() -> None:
    assert predicted(1.2) > 1.5 * T
    for steps in (0, 12_000):
        verdict = harmonic(1.2, steps=steps)
        assert verdict.passed, str(verdict)


@pytest.mark.parametrize("speed_limit", [math.inf, 0.6], ids=["gaussian", "hyperbolic"])
def test_momenta_of_the_law_read_its_temperature(speed_limit: float) -> None:
    verdict = drawn(speed_limit)
    assert verdict.passed, str(verdict)


def test_mini_batches_are_seen_where_they_bend_the_law() -> None:
    """The stiffest direction is twice too wide with mini-batches of 16; with the whole data neither is off."""
    hot, wide = regression(16, 5_000, 0.01)
    assert wide[-1] > 1.5
    assert hot.mean > 1.15
    assert hot.z(1.0) > 5
    right, narrow = regression(512, 8_000, 0.01)
    assert 0.9 < narrow[-1] < 1.1
    assert abs(right.z(1.0)) < 4
    assert abs(right.mean - 1) < 0.1


def _unsynchronised(us: Any, mean: Any, *args: Any, **kwargs: Any) -> Any:
    return WHOLE(us, mean * 0.0, *args, **kwargs)


def _twice_the_kick(us: Any, mean: Any, *args: Any, **kwargs: Any) -> Any:
    return WHOLE(us, mean * 2.0, *args, **kwargs)


def _no_mass(*args: Any, **kwargs: Any) -> Any:
    return WHOLE(*args, **{**kwargs, "mass": 1.0})


def _no_speed_limit(*args: Any, **kwargs: Any) -> Any:
    return WHOLE(*args, **{**kwargs, "inverse_scale": 0.0})


def _sums(grads: Any) -> Any:
    return [grads[0] + grads[1]]


@pytest.mark.parametrize(
    ("where", "name", "flaw", "check"),
    [
        (kinetic_sampler, "sums_along", _unsynchronised, lambda: harmonic(0.0)),
        (kinetic_sampler, "sums_along", _twice_the_kick, lambda: harmonic(0.0)),
        (kinetic_sampler, "sums_along", _no_mass, lambda: harmonic(0.0)),
        (kinetic_sampler, "sums_along", _no_speed_limit, lambda: drawn(0.6)),
        (kinetic_sampler, "contrasts", _sums, lambda: harmonic(1.2)),
    ],
    ids=["unsynchronised", "a whole kick", "no mass", "no speed limit", "sum for difference"],
)
def test_errors_are_caught(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, flaw: Any, check: Callable[[], Any]
) -> None:
    monkeypatch.setattr(where, name, flaw)
    verdict = check()
    assert not verdict.passed, str(verdict)
