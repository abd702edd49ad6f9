"""What rows of metrics say: levels with honest errors, trends, temperatures, cycles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2
from scipy.stats import t as student

from atmc.diagnose.traces import (
    Level,
    column,
    cycle_ends,
    is_off,
    level,
    loss_per_cycle,
    neighbour_correlation,
    over_chains,
    second_half,
    settled,
    stretches,
    temperature_ratio,
    trend,
    warmed,
)


def correlated(rng: np.random.Generator, n: int, a: float) -> np.ndarray:
    """A stationary series whose neighbours correlate by `a`."""
    x = np.zeros(n + 100)
    for t, e in enumerate(rng.normal(size=n + 99), start=1):
        x[t] = a * x[t - 1] + e
    return x[100:]


@pytest.mark.parametrize("n", [40, 140])
@pytest.mark.parametrize("a", [0.0, 0.5, 0.8])
def test_a_stationary_series_is_rarely_said_to_drift_or_to_be_off(n: int, a: float) -> None:
    """At the doctor's level of 1 %; before stretches were made independent it was 36 % for 40 rows and a = 0.8."""
    rng = np.random.default_rng(1)
    series = [correlated(rng, n, a) for _ in range(300)]
    assert np.mean([trend(stretches(x)).p_value < 0.01 for x in series]) < 0.09
    assert np.mean([level(x).excludes(0.0) for x in series]) < 0.03


def test_a_drift_is_seen_through_correlated_noise() -> None:
    rng = np.random.default_rng(2)
    slope = 12.0 * np.arange(140) / 140  # over the run, of a scatter of 1.7
    assert np.mean([trend(stretches(correlated(rng, 140, 0.8) + slope)).p_value < 0.01 for _ in range(100)]) > 0.9
    still = np.exp(-np.arange(140) / 70.0)  # smooth, so that every stretch resembles its neighbour
    assert len(stretches(still)) == 8
    assert trend(stretches(still)).p_value < 1e-3
    assert len(stretches(rng.normal(size=400))) > 8
    assert stretches([]).size == 0


def test_the_error_of_a_correlated_series_is_not_that_of_an_independent_one() -> None:
    rng = np.random.default_rng(0)
    covered, errors = [], []
    for _ in range(200):
        noise = rng.normal(size=400)
        x = np.zeros(400)
        for t in range(1, 400):
            x[t] = 0.6 * x[t - 1] + noise[t]
        found = level(x)
        covered.append(abs(found.mean) < 2.1 * found.error)
        errors.append(found.error)
    assert np.mean(covered) > 0.88
    # True standard error: sqrt(1/400) / (1 - 0.6) = 0.125; taking the values as independent would give 0.0625.
    assert 0.09 < np.mean(errors) < 0.15


def test_the_error_is_that_of_batch_means() -> None:
    """Nine values are three batches: 1, 2 and 3 scatter by 1 around their mean, with two degrees of freedom."""
    found = level(np.repeat([1.0, 2.0, 3.0], 3))
    assert (found.mean, found.rows, found.degrees) == (2.0, 9, 2.0)
    assert found.error == pytest.approx(1 / np.sqrt(3))
    limit = student.isf(0.0015, 2) * found.error
    assert found.excludes(2.0 + 1.001 * limit)
    assert not found.excludes(2.0 + 0.999 * limit)


def test_neighbours_are_compared_around_a_straight_line() -> None:
    """A drift alone is no correlation: points that scatter independently around it may all count."""
    rng = np.random.default_rng(7)
    drift = 0.5 * np.arange(40) + rng.normal(size=40)
    assert abs(neighbour_correlation(drift)) < 4 / np.sqrt(40)
    assert neighbour_correlation(np.arange(20.0) + (-1.0) ** np.arange(20)) < -0.8
    assert len(stretches(np.arange(40.0) + (-1.0) ** np.arange(40))) == 40


def test_one_reading_is_held_against_its_law_on_both_sides() -> None:
    """chi²(d)/d, with half of the chance on either side."""
    d = 100.0
    for tail, side in ((chi2.isf, 1), (chi2.ppf, -1)):
        for chance, off in ((0.0012, True), (0.0020, False)):
            mean = tail(chance, d) / d
            assert side * (mean - 1) > 0
            assert is_off(Level(mean, np.nan, 1), d) == off


def test_levels_of_little() -> None:
    assert np.isnan(level(np.array([])).mean)
    few = level(np.array([1.0, 2.0, np.nan]))
    assert few.mean == 1.5
    assert np.isnan(few.error)
    assert not few.excludes(99.0)  # without an error nothing is excluded
    assert level(np.ones(100)).excludes(1.1)
    assert not level(np.ones(100)).excludes(1.0)


def test_trend_finds_direction_and_size() -> None:
    down = trend(5.0 - 0.25 * np.arange(12))
    assert down.slope == pytest.approx(-0.25)
    assert down.tau == pytest.approx(-1.0)
    assert down.p_value < 1e-6
    flat = [trend(np.random.default_rng(i).normal(size=12)).p_value for i in range(200)]
    assert np.mean(np.array(flat) < 0.05) < 0.1
    assert np.isnan(trend([1.0, 0.5, 0.2]).p_value)
    assert np.isnan(trend([1.0] * 9).p_value)
    assert np.isnan(trend([]).slope)
    outlier = trend([3.0, 2.9, 99.0, 2.7, 2.6, 2.5, 2.4])
    assert outlier.slope == pytest.approx(-0.1, abs=0.02)  # the median does not follow one wild value


