"""Ranking measures against scikit-learn and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from atmc.posterior import metrics, ood_detection

scores_and_flags = st.integers(0, 10**6).map(
    lambda seed: (
        np.round(np.random.default_rng(seed).normal(size=30), seed % 3),  # rounding makes ties
        np.random.default_rng(seed + 1).permutation(np.arange(30) < 1 + seed % 29),
    )
)


@settings(max_examples=80, deadline=None)
@given(scores_and_flags)
def test_areas_equal_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    s, flag = case
    assert metrics.auroc(s, flag) == pytest.approx(roc_auc_score(flag, s), abs=1e-12)
    assert metrics.aupr(s, flag) == pytest.approx(average_precision_score(flag, s), abs=1e-12)
    fpr, tpr, _ = roc_curve(flag, s, drop_intermediate=False)
    assert metrics.fpr_at_95(s, flag) == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(scores_and_flags)
def test_auroc_is_a_probability_of_order(case: tuple[np.ndarray, np.ndarray]) -> None:
    s, flag = case
    pairs = s[flag][:, None] - s[~flag][None, :]
    assert metrics.auroc(s, flag) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean(), abs=1e-12)
    assert metrics.auroc(-s, flag) == pytest.approx(1.0 - metrics.auroc(s, flag), abs=1e-12)
    assert metrics.auroc(np.exp(s), flag) == pytest.approx(metrics.auroc(s, flag), abs=1e-12)


def test_detection_of_strange_inputs() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=500), rng.normal(size=250) + 4.0
    found = ood_detection.detection(inside, outside)
    assert found["auroc"] > 0.99
    assert found["fpr95"] < 0.05
    assert found["share"] == pytest.approx(1 / 3)
    same = ood_detection.detection(inside, inside)
    assert same["auroc"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="both groups"):
        metrics.auroc(inside, np.ones(500, dtype=bool))
    with pytest.raises(ValueError, match="not finite"):
        ood_detection.detection(inside, np.array([np.nan]))
    with pytest.raises(ValueError, match="at least one"):
        ood_detection.detection(inside, np.array([]))


def brute_risk(uncertainty: np.ndarray, correct: np.ndarray, repeats: int) -> np.ndarray:
    """Mean over random tie-breaks of the risk curve, from the definition."""
    rng = np.random.default_rng(0)
    curves = []
    for _ in range(repeats):
        order = np.lexsort((rng.random(len(uncertainty)), uncertainty))
        wrong = 1.0 - correct[order]
        curves.append([wrong[:k].mean() for k in range(1, len(uncertainty) + 1)])
    return np.mean(curves, axis=0)


def test_risk_coverage_is_the_definition() -> None:
    rng = np.random.default_rng(1)
    uncertainty = rng.random(60)
    correct = (rng.random(60) > uncertainty * 0.6).astype(float)
    found = metrics.risk_coverage(uncertainty, correct)
    np.testing.assert_allclose(found.risk, brute_risk(uncertainty, correct, 1), atol=1e-12)
    assert found.coverage[-1] == 1.0
    assert found.area == pytest.approx(found.risk.mean())
    assert found.accuracy_at(1.0) == pytest.approx(correct.mean())
    best = found.coverage_at(0.9)
    assert 1.0 - found.risk[round(best * 60) - 1] >= 0.9
    assert (1.0 - found.risk[round(best * 60) :] < 0.9).all()
    assert found.coverage_at(1.1) == 0.0


def test_a_coverage_between_two_counts_takes_the_larger() -> None:
    """At least so many are to be answered: 60 % of four are three."""
    found = metrics.risk_coverage([0.1, 0.2, 0.3, 0.4], np.array([True, True, False, True]))
    assert [found.accuracy_at(c) for c in (0.01, 0.5, 0.6, 0.75, 1.0)] == pytest.approx([1, 1, 2 / 3, 2 / 3, 3 / 4])
    twenty = metrics.risk_coverage(np.arange(20.0), np.arange(20) != 11)
    assert twenty.accuracy_at(0.55) == 1.0  # 0.55 · 20 is 11.000000000000002 in floating point


def test_ties_are_random_in_expectation() -> None:
    rng = np.random.default_rng(2)
    uncertainty = np.round(rng.random(20), 1)
    correct = (rng.random(20) > 0.4).astype(float)
    found = metrics.risk_coverage(uncertainty, correct)
    np.testing.assert_allclose(found.risk, brute_risk(uncertainty, correct, 6000), atol=0.03)
    constant = metrics.risk_coverage(np.zeros(20), correct)
    np.testing.assert_allclose(constant.risk, 1.0 - correct.mean(), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_risk_curve_bounds_and_order_invariance(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    uncertainty, correct = np.round(rng.random(n), 1), rng.random(n) > 0.3
    found = metrics.risk_coverage(uncertainty, correct)
    order = rng.permutation(n)
    np.testing.assert_allclose(metrics.risk_coverage(uncertainty[order], correct[order]).risk, found.risk, atol=1e-12)
    assert ((found.risk >= 0) & (found.risk <= 1)).all()
    assert 0.0 <= found.excess <= 1.0
    assert metrics.risk_coverage(~correct, correct).excess == pytest.approx(0.0, abs=1e-12)


def test_selective_accuracy_rises_when_uncertainty_is_informative() -> None:
    rng = np.random.default_rng(3)
    uncertainty = rng.random(5000)
    found = metrics.selective(uncertainty, rng.random(5000) > uncertainty * 0.5)
    assert found[1.0] < found[0.9] < found[0.8] < found[0.5]
    with pytest.raises(ValueError, match="coverage"):
        metrics.risk_coverage(uncertainty, uncertainty > 0).accuracy_at(0.0)
    with pytest.raises(ValueError, match="one per example"):
        metrics.risk_coverage(uncertainty, uncertainty[1:] > 0)
