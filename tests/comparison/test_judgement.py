"""The verdict of a comparison claims no more than test examples and repeats can tell."""

import numpy as np
import pytest

from atmc.comparison.judgement import Row, lead, scored, verdict
from atmc.posterior import metrics, regression
from atmc.posterior.intervals import spreads
from atmc.posterior.metric_entries import entries

NLL = next(metric for metric in entries("classification") if metric.name == "nll")


def row(method, right, gradients=1000, seeds=1, luck=0.0):
    """A method that gives the right class of each example this probability."""
    found = []
    for seed in range(seeds):
        p = np.clip(right + luck * (seed - (seeds - 1) / 2), 0.01, 0.99)
        found.append(spreads(np.stack([p, 1 - p], 1), np.zeros(len(p), dtype=int)))
    return Row(method, 1, tuple(found), gradients, 1.0, "")


@pytest.fixture
def hard():
    return np.random.default_rng(0).uniform(0.3, 0.8, 500)


def test_a_clear_lead_over_all_is_said(hard):
    said = verdict([row("SGD", hard), row("deep ensemble", hard + 0.02), row("ATMC", hard + 0.1)], "ATMC",
                   "classification", 500)  # fmt: skip
    assert said[0].startswith("ATMC is ahead of all: NLL lower by")
    assert said[0].endswith("than that of deep ensemble.")
    assert "Against a single network trained by SGD the NLL is lower by" in said[1]
    assert "--repeats" in said[2]


def test_another_method_that_is_ahead_is_recommended(hard):
    said = verdict([row("deep ensemble", hard + 0.1), row("ATMC", hard)], "ATMC", "classification", 500)
    assert said[0].startswith("Deep ensemble is ahead of ATMC: NLL lower by")
    assert said[0].endswith("Use it here.")


def test_what_cannot_be_told_is_said_with_what_it_would_take(hard):
    noise = 0.15 * np.random.default_rng(1).normal(size=500)
    close = row("SWAG", np.clip(hard + noise + 0.012, 0.05, 0.95))
    rows = [row("SGD", hard - 0.2), close, row("ATMC", hard)]
    gain, half = lead(NLL, rows[2], close)
    assert abs(gain) < half
    said = verdict(rows, "ATMC", "classification", 500)
    assert said[0].startswith("Cannot tell ATMC from SWAG: ")
    assert "SGD" not in said[0]
    assert "test examples would show it (500 now)" in said[0]
    same = verdict([row("SGD", hard), row("ATMC", hard)], "ATMC", "classification", 500)
    assert same[0].startswith("Cannot tell ATMC from SGD")
    assert "no difference can be told" in same[1]


def test_a_lead_that_comes_and_goes_with_the_seed_is_none(hard):
    steady = [row("SGD", hard, seeds=3), row("ATMC", hard + 0.03, seeds=3)]
    assert verdict(steady, "ATMC", "classification", 500)[0].startswith("ATMC is ahead of all")
    lucky = [row("SGD", hard, seeds=3), row("ATMC", hard + 0.03, seeds=3, luck=0.06)]
    assert verdict(lucky, "ATMC", "classification", 500)[0].startswith("Cannot tell")
    assert not any("--repeats" in line for line in verdict(steady, "ATMC", "classification", 500))


def test_unequal_compute_is_said(hard):
    said = verdict([row("SGD", hard, 1000), row("ATMC", hard, 1500)], "ATMC", "classification", 500)
    assert said[-1] == "The compute is not equal: from 1,000 to 1,500 gradients."


def test_nothing_to_compare(hard):
    assert verdict([row("ATMC", hard)], "ATMC", "classification", 500) == ("There is nothing to compare.",)


def test_scores_are_those_of_the_registry():
    rng = np.random.default_rng(2)
    probs = rng.dirichlet(np.ones(3), (4, 50))
    labels = rng.integers(0, 3, 50)
    found = scored(probs, labels, None, "classification")
    expected = metrics.summary(probs, labels)["predictive"]
    assert {name: spread.value for name, spread in found.items()} == pytest.approx(expected)

    import atmc

    outputs, targets = rng.normal(size=(4, 50, 1)), rng.normal(size=(50, 1))
    found = scored(outputs, targets, atmc.likelihoods.Gaussian(0.7), "regression")
    expected = regression.summary(outputs, targets, 0.7)["predictive"]
    assert {name: spread.value for name, spread in found.items()} == pytest.approx(expected)
    assert found["rmse"].low < found["rmse"].value < found["rmse"].high
