"""Intervals hold what they promise, and a lead is a lead only beyond its error."""

import math

import numpy as np
import pytest

from atmc.posterior import metrics
from atmc.posterior.class_scores import class_scores, confidence_levels, confusion, confusions, weakest
from atmc.posterior.intervals import Spread, ahead, clearly_best, constant_scores, groups_of, jackknife, spreads
from atmc.posterior.metric_entries import columns

NLL = next(metric for metric in columns() if metric.name == "nll")
ACCURACY = columns()[0]


def draw(rng, count=300, classes=3):
    """Calibrated probabilities and labels drawn from them."""
    p = rng.dirichlet(np.ones(classes), count)
    return p, np.array([rng.choice(classes, p=row) for row in p])


def test_of_a_mean_the_jackknife_is_the_textbook_error():
    """With one example in each group (θ̂ − x_i)/(n − 1) is left out, and the formula gives s/√n exactly."""
    values = np.random.default_rng(0).exponential(size=50)
    without = (values.sum() - values) / 49
    assert jackknife(without) == pytest.approx(values.std(ddof=1) / math.sqrt(50), rel=1e-12)
    assert math.isnan(jackknife(without[:1]))


def test_intervals_hold_the_truth_about_95_times_in_100():
    """The truth is the mean over 200,000 examples; of 300 test sets 0.95 ± 0.0126; 4 standard errors are allowed."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), 200_000)
    y = (p.cumsum(1) < rng.random((200_000, 1))).sum(1)
    truth = metrics.scores(p, y)
    hits = dict.fromkeys(("accuracy", "nll", "brier"), 0)
    for _ in range(300):
        rows = rng.integers(0, 200_000, 200)
        found = spreads(p[rows], y[rows])
        for name in hits:
            hits[name] += found[name].low <= truth[name] <= found[name].high
    for name, count in hits.items():
        assert count / 300 == pytest.approx(0.95, abs=0.051), name


def test_values_are_those_of_scores_and_intervals_contain_them():
    p, y = draw(np.random.default_rng(2))
    found, plain = spreads(p, y), metrics.scores(p, y)
    assert found.keys() == plain.keys()
    for name, spread in found.items():
        assert spread.value == pytest.approx(plain[name], rel=1e-12)
        assert spread.low <= spread.value <= spread.high
        assert spread.low >= 0


def test_all_right_is_not_certain():
    right = spreads(np.tile([0.9, 0.1], (50, 1)), np.zeros(50, dtype=int))["accuracy"]
    assert (right.value, right.high) == (1.0, 1.0)
    assert 0.9 < right.low < 1


def test_a_lead_is_judged_on_the_same_examples():
    rng = np.random.default_rng(3)
    p, y = draw(rng)
    better = p.copy()
    better[np.arange(300), y] += 0.05
    better /= better.sum(1, keepdims=True)
    one, two = spreads(better, y)["nll"], spreads(p, y)["nll"]
    lead, half = ahead(NLL, one, two)
    assert lead == pytest.approx(two.value - one.value)
    assert lead > half
    assert ahead(NLL, two, one)[0] == -lead
    assert clearly_best(NLL, [two, one]) == 1
    assert clearly_best(NLL, [one, one]) is None, "a tie is no lead"
    assert clearly_best(NLL, [one]) is None
    assert clearly_best(NLL, [one, None]) is None, "what is not known is not beaten"
    shuffled = p[rng.permutation(300)]
    assert ahead(NLL, one, spreads(shuffled, y[rng.permutation(300)])["nll"])[1] > 3 * half
    short = Spread(1.0, 0.9, 1.1, np.ones(3))
    assert math.isnan(ahead(NLL, one, short)[0])
    assert clearly_best(NLL, [one, short]) is None


def test_higher_is_better_where_it_is():
    y = np.zeros(100, dtype=int)
    good, bad = np.tile([0.9, 0.1], (100, 1)), np.tile([0.9, 0.1], (100, 1))
    bad[:60] = [0.1, 0.9]
    assert clearly_best(ACCURACY, [spreads(bad, y)["accuracy"], spreads(good, y)["accuracy"]]) == 1


def test_groups_are_the_same_for_all_and_as_even_as_can_be():
    assert (groups_of(101) == groups_of(101)).all()
    counts = np.bincount(groups_of(101))
    assert len(counts) == 20
    assert counts.max() - counts.min() == 1
    assert len(np.bincount(groups_of(5))) == 5
    assert len(np.bincount(groups_of(50_000, 50_000_000))) == 8


def test_no_constant_answer_beats_the_frequencies():
    y = np.array([0] * 60 + [1] * 30 + [2] * 10)
    found = constant_scores(y, 4)
    assert found["guessing"]["nll"].value == pytest.approx(math.log(4))
    assert found["guessing"]["accuracy"].value == 0.6, "of equal probabilities the first class is the answer"
    entropy = -sum(p * math.log(p) for p in (0.6, 0.3, 0.1))
    assert found["frequencies"]["nll"].value == pytest.approx(entropy)
    assert found["frequencies"]["accuracy"].value == 0.6


def test_one_example_has_scores_and_no_interval():
    found = spreads(np.array([[0.7, 0.3]]), [0])
    assert found["nll"].value == pytest.approx(-math.log(0.7))
    assert math.isnan(found["nll"].high)


def test_the_confusion_matrix_and_its_classes():
    p = np.eye(3)[[0, 0, 1, 2, 2, 2]] * 0.7 + 0.1
    y = np.array([0, 1, 1, 2, 2, 0])
    counts = confusion(p, y)
    assert counts.tolist() == [[1, 0, 1], [1, 1, 0], [0, 0, 2]]
    first, second, third = class_scores(counts, ["a", "b", "c"])
    assert (first.examples, first.found.hits, first.right.of, first.taken_for, first.times) == (2, 1, 2, "c", 1)
    assert second.right.value == 1.0
    assert third.taken_for is None
    assert sorted(confusions(counts, ["a", "b", "c"])) == [("a", "c", 1), ("b", "a", 1)]
    with pytest.raises(ValueError, match="another shape"):
        class_scores(counts, ["a", "b"])
    unseen = class_scores(np.array([[3, 0], [0, 0]]), ["a", "b"])[1]
    assert unseen.found is None
    assert unseen.right is None


def test_a_weak_class_is_one_that_chance_does_not_explain():
    counts = np.diag([50, 50, 50])
    counts[2] = [20, 0, 30]
    scores = class_scores(counts, ["a", "b", "c"])
    assert [score.name for score in weakest(scores, 130 / 150)] == ["c"]
    assert weakest(class_scores(np.diag([50, 50, 49]) + np.eye(3, k=-2, dtype=int), "abc"), 149 / 150) == ()


def test_levels_of_confidence_count_the_answers_above_them():
    p = np.array([[0.95, 0.05], [0.9, 0.1], [0.6, 0.4], [0.55, 0.45]])
    half, most, all_ = confidence_levels(p, [0, 1, 0, 1], (0.5, 0.9, 0.99))
    assert (half.answered, half.right.value) == (1.0, 0.5)
    assert (most.answered, most.right.value) == (0.5, 0.5)
    assert all_.right is None
