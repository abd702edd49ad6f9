"""Scores against independent references (scikit-learn, or the definition written as a loop), and their invariants."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

from atmc.posterior import metrics


def random_probs(seed: int, *shape: int, sharp: float = 2.0) -> np.ndarray:
    z = np.random.default_rng(seed).normal(size=shape) * sharp
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def labels_for(probs: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(probs.shape[1], p=row) for row in probs])


PROBS = random_probs(0, 300, 7)
LABELS = labels_for(PROBS, 1)


def test_scores_equal_scikit_learn() -> None:
    assert metrics.accuracy(PROBS, LABELS) == (PROBS.argmax(1) == LABELS).mean()
    assert metrics.nll(PROBS, LABELS) == pytest.approx(log_loss(LABELS, PROBS, labels=range(7)), rel=1e-12)
    assert metrics.brier(PROBS, LABELS) == pytest.approx(
        brier_score_loss(LABELS, PROBS, labels=list(range(7)), scale_by_half=False), rel=1e-12
    )
    for k in (1, 3, 5):
        assert metrics.top_k(PROBS, LABELS, k) == top_k_accuracy_score(LABELS, PROBS, k=k, labels=range(7))


def test_binary_brier_is_twice_the_usual_form() -> None:
    p = random_probs(3, 50, 2)
    y = labels_for(p, 4)
    assert metrics.brier(p, y) == pytest.approx(2 * np.mean((p[:, 1] - y) ** 2), rel=1e-12)


def test_predictive_averages_probabilities_with_weights() -> None:
    p = random_probs(5, 4, 20, 3)
    w = np.array([1.0, 0.0, 2.0, 5.0])
    np.testing.assert_allclose(metrics.predictive(p, w), np.tensordot(w / 8, p, axes=1), rtol=1e-13)
    np.testing.assert_allclose(metrics.predictive(p), p.mean(0), rtol=1e-13)


def test_summary_is_the_contract_and_json() -> None:
    p = random_probs(6, 5, 100, 7)
    y = labels_for(p.mean(0), 7)
    found = json.loads(json.dumps(metrics.summary(p, y)))
    assert found["samples"] == 5
    for row, reference in (("single", p[-1]), ("predictive", p.mean(0))):
        assert {"accuracy", "nll", "brier", "ece"} <= set(found[row])
        assert found[row]["nll"] == pytest.approx(log_loss(y, reference, labels=range(7)), rel=1e-12)
        assert found[row]["ece"] == pytest.approx(metrics.ece(reference, y), rel=1e-12)
        assert found[row]["top5"] == metrics.top_k(reference, y, 5)
    assert found["mean_single"]["nll"] == pytest.approx(np.mean([metrics.nll(q, y) for q in p]), rel=1e-12)


def test_weights_count_in_the_mean_of_the_samples_as_in_their_predictive() -> None:
    p, w = random_probs(12, 3, 60, 4), [1.0, 2.0, 7.0]
    y = labels_for(p.mean(0), 13)
    found = metrics.summary(p, y, w)
    assert found["predictive"]["nll"] == pytest.approx(metrics.nll(np.average(p, axis=0, weights=w), y))
    assert found["mean_single"]["nll"] == pytest.approx(np.average([metrics.nll(q, y) for q in p], weights=w))


def test_of_equal_classes_the_lower_number_is_ahead() -> None:
    p = np.full((1, 4), 0.25)
    assert [metrics.top_k(p, [label], 2) for label in range(4)] == [1.0, 1.0, 0.0, 0.0]
    assert [metrics.top_k(p, [label], 1) for label in range(4)] == [metrics.accuracy(p, [c]) for c in range(4)]


def test_one_sample_is_its_own_predictive() -> None:
    found = metrics.summary(PROBS[None], LABELS)
    assert found["single"] == found["predictive"] == found["mean_single"]


def test_growing_ends_at_the_predictive_and_subsets_average_the_order_away() -> None:
    p = random_probs(8, 6, 80, 4)
    y = labels_for(p.mean(0), 9)
    curve = metrics.growing(p, y)
    assert curve["samples"].tolist() == [1, 2, 3, 4, 5, 6]
    for k in range(1, 7):
        assert curve["nll"][k - 1] == pytest.approx(metrics.nll(p[:k].mean(0), y), rel=1e-12)
    shuffled = metrics.growing(p, y, counts=[1, 6], subsets=400)
    assert shuffled["nll"][1] == pytest.approx(curve["nll"][-1], rel=1e-12)
    singles = [metrics.nll(q, y) for q in p]
    assert shuffled["nll"][0] == pytest.approx(np.mean(singles), abs=4 * np.std(singles) / 20)


def test_total_variation_and_agreement_by_hand() -> None:
    p = np.array([[0.5, 0.5], [0.9, 0.1]])
    q = np.array([[0.2, 0.8], [0.6, 0.4]])
    assert metrics.total_variation(p, q) == pytest.approx(0.3)
    assert metrics.agreement(p, q) == 0.5  # the first row of p ties, and the first class counts
    assert metrics.total_variation(p, p) == 0.0
    assert metrics.total_variation(np.eye(2), np.eye(2)[::-1]) == 1.0


def test_zero_and_one_are_probabilities() -> None:
    p = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    y = np.array([0, 1, 1])
    assert metrics.accuracy(p, y) == pytest.approx(2 / 3)
    assert metrics.brier(p, y) == pytest.approx(2 / 3)
    assert metrics.ece(p, y) == pytest.approx(1 / 3)
    # Zero is read as the smallest positive number of the type that it was stored in, no better and no worse.
    for kind, smallest in ((np.float16, 2.0**-24), (np.float32, 2.0**-149), (np.float64, 2.0**-1074)):
        assert metrics.nll(p.astype(kind), y) == pytest.approx(-np.log(smallest) / 3, rel=1e-12)
        assert metrics.summary(p.astype(kind)[None], y)["predictive"]["nll"] == metrics.nll(p.astype(kind), y)


def test_half_precision_and_tensors_and_an_absent_class() -> None:
    half = PROBS.astype(np.float16)
    y = np.where(LABELS == 2, 3, LABELS)  # nothing is of class 2
    assert metrics.nll(half, y) == pytest.approx(metrics.nll(PROBS, y), abs=1e-3)
    assert metrics.brier(half, y) == pytest.approx(metrics.brier(PROBS, y), abs=1e-3)
    tensor = torch.from_numpy(PROBS)
    assert metrics.nll(tensor, torch.from_numpy(y)) == metrics.nll(PROBS, y)
    assert metrics.accuracy(tensor.to(torch.bfloat16), y) == pytest.approx(metrics.accuracy(PROBS, y), abs=0.02)


@pytest.mark.parametrize(
    ("probs", "labels", "says"),
    [
        (np.full((3, 2), np.nan), [0, 1, 0], "not finite"),
        (np.array([[2.0, -1.0]]), [0], "not logits"),
        (np.array([[3.0, 1.0]]), [0], "not logits"),
        (np.zeros((0, 3)), [], "no examples"),
        (np.ones((2, 2, 2)) / 2, [0, 1], "shape"),
        (np.ones((2, 2)) / 2, [0, 2], "0..1"),
        (np.ones((2, 2)) / 2, [0.0, 1.0], "whole numbers"),
        (np.ones((2, 2)) / 2, [0], "one per example"),
        (np.ones((2, 1), dtype=int), [0, 0], "floating-point"),
    ],
)
def test_bad_input_is_named(probs: np.ndarray, labels: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        metrics.nll(probs, np.array(labels))


def test_no_samples_and_nan_samples_are_named() -> None:
    with pytest.raises(ValueError, match="no posterior samples"):
        metrics.predictive(np.zeros((0, 4, 3)))
    bad = random_probs(1, 3, 4, 2)
    bad[1, 2, 0] = np.nan
    with pytest.raises(ValueError, match=r"sample 1 are not finite \(first at example 2"):
        metrics.predictive(bad)
    with pytest.raises(ValueError, match="not all zero"):
        metrics.predictive(random_probs(1, 2, 4, 2), [0.0, 0.0])


cases = st.tuples(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 40), st.integers(1, 8), st.floats(0, 30))


@settings(max_examples=60, deadline=None)
@given(cases)
def test_averaging_never_hurts_a_proper_score_more_than_the_mean_sample(case: tuple[int, int, int, int, float]) -> None:
    seed, k, n, c, sharp = case
    p = random_probs(seed, k, n, c, sharp=sharp)
    y = np.random.default_rng(seed + 1).integers(c, size=n)
    found = metrics.summary(p, y)
    for name in ("nll", "brier"):
        assert found["predictive"][name] <= found["mean_single"][name] + 1e-9
    assert 0.0 <= found["predictive"]["ece"] <= 1.0
    assert 0.0 <= found["predictive"]["brier"] <= 2.0


@settings(max_examples=40, deadline=None)
@given(cases)
def test_scores_do_not_depend_on_the_order_of_examples_or_classes(case: tuple[int, int, int, int, float]) -> None:
    seed, _, n, c, sharp = case
    rng = np.random.default_rng(seed)
    p = random_probs(seed, n, c, sharp=sharp + 0.1)  # no exact ties: they go to the first class
    y = rng.integers(c, size=n)
    rows, columns = rng.permutation(n), rng.permutation(c)
    q, z = p[rows][:, columns], np.argsort(columns)[y[rows]]
    for f in (metrics.nll, metrics.brier, metrics.ece):
        assert f(p, y) == pytest.approx(f(q, z), rel=1e-9, abs=1e-9)
