"""Scores of the CIFAR-10 table: of a prediction, of each sample, of modes, and the errors of all of these."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from atmc.diagnose.convergence import gain_of_pairs
from atmc.posterior import metrics
from cifar10_store import Array, Predictor, Row

SCORES = ("accuracy", "nll", "calibrated_nll", "ece", "brier")
CURVES = ("accuracy", "nll")  # kept of each sample
DIGITS = 5  # of what is kept of samples and modes


def scores(probs: Array, labels: Array) -> dict[str, float]:
    """All scores of one prediction [examples, classes]."""
    found = metrics.scores(probs, labels)
    return {name: found[name] for name in SCORES}


def of_average(predictor: Predictor) -> dict[str, float]:
    """Scores of the prediction."""
    return scores(metrics.predictive(predictor.probs), predictor.labels)


def of_last(predictor: Predictor) -> list[dict[str, float]]:
    """Scores of the last sample of each chain."""
    last = predictor.probs if predictor.last is None else predictor.last
    return [scores(sample, predictor.labels) for sample in last]


def mean_of(each: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each score averaged."""
    return {score: float(np.mean([found[score] for found in each])) for score in each[0]}


def spread_of(each: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """Standard deviation of each score over seeds, or over chains that are one network each; of one there is none."""
    if len(each) < 2:
        return None
    return {score: float(np.std([found[score] for found in each], ddof=1)) for score in each[0]}


def jackknife(predictor: Predictor) -> dict[str, float] | None:
    """Standard error of the scores of an average over chains, each left out in turn; two chains cannot say.

    Chains share nothing but the data. The jackknife's variance is, if anything, too large on average (Efron and Stein,
    1981); from four chains it is a rough number all the same.
    """
    chains = len(predictor.probs)
    if chains < 3:
        return None
    each = [of_average(found) for found in predictor.without_each()]
    return {score: float((chains - 1) ** 0.5 * np.std([found[score] for found in each])) for score in SCORES}


def against(one: Predictor, other: Predictor) -> dict[str, tuple[float, float]]:
    """By how much the first is ahead, image by image: mean and standard error over the test images."""
    mean = [metrics.predictive(found.probs) for found in (one, other)]
    labels = one.labels
    less = {
        "accuracy": np.subtract(*[(probs.argmax(1) == labels).astype(np.float64) for probs in mean]),
        "nll": np.subtract(*[metrics.nll_each(probs, labels) for probs in reversed(mean)]),
        "calibrated_nll": np.subtract(*[metrics.calibrated_nll_each(probs, labels) for probs in reversed(mean)]),
    }
    return {name: (float(d.mean()), float(d.std(ddof=1) / len(d) ** 0.5)) for name, d in less.items()}


# -- out-of-distribution inputs ----------------------------------------------------------------------------------------


def entropy_of(probs: Array) -> Array:
    """Entropy of each prediction [images, classes], in float16.

    Probabilities are rounded to float16 first, in distribution and out of it alike: confidence that only one side can
    show would tell them apart.
    """
    half = np.maximum(probs.astype(np.float16), np.finfo(np.float16).smallest_subnormal).astype(np.float64)
    found: Array = -(half * np.log(half)).sum(axis=1)
    return found.astype(np.float16)


def detection(predictor: Predictor) -> dict[str, dict[str, float]]:
    """AUROC, AUPR and FPR at 95 % of telling each OOD data set from the test images by the entropy."""
    home = entropy_of(metrics.predictive(predictor.probs)).astype(np.float64)
    return {name: metrics.detection(home, far.astype(np.float64)) for name, far in predictor.entropy.items()}


# -- samples and modes -------------------------------------------------------------------------------------------------


def averages(probs: Array, chains: Array) -> Array:
    """The average of each chain's samples [chains, examples, classes], whose plain mean is that of all samples.

    Chains with unequal numbers of samples (an unfinished run) would need weights: then it is the average of all.
    """
    members = [np.flatnonzero(chains == chain) for chain in np.unique(chains)]
    if len({len(own) for own in members}) > 1:
        members = [np.arange(len(probs))]
    return np.stack([metrics.predictive(probs[own]) for own in members])


def curves(probs: Array, labels: Array, epochs: Array, chains: Array, cycle_epochs: int | None) -> Row:
    """What is kept of the samples [samples, examples, classes], in the order in which they were taken.

    When each was taken and by which chain, its scores alone, those of the average so far, and what modes have to say.
    """
    alone = [metrics.scores(sample, labels) for sample in probs]
    growing = metrics.growing(probs, labels)
    return {
        "epoch": [round(float(epoch), 2) for epoch in epochs],
        "chain": [int(chain) for chain in chains],
        "single": {name: digits([found[name] for found in alone]) for name in CURVES},
        "average": {name: digits(growing[name]) for name in CURVES},
        "modes": modes(probs, labels, chains, cycles_of(epochs, cycle_epochs)) if cycle_epochs else None,
    }


def cycles_of(epochs: Array, length: int | None) -> Array:
    """The cycle that each sample ends or belongs to; without cycles each time is one."""
    return epochs if not length else np.ceil((np.asarray(epochs) - 0.5) / length)


def modes(probs: Array, labels: Array, chains: Array, cycles: Array) -> Row | None:
    """Scores of modes: a mode is the average of the samples that one chain took in one cycle.

    `nll` and `calibrated_nll` are [chains][cycles] of one mode, and of the average over `2` and `3` modes of different
    chains in the same cycle their mean. `limit` are a and b of a + b/n, the NLL of n modes. `gain` is what two modes
    gain together, of one chain and of two; `disagree` the share of images on which two samples differ, likewise. None
    where chains have not the same cycles, or only one in all.
    """
    names, times = np.unique(chains), np.unique(cycles)
    parts = [[probs[(chains == chain) & (cycles == time)] for time in times] for chain in names]
    if len(names) * len(times) < 2 or any(len(part) == 0 for row in parts for part in row):
        return None
    mode = np.stack([[metrics.predictive(part) for part in row] for row in parts])
    found: Row = {"nll": [], "calibrated_nll": []}
    for row in mode:
        found["nll"].append(digits([metrics.nll(one, labels) for one in row]))
        found["calibrated_nll"].append(digits([metrics.calibrated_nll_each(one, labels).mean() for one in row]))
    for count in (2, 3):
        some = [mode[list(own)].mean(0) for own in itertools.combinations(range(len(names)), count)]
        together = [one for cycle in some for one in cycle]
        if together:
            nll = np.mean([metrics.nll(one, labels) for one in together])
            calibrated = np.mean([metrics.calibrated_nll_each(one, labels).mean() for one in together])
            found[str(count)] = dict(zip(("nll", "calibrated_nll"), digits([nll, calibrated]), strict=True))
    every = mode.swapaxes(0, 1).reshape(-1, *mode.shape[2:])  # in the order of cycles
    alone, n = float(np.mean(found["nll"])), len(every)
    limit = (n * metrics.nll(every.mean(0), labels) - alone) / (n - 1)
    found["limit"] = digits([limit, alone - limit])
    pairs = gain_of_pairs(every, labels, list(range(len(names))) * len(times))
    found["gain"] = None if pairs is None else digits([pairs.one, pairs.two])
    found["disagree"] = None if pairs is None else digits(disagreement(probs, chains))
    return found


def disagreement(probs: Array, chains: Array) -> tuple[float, float]:
    """The share of images that two samples classify differently: of one chain, and of two."""
    picks = probs.argmax(-1)
    found: dict[bool, list[float]] = {True: [], False: []}
    for i, j in itertools.combinations(range(len(picks)), 2):
        found[bool(chains[i] == chains[j])].append(float(np.mean(picks[i] != picks[j])))
    return float(np.mean(found[True])), float(np.mean(found[False]))


def digits(values: Any) -> list[float]:
    """Rounded: the last digit that is shown is the fourth."""
    return [round(float(value), DIGITS) for value in values]