def rows(cycles: int, per: int, chains: int = 1) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for chain in range(chains):
        for i in range(cycles * per):
            made.append(
                {
                    "event": "log",
                    "phase": "main",
                    "chain": chain,
                    "step": 10 * i,
                    "epoch": i / per,
                    "cycle": i // per,
                    "loss": 1.0 / (1 + i // per) + (per - i % per),
                    "temperature": 0.5,
                    "kinetic_temperature": 0.6 + 0.4 * chain,
                }
            )
    return made


def test_cycles() -> None:
    log = rows(3, 10, 2)
    assert len(cycle_ends(log)) == 12
    np.testing.assert_allclose(loss_per_cycle(log), [1 + 1.5, 0.5 + 1.5, 1 / 3 + 1.5])
    one = [dict(r, cycle=0) for r in rows(1, 6, 2)]
    assert len(cycle_ends(one)) == 12
    assert len(loss_per_cycle(one)) == 6


def test_a_cycle_that_was_cut_short_has_no_end() -> None:
    """Its last rows are of the large steps with which a cycle begins, where the loss is high."""
    whole = rows(4, 10)
    cut = [r for r in whole if r["cycle"] != 3 or r["step"] % 100 < 50]
    last = [r for r in whole if r["cycle"] != 3]
    assert 0 < len(last) < len(cut) < len(whole)
    assert cycle_ends(cut) == cycle_ends(last)
    assert len(loss_per_cycle(cut)) == 3
    assert len(loss_per_cycle(whole)) == 4
    two = [dict(r, chain=chain) for chain, part in ((0, whole), (1, cut)) for r in part]
    assert {(r["chain"], r["cycle"]) for r in cycle_ends(two)} == {(c, k) for c in (0, 1) for k in range(4)} - {(1, 3)}


def test_chains_run_side_by_side_and_not_one_after_the_other() -> None:
    log = rows(1, 10, 2)
    for row in log:
        row["xi"] = 5.0 * int(str(row["chain"])) if row["step"] != 30 or row["chain"] else None
    np.testing.assert_array_equal(over_chains(log, "xi"), [2.5] * 3 + [5.0] + [2.5] * 6)
    assert over_chains([], "xi").size == 0


def test_small_steps_are_little_time() -> None:
    log = [dict(r, lr=1e-3, kinetic_temperature=0.5) for r in rows(2, 10)]
    log += [dict(r, lr=1e-5, kinetic_temperature=0.1) for r in rows(2, 10)]
    assert temperature_ratio(log).mean == pytest.approx(0.6)
    assert temperature_ratio(log, by_time=True).mean == pytest.approx((100 * 1.0 + 0.2) / 101)
    assert np.isnan(temperature_ratio(rows(2, 10), by_time=True).mean)  # nothing says how large the steps were


def test_temperature_and_columns() -> None:
    log = rows(2, 10)
    assert temperature_ratio(log).mean == pytest.approx(1.2)
    assert np.isnan(temperature_ratio([dict(r, temperature=0.0) for r in log]).mean)
    assert np.isnan(column([{"loss": None}, {}, {"loss": "x"}], "loss")).all()
    events = [{"event": "start"}, *log, {"event": "log", "phase": "warm", "epoch": 9.0}]
    kept = settled(events, burn_in_epochs=1.0)
    assert len(kept) == 9
    assert all(r["epoch"] > 1.0 for r in kept)


@pytest.mark.parametrize("parameters", [6, 160])
@pytest.mark.parametrize("rows", [7, 14, 70])
def test_a_temperature_in_equilibrium_is_rarely_called_off_and_a_hot_one_always(parameters: int, rows: int) -> None:
    """Readings of d parameters are chi²(d)/d. At 1 % or less, 500 series have 13 or more with a chance of .002."""
    rng = np.random.default_rng(parameters + rows)
    readings = rng.chisquare(parameters, size=(500, rows)) / parameters
    alarms = [abs(found.mean - 1) > 0.1 and is_off(found, parameters) for found in map(level, readings)]
    assert sum(alarms) <= 12
    # Ten times as hot in the mean, in bursts that scatter more than that.
    bursts = readings[:50] * np.exp(1.5 * rng.normal(size=(50, rows)))
    assert all(is_off(level(10 * one / one.mean()), parameters) for one in bursts)


def test_the_second_half_is_of_every_chain() -> None:
    log = [{"chain": chain, "epoch": float(epoch)} for chain in (0, 1) for epoch in range(11, 21)]
    assert [row["epoch"] for row in second_half(log)] == 2 * [16.0, 17.0, 18.0, 19.0, 20.0]
    assert second_half([]) == []


def test_rows_of_a_chain_that_warms_up_are_left_out() -> None:
    """Half of the rows at T of each cycle of each chain, and none at T = 0."""
    log = [
        {
            "chain": chain,
            "cycle": cycle,
            "temperature": 0.0 if k < 5 else 0.5,
            "kinetic_temperature": 0.1 * k,
            "lr": 1.0,
        }
        for cycle in (0, 1)
        for chain in (0, 1)
        for k in range(8)
    ]
    kept = warmed(log)
    assert [round(10 * row["kinetic_temperature"]) for row in kept] == [6, 7] * 4
    assert temperature_ratio(kept, by_time=True).mean == pytest.approx(1.3)
    assert warmed([{**log[0], "temperature": 0.5}]) == [{**log[0], "temperature": 0.5}]  # one row is better than none
