"""The ± of one run with several chains is how far another run would be off."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from .rescored import RESULTS, storing, tabling
from .told import TEXT

IMAGES, CLASSES = 400, 5


def another_run(rng: np.random.Generator, truth: np.ndarray, chains: int, times: int = 3) -> storing.Predictor:
    """Chains that are each wrong in their own way, with samples that are wrong in a way of their own besides."""
    labels = np.arange(IMAGES) % CLASSES
    own = rng.normal(0.0, 1.0, (chains, IMAGES, CLASSES)) * rng.uniform(0.5, 1.5, (chains, 1, 1))
    logits = truth + own + 0.5 * rng.normal(size=(times, chains, IMAGES, CLASSES))
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs = (probs / probs.sum(-1, keepdims=True)).astype(np.float32)
    return storing.Predictor(
        probs=probs.reshape(-1, IMAGES, CLASSES),
        labels=labels.astype(np.uint8),
        epochs=np.repeat(np.arange(1.0, times + 1), chains).astype(np.float32),
        trace=np.zeros((0, 3), np.float32),
        last=probs[-1],
    )


LARGEST = {"accuracy": 1.35, "nll": 1.25, "ece": 1.5, "brier": 1.25}  # of the ratio of what is said to what is so


@pytest.mark.parametrize("kind", [tabling.PREDICTIVE, tabling.LAST])
def test_it_is_as_large_as_runs_differ(kind):
    """Over 250 runs on each of four problems: the jackknife's variance is that of the score, rather more than less."""
    rng, chains = np.random.default_rng(5), 4
    ratios = {score: [] for score in storing.SCORES}
    for _ in range(4):
        truth = 2.0 * np.eye(CLASSES)[np.arange(IMAGES) % CLASSES] + rng.normal(0.0, 1.0, (IMAGES, CLASSES))
        runs = [another_run(rng, truth, chains) for _ in range(250)]
        scores = [run.scores(last=kind == tabling.LAST) for run in runs]
        said = [tabling._spread_over_chains({"chains": chains}, run, kind) for run in runs]
        for score in storing.SCORES:
            known = np.var([found[score] for found in scores], ddof=1)
            ratios[score].append(np.mean([found[score] ** 2 for found in said]) / known)
    for score, found in ratios.items():
        assert 0.88 < np.sqrt(np.mean(found)) < LARGEST[score], (score, found)


def test_of_last_samples_it_is_the_standard_error_of_their_mean():
    rng = np.random.default_rng(6)
    run = another_run(rng, np.zeros((IMAGES, CLASSES)), 4)
    each = [storing.metrics.scores(sample, run.labels)["nll"] for sample in run.last]
    said = tabling._spread_over_chains({"chains": 4}, run, tabling.LAST)
    assert said["nll"] == pytest.approx(np.std(each, ddof=1) / 2)


def test_without_each_chain():
    rng = np.random.default_rng(7)
    run = another_run(rng, np.zeros((IMAGES, CLASSES)), 3, times=2)
    for chain, rest in enumerate(run.without_each(3)):
        others = [k for k in range(3) if k != chain]
        assert np.array_equal(
            rest.probs, run.probs.reshape(2, 3, IMAGES, CLASSES)[:, others].reshape(4, IMAGES, CLASSES)
        )
        assert list(rest.epochs) == [1, 1, 2, 2]
        assert np.array_equal(rest.last, run.last[others])


@pytest.mark.parametrize("times", [[1, 1, 1, 2, 2, 3], [1, 1, 2, 2, 3]])
def test_where_samples_are_not_known_to_be_whose_there_is_none(times):
    probs = np.full((len(times), 2, 2), 0.5, np.float32)
    run = storing.Predictor(
        probs, np.zeros(2, np.uint8), np.float32(times), np.zeros((0, 3), np.float32), last=probs[-3:]
    )
    assert tabling._spread_over_chains({"chains": 3}, run, tabling.PREDICTIVE) is None


def test_two_chains_and_one_cannot_say():
    rng = np.random.default_rng(8)
    for chains in (1, 2):
        run = another_run(rng, np.zeros((IMAGES, CLASSES)), chains)
        assert tabling._spread_over_chains({"chains": chains}, run, tabling.PREDICTIVE) is None


def test_rows_of_four_chains_have_it():
    row = next(row for row in storing.load_rows(RESULTS) if row["row"] == "atmc-settled")
    probs = np.load(RESULTS / "atmc-settled-0.npz")["probs"].astype(np.float64)
    labels = np.load(RESULTS / "atmc-settled-0.npz")["labels"]
    left = []
    for chain in range(4):
        mean = np.delete(probs.reshape(12, 4, *probs.shape[1:]), chain, axis=1).mean((0, 1))
        left.append(-np.log(mean[np.arange(len(labels)), labels]).mean())
    _, predictive = tabling.rows_of(row, RESULTS)
    assert predictive["spread"]["nll"] == pytest.approx(np.sqrt(3 / 4 * np.sum((left - np.mean(left)) ** 2)), rel=1e-6)


def test_how_rough_the_page_says_it_is():
    factors = [(1 / stats.chi2.ppf([0.975, 0.025], n - 1) * (n - 1)) ** 0.5 for n in (3, 4)]
    assert all(0.5 < low < 0.6 for low, _ in factors)
    assert [round(high) for _, high in factors] == [6, 4]
    assert "may put off by a factor of two, or make too small by four to six" in TEXT


def test_an_error_that_rounds_to_nothing_is_shown_with_a_digit_more():
    row = {"accuracy": 0.9432, "nll": 0.1635, "spread": {"accuracy": 0.00002, "nll": 0.0021}}
    assert tabling.shown(row, "accuracy") == "94.32 ± 0.002"
    assert tabling.shown(row, "nll") == "0.164 ± 0.002"
    assert tabling.shown({**row, "spread": None}, "nll") == "0.164"
