"""Scores of one sample, of the predictive, and of growing numbers of samples.

Everything takes NumPy arrays (or tensors), so that figures can be recomputed from stored `.npz` files. Probabilities
`[N, C]` belong to one predictor; `[K, N, C]` to K posterior samples, whose predictive is p̄ = Σ_k w_k p_k.

`calibration` and `ood_detection` are exported here too. What is registered below as a `Metric` is listed by
`atmc evaluate`, tables, reports and their JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atmc.posterior.arrays import (
    Floats,
    Ints,
    check_labels,
    check_probs,
    check_samples,
    check_weights,
    each_sample,
    floor_of,
    to_numpy,
)
from atmc.posterior.calibration import (
    CalibrationBins,
    apply_temperature,
    calibrated_nll,
    calibrated_nll_each,
    calibration_bins,
    ece,
    ece_by_chance,
    growing_bins,
    log_probs,
    temperature_scale,
    wilson,
)
from atmc.posterior.metric_entries import Metric, entries, register, summary_of
from atmc.posterior.ood_detection import RiskCoverage, aupr, auroc, detection, fpr_at_95, risk_coverage, selective

__all__ = [
    "CalibrationBins",
    "RiskCoverage",
    "accuracy",
    "agreement",
    "apply_temperature",
    "aupr",
    "auroc",
    "brier",
    "calibrated_nll",
    "calibrated_nll_each",
    "calibration_bins",
    "detection",
    "ece",
    "ece_by_chance",
    "fpr_at_95",
    "growing",
    "growing_bins",
    "log_probs",
    "nll",
    "nll_each",
    "predictive",
    "risk_coverage",
    "scores",
    "selective",
    "summary",
    "temperature_scale",
    "top_k",
    "total_variation",
    "wilson",
]


def accuracy(probs: Any, labels: Any) -> float:
    """mean_i 1[argmax_c p_i(c) = y_i]; of classes with equal probability the first counts as the prediction."""
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    return float((p.argmax(axis=1) == y).mean())


def top_k(probs: Any, labels: Any, k: int = 5) -> float:
    """mean_i 1[y_i is among the k most probable classes]; ties go to the class with the lower number, as in argmax."""
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    if not 1 <= k <= p.shape[1]:
        raise ValueError(f"k must lie in 1..{p.shape[1]}, the number of classes, not {k}")
    own = p[np.arange(y.size), y][:, None]
    earlier = np.arange(p.shape[1])[None, :] < y[:, None]
    rank = ((p > own) | ((p == own) & earlier)).sum(axis=1)  # classes ahead of the right one
    return float((rank < k).mean())


def nll_each(probs: Any, labels: Any) -> Floats:
    """−log p_i(y_i) for each example, in nats; a stored zero is read as the smallest number of its type.

    The floor (`arrays.floor_of`) is 16.6 nats for float16 and 103 for float32: rounding to zero in a file must not turn
    a mean into infinity.
    """
    raw = to_numpy(probs)
    p = check_probs(raw)
    y = check_labels(labels, *p.shape)
    return np.asarray(-np.log(np.maximum(p[np.arange(y.size), y], floor_of(raw))))


def nll(probs: Any, labels: Any) -> float:
    """mean_i −log p_i(y_i): the negative log-likelihood per example in nats, a strictly proper score."""
    return float(nll_each(probs, labels).mean())


def brier(probs: Any, labels: Any) -> float:
    """mean_i Σ_c (p_i(c) − 1[c = y_i])²: between 0 and 2, strictly proper; for two classes twice the binary form."""
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    own = p[np.arange(y.size), y]
    return float(((p * p).sum(axis=1) - 2.0 * own + 1.0).mean())


_SHARE: dict[str, Any] = {"better": "higher", "unit": "%", "digits": ".1f", "proportion": True}
register(
    Metric(
        "accuracy",
        "Accuracy",
        accuracy,
        short="Acc. %",
        about="The share of examples whose most probable class is the right one.",
        **_SHARE,
    )
)
register(
    Metric(
        "nll",
        "NLL",
        nll,
        unit="nats",
        takes_log=True,
        lowest=0.0,
        about="Negative log-likelihood: the mean of −log(probability given to the right class). 0 is perfect; 0.1 "
        "means that the right class typically got 90 %, 0.7 that it got 50 %. One confident mistake costs a lot.",
    )
)
register(
    Metric(
        "brier",
        "Brier",
        brier,
        lowest=0.0,
        about="The mean squared distance of the probabilities from the truth: 0 is perfect, 2 is certain and wrong.",
    )
)
register(
    Metric(
        "ece",  # 15 bins of equal width
        "ECE",
        ece,
        lowest=0.0,
        about="Expected calibration error: how far confidence is from accuracy on average. 0.02 means that answers "
        "given with 80 % confidence are right about 78 % or 82 % of the time.",
    )
)
register(
    Metric(
        "calibrated_nll",
        "Calibrated NLL",
        calibrated_nll,
        unit="nats",
        in_tables=False,
        takes_log=True,
        lowest=0.0,
        about="The NLL after one temperature has been fitted to the prediction, on half of the examples for the other "
        "half: what is left of a difference in NLL once overconfidence is removed.",
    )
)
register(
    Metric(
        "top5",
        "Top-5",
        top_k,
        in_tables=False,
        least_classes=6,
        about="The share of examples whose right class is among the five most probable.",
        **_SHARE,
    )
)


def predictive(probs: Any, weights: Any = None) -> Floats:
    """p̄ = Σ_k w_k p_k `[N, C]` in float64 from `[K, N, C]`, one sample in memory at a time."""
    array = check_samples(probs)
    w = check_weights(weights, array.shape[0])
    total = np.zeros(array.shape[1:])
    for k, sample in enumerate(each_sample(array)):
        total += w[k] * sample
    return total


def scores(probs: Any, labels: Any, floor: float | None = None) -> dict[str, float]:
    """Every registered metric of a classifier, by name: accuracy, NLL, Brier, ECE, calibrated NLL, top-5.

    `floor` overrides the smallest probability that the NLL reads (for averages of float16 numbers kept in float64).
    """
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    lifted = np.maximum(p, floor_of(to_numpy(probs)) if floor is None else floor)
    chosen = [metric for metric in entries("classification") if p.shape[1] >= metric.least_classes]
    return {metric.name: float(metric.of(lifted if metric.takes_log else p, y)) for metric in chosen}


def summary(probs: Any, labels: Any, weights: Any = None) -> dict[str, Any]:
    """`{"single": {...}, "predictive": {...}, "samples": K, "mean_single": {...}}` from `[K, N, C]`.

    `single` is the last sample, as in the paper's "single sample" row; `mean_single` averages each score over the
    samples. By Jensen's inequality the predictive's NLL and Brier score are never worse than `mean_single`.
    """
    array = check_samples(probs)
    y = check_labels(labels, *array.shape[1:])
    w = check_weights(weights, array.shape[0])
    floor = floor_of(array)
    each = [scores(sample, y, floor) for sample in each_sample(array)]
    return summary_of(each, scores(predictive(array, w), y, floor), w)


def growing(
    probs: Any, labels: Any, counts: Sequence[int] | None = None, subsets: int = 0, seed: int = 0
) -> dict[str, Floats | Ints]:
    """Scores of the predictive from the first 1, 2, … K samples: `{"samples": [...], "accuracy": [...], ...}`.

    In the order collected by default. With `subsets` > 0 each count is instead the mean over that many random orders,
    which removes the luck of which samples came first; all samples together are the same either way.
    """
    array = check_samples(probs)
    y = check_labels(labels, *array.shape[1:])
    total = array.shape[0]
    wanted = list(range(1, total + 1)) if counts is None else sorted({int(c) for c in counts})
    if not wanted or wanted[0] < 1 or wanted[-1] > total:
        raise ValueError(f"counts must lie in 1..{total}, the number of samples")
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(total) for _ in range(subsets)] or [np.arange(total)]
    floor = floor_of(array)
    rows: dict[int, list[dict[str, float]]] = {count: [] for count in wanted}
    for order in orders:
        running = np.zeros(array.shape[1:])
        for position, k in enumerate(order[: wanted[-1]], start=1):
            running += next(each_sample(array[k : k + 1]))
            if position in rows:
                rows[position].append(scores(running / position, y, floor))
    names = rows[wanted[0]][0]
    curve: dict[str, Floats | Ints] = {"samples": np.array(wanted, dtype=np.int64)}
    curve.update({name: np.array([np.mean([r[name] for r in rows[c]]) for c in wanted]) for name in names})
    return curve


def agreement(first: Any, second: Any) -> float:
    """Fraction of examples on which two predictives have the same most probable class."""
    p, q = _pair(first, second)
    return float((p.argmax(axis=1) == q.argmax(axis=1)).mean())


def total_variation(first: Any, second: Any) -> float:
    """mean_i ½ Σ_c |p_i(c) − q_i(c)|: the mean distance of two predictives, 0 for equal ones, 1 for disjoint ones."""
    p, q = _pair(first, second)
    return float(0.5 * np.abs(p - q).sum(axis=1).mean())


def _pair(first: Any, second: Any) -> tuple[Floats, Floats]:
    p, q = check_probs(first), check_probs(second)
    if p.shape != q.shape:
        raise ValueError(f"two predictives must be of the same examples: {list(p.shape)} against {list(q.shape)}")
    return p, q
