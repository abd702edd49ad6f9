"""The ± of one run with several chains is how far another run would be off."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from atmc.posterior import metric_entries

from .rescored import scoring, showing, storing

IMAGES, CLASSES = 400, 5
LARGEST = {"accuracy": 1.35, "nll": 1.25, "ece": 1.5, "brier": 1.25}  # of the ratio of what is said to what is so
CALIBRATED = next(metric for metric in metric_entries.entries("classification") if metric.name == "calibrated_nll")


def another_run(rng: np.random.Generator, truth: np.ndarray, chains: int) -> storing.Predictor:
    """Averages of chains that are each wrong in their own way."""
    labels = np.arange(IMAGES) % CLASSES
    own = rng.normal(0.0, 1.0, (chains, IMAGES, CLASSES)) * rng.uniform(0.5, 1.5, (chains, 1, 1))
    logits = truth + own + 0.5 * rng.normal(size=(chains, IMAGES, CLASSES))
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs = (probs / probs.sum(-1, keepdims=True)).astype(np.float32)
    return storing.Predictor(probs, labels.astype(np.uint8))


def test_it_is_as_large_as_runs_differ(monkeypatch):
    """Over 250 runs on each of four problems: the jackknife's variance is that of the score, rather more than less."""
    left_out = dataclasses.replace(CALIBRATED, of=lambda probs, labels: 0.0)  # two fits each: too slow here
    monkeypatch.setitem(metric_entries._METRICS, ("classification", "calibrated_nll"), left_out)
    rng = np.random.default_rng(5)
    ratios = {score: [] for score in LARGEST}
    for _ in range(4):
        truth = 2.0 * np.eye(CLASSES)[np.arange(IMAGES) % CLASSES] + rng.normal(0.0, 1.0, (IMAGES, CLASSES))
        runs = [another_run(rng, truth, 4) for _ in range(250)]
        scores = [scoring.of_average(run) for run in runs]
        said = [scoring.jackknife(run) for run in runs]
        for score in LARGEST:
            known = np.var([found[score] for found in scores], ddof=1)
            ratios[score].append(np.mean([found[score] ** 2 for found in said]) / known)
    for score, found in ratios.items():
        assert 0.88 < np.sqrt(np.mean(found)) < LARGEST[score], (score, found)


def test_it_is_the_jackknifes_standard_error():
    run = another_run(np.random.default_rng(6), np.zeros((IMAGES, CLASSES)), 4)
    rows = np.arange(IMAGES)
    left = [-np.log(np.delete(run.probs, k, axis=0).mean(0)[rows, run.labels]).mean() for k in range(4)]
    expected = np.sqrt(3 / 4 * np.sum((left - np.mean(left)) ** 2))
    assert scoring.jackknife(run)["nll"] == pytest.approx(expected, rel=1e-5)


def test_two_chains_and_one_cannot_say():
    for chains in (1, 2):
        assert scoring.jackknife(another_run(np.random.default_rng(8), np.zeros((IMAGES, CLASSES)), chains)) is None


def test_an_error_that_rounds_to_nothing_is_shown_with_a_digit_more():
    row = {"accuracy": 0.9432, "nll": 0.1635, "spread": {"accuracy": 0.00002, "nll": 0.0021}}
    assert showing.shown(row, "accuracy") == "94.32 ± 0.002"
    assert showing.shown(row, "nll") == "0.164 ± 0.002"
    assert showing.shown({**row, "spread": None}, "nll") == "0.164"
