"""95 % intervals of scores, and whether one score is ahead of another on the same examples.

Examples are dealt into G groups at random. θ_g is the score without group g (the delete-group jackknife):

    variance of θ  =  (G − 1)/G Σ_g (θ_g − mean θ_g)²

It works for any score, also for those that are no means (ECE). Two predictors scored on the same examples have the same
groups, so the differences of their θ_g give the error of the difference: hard examples are hard for both and cancel.
A share of examples (accuracy) has Wilson's interval instead, which has a width where all are right.

What is covered is the luck of which examples are in the test set, not that of the chain or of the first weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.posterior.arrays import Floats, Ints, check_labels, check_probs, floor_of, to_numpy
from atmc.posterior.calibration import wilson
from atmc.posterior.metric_entries import Metric, entries

GROUPS = 20
FEWER, MANY = 8, 10_000_000  # groups for so many probabilities: a table of ImageNet should not take a minute
# 97.5 % quantiles of Student's t for the degrees of freedom up to GROUPS − 1.
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A score, its 95 % interval, and its values without each group."""

    value: float
    low: float
    high: float
    without: Floats

    @property
    def error(self) -> float:
        """The standard error."""
        return jackknife(self.without)


def jackknife(without: Floats) -> float:
    """The standard error of a score from its values without each group; NaN for fewer than two groups."""
    count = len(without)
    if count < 2:
        return math.nan
    return math.sqrt((count - 1) / count * float(np.square(without - without.mean()).sum()))


def t_quantile(groups: int) -> float:
    """The factor of the standard error that makes a 95 % interval."""
    return _T[min(max(groups - 1, 1), len(_T)) - 1]


def groups_of(examples: int, probabilities: int = 0) -> Ints:
    """The group of each example: the same for all predictors of the same examples."""
    count = min(examples, FEWER if probabilities > MANY else GROUPS)
    return np.random.default_rng(0).permutation(examples) % max(count, 1)


def spreads(probs: Any, labels: Any, floor: float | None = None) -> dict[str, Spread]:
    """Every registered metric of a classifier `[N, C]` by name, with its interval; `floor` as in `metrics.scores`."""
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    lifted = np.maximum(p, floor_of(to_numpy(probs)) if floor is None else floor)
    group = groups_of(len(y), p.size)
    kept = [group != g for g in range(int(group.max()) + 1)] if len(y) > 1 else []
    found = {}
    for metric in entries("classification"):
        if p.shape[1] >= metric.least_classes:
            source = lifted if metric.takes_log else p
            value = float(metric.of(source, y))
            without = np.array([float(metric.of(source[rows], y[rows])) for rows in kept])
            found[metric.name] = spread_of(metric, value, without, len(y))
    return found


def spread_of(metric: Metric, value: float, without: Floats, examples: int) -> Spread:
    """The interval of one score."""
    if metric.proportion and math.isfinite(value):
        low, high = wilson(round(value * examples), examples)
        return Spread(value, float(low), float(high), without)
    half = t_quantile(len(without)) * jackknife(without)
    return Spread(value, max(value - half, metric.lowest), value + half, without)


def ahead(metric: Metric, one: Spread, two: Spread) -> tuple[float, float]:
    """By how much `one` is better than `two` on the same examples, and half the width of the 95 % interval of that."""
    sign = 1.0 if metric.better == "higher" else -1.0
    if len(one.without) != len(two.without) or metric.better == "neither":
        return math.nan, math.nan
    difference = one.without - two.without
    return sign * (one.value - two.value), t_quantile(len(difference)) * jackknife(difference)


def clearly_best(metric: Metric, all_: Sequence[Spread | None]) -> int | None:
    """Which score is better than every other by more than the error of the difference; None where none is."""
    known = [(i, spread) for i, spread in enumerate(all_) if spread is not None and math.isfinite(spread.value)]
    if len(known) < 2 or len(known) < len(all_) or metric.better == "neither":
        return None
    best, own = (max if metric.better == "higher" else min)(known, key=lambda pair: pair[1].value)
    for i, other in known:
        if i != best:
            lead, half = ahead(metric, own, other)
            if not lead > half:
                return None
    return best


def constant_scores(labels: Any, classes: int) -> dict[str, dict[str, Spread]]:
    """Two answers that look at no example: all classes equally likely, and the classes' shares among these labels.

    The shares are those of the labels that are scored, so that no constant answer has a lower NLL. Without intervals.
    """
    y = check_labels(labels, len(to_numpy(labels)), classes)
    shares = np.bincount(y, minlength=classes) / len(y)
    answers: Mapping[str, Floats] = {"guessing": np.full(classes, 1.0 / classes), "frequencies": shares}
    found = {}
    for name, p in answers.items():
        same = np.broadcast_to(p, (len(y), classes))
        lifted = np.maximum(same, floor_of(same))
        chosen = [metric for metric in entries("classification") if classes >= metric.least_classes]
        values = {metric.name: float(metric.of(lifted if metric.takes_log else same, y)) for metric in chosen}
        found[name] = {key: Spread(value, math.nan, math.nan, np.zeros(0)) for key, value in values.items()}
    return found
