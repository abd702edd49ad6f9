"""Calibration against the definitions written as loops, Wilson against scipy, temperature scaling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest

from atmc.posterior import calibration, metrics


def draw(seed: int, n: int, c: int, sharp: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * sharp
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    y = (rng.random((n, 1)) > p.cumsum(1)[:, :-1]).sum(1)  # labels drawn from p itself: calibrated by construction
    return p, y


def slow_ece(p: np.ndarray, y: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = [i for i in range(len(y)) if b / bins < p[i].max() <= (b + 1) / bins]
        if inside:
            right = np.mean([p[i].argmax() == y[i] for i in inside])
            total += len(inside) / len(y) * abs(right - np.mean([p[i].max() for i in inside]))
    return total


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_ece_is_the_definition(bins: int) -> None:
    p, y = draw(0, 400, 5)
    assert metrics.ece(p, y, bins) == pytest.approx(slow_ece(p, y, bins), rel=1e-12)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    p, y = np.array([[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]]), np.array([0, 1, 0])
    assert metrics.ece(p, y, 2) == pytest.approx((0.5 + 1.5) / 3)  # all three in one bin would be |0.5 − 1.5|/3
    assert metrics.ece(p, y, 2) == pytest.approx(slow_ece(p, y, 2))
    assert metrics.ece(p, y, 4) == pytest.approx(slow_ece(p, y, 4))


def test_ece_at_certainty() -> None:
    p = np.eye(3)[[0, 1, 2, 0]]
    assert metrics.ece(p, np.array([0, 1, 2, 0])) == 0.0
    assert metrics.ece(p, np.array([1, 2, 0, 1])) == 1.0


def test_ece_by_chance_is_that_of_labels_drawn_from_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(10, 0.2), 600)
    drawn = [metrics.ece(p, (p.cumsum(1) > rng.random((600, 1))).argmax(1)) for _ in range(300)]
    assert metrics.ece_by_chance(p) == pytest.approx(np.mean(drawn), abs=0.001)


def test_wilson_is_scipys() -> None:
    for s, n in [(0, 1), (1, 1), (0, 50), (17, 40), (40, 40), (999, 1250)]:
        low, high = calibration.wilson(s, n)
        reference = binomtest(s, n).proportion_ci(method="wilson")
        assert (float(low), float(high)) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_bins_are_the_papers() -> None:
    p, y = draw(1, 1003, 10)
    found = metrics.calibration_bins(p, y)
    assert found.count.tolist() == [126, 126, 126, 125, 125, 125, 125, 125]
    order = np.argsort(p.max(1), kind="stable")
    first = order[:126]
    assert found.confidence[0] == pytest.approx(p[first].max(1).mean())
    assert found.accuracy[0] == pytest.approx((p[first].argmax(1) == y[first]).mean())
    assert found.lower[0] == p.max(1).min()
    assert found.upper[-1] == p.max(1).max()
    assert (found.upper[:-1] <= found.lower[1:]).all()


def test_the_error_over_bins_counts_examples_and_not_bins() -> None:
    p, y = np.array([[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]]), np.array([0, 1, 0])
    found = metrics.calibration_bins(p, y, 2)
    assert found.count.tolist() == [2, 1]
    assert found.error == pytest.approx(2 / 3 * abs(0.5 - 0.65) + 1 / 3 * abs(1.0 - 0.9))


def test_intervals_cover_calibrated_predictions_about_95_percent_of_the_time() -> None:
    inside = []
    for seed in range(60):
        p, y = draw(seed, 800, 5)
        found = metrics.calibration_bins(p, y)
        inside += list((found.low <= found.confidence) & (found.confidence <= found.high))
    # 480 bins: binomial standard error 0.01; confidences vary within a bin, so coverage is a little above nominal.
    assert 0.92 < np.mean(inside) < 0.995


def test_overconfidence_is_seen() -> None:
    p, y = draw(3, 4000, 5)
    sharp = calibration.apply_temperature(p, 0.4)
    found = metrics.calibration_bins(sharp, y)
    assert (found.confidence > found.high).sum() >= 4
    assert found.error > 5 * metrics.calibration_bins(p, y).error
    assert found.error == pytest.approx(np.abs(found.accuracy - found.confidence) @ found.count / found.count.sum())


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 70), st.integers(1, 6), st.integers(1, 20), st.floats(0, 40))
def test_bins_are_of_equal_size_and_ece_is_a_fraction(seed: int, n: int, c: int, bins: int, sharp: float) -> None:
    p, y = draw(seed, n, c, sharp)
    found = metrics.calibration_bins(p, y, bins)
    assert found.count.sum() == n
    assert found.count.max() - found.count.min() <= 1
    assert len(found.count) == min(bins, n)
    assert ((found.low <= found.accuracy) & (found.accuracy <= found.high)).all()
    assert (np.diff(found.confidence) >= -1e-12).all()
    assert 0.0 <= metrics.ece(p, y, bins) <= 1.0 + 1e-12
    assert 0.0 <= found.error <= 1.0 + 1e-12


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_temperature_is_recovered_and_optimal(true: float) -> None:
    p, y = draw(4, 20_000, 6)
    distorted = calibration.apply_temperature(p, 1.0 / true)  # p^true: scaling by T = true undoes it
    found = metrics.temperature_scale(np.log(distorted), y)
    assert found == pytest.approx(true, rel=0.05)
    np.testing.assert_allclose(calibration.apply_temperature(distorted, true), p, rtol=1e-9)

    def loss(t: float) -> float:
        return metrics.nll(calibration.apply_temperature(distorted, t), y)

    reference = minimize_scalar(loss, bounds=(0.05, 20.0), method="bounded", options={"xatol": 1e-9})
    assert found == pytest.approx(reference.x, rel=1e-5)


def test_temperature_at_the_limits_and_with_zeros() -> None:
    right = np.array([[2.0, 0.0], [0.0, 1.0]])
    assert metrics.temperature_scale(right, [0, 1]) == 0.05  # every example right: sharper is always better
    assert metrics.temperature_scale(right, [1, 0]) == 20.0
    assert metrics.temperature_scale(np.zeros((4, 3)), [0, 1, 2, 0]) == 20.0
    stored = np.array([[1.0, 0.0], [0.25, 0.75], [1.0, 0.0]], dtype=np.float32)
    found = metrics.temperature_scale(metrics.log_probs(stored), [0, 1, 1])
    assert found > 1.0
    assert np.isfinite(calibration.apply_temperature(stored, found)).all()
    with pytest.raises(ValueError, match="log_probs"):
        metrics.temperature_scale(np.array([[0.0, -np.inf]]), [0])
    with pytest.raises(ValueError, match="positive"):
        calibration.apply_temperature(stored, 0.0)


def test_bins_of_growing_numbers_of_samples() -> None:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(4), size=(6, 80))
    labels = rng.integers(0, 4, 80)
    found = metrics.growing_bins(probs, labels)
    assert list(found) == [1, 2, 4, 6]
    for k, bins in found.items():
        expected = metrics.calibration_bins(probs[:k].mean(0), labels)
        np.testing.assert_allclose(bins.confidence, expected.confidence)
        np.testing.assert_allclose(bins.accuracy, expected.accuracy)
    assert list(metrics.growing_bins(probs, labels, [5, 3])) == [3, 5]
    assert list(metrics.growing_bins(probs[:1], labels)) == [1]
    with pytest.raises(ValueError, match=r"1\.\.6"):
        metrics.growing_bins(probs, labels, [7])


def test_calibration_is_fitted_on_the_other_half() -> None:
    """Predictions that are twice as confident as they should be: scaled back, whatever the labels of the own half."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0.0, 2.0, (4000, 4))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1).astype(np.uint8)
    exact, confident = (np.exp(s * logits) / np.exp(s * logits).sum(1, keepdims=True) for s in (1, 2))
    nll = -np.log(exact[np.arange(4000), labels])
    assert metrics.calibrated_nll_each(confident, labels).mean() == pytest.approx(nll.mean(), abs=2e-3)
    changed = labels.copy()
    changed[0] = (changed[0] + 1) % 4  # an even example: the fit for the odd ones changes, not that for the even ones
    before, after = (metrics.calibrated_nll_each(confident, y) for y in (labels, changed))
    assert np.array_equal(before[2::2], after[2::2])
    assert (before[1::2] != after[1::2]).any()
    assert metrics.scores(confident, labels)["calibrated_nll"] == pytest.approx(before.mean())


def test_a_half_that_cannot_say_scales_nothing() -> None:
    sure = np.tile([0.9, 0.1], (6, 1))
    labels = np.array([0, 0, 0, 1, 0, 0])  # the even ones are all right
    found, plain = metrics.calibrated_nll_each(sure, labels), metrics.nll_each(sure, labels)
    np.testing.assert_allclose(found[1::2], plain[1::2])
    assert (found[::2] > plain[::2]).all()  # fitted where one of three is wrong
    np.testing.assert_allclose(
        metrics.calibrated_nll_each(sure[:3], labels[1:4]), metrics.nll_each(sure[:3], labels[1:4])
    )
