"""Calibration of the confidence max_c p(c | x): calibration error, calibration plot, temperature scaling.

ECE uses bins of equal width, as most papers report it; the plot uses 8 bins of equal size, as the ATMC paper does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.posterior.arrays import (
    Floats,
    Ints,
    check_labels,
    check_probs,
    check_samples,
    each_sample,
    floor_of,
    to_numpy,
)

Z95 = 1.959963984540054  # the 97.5 % quantile of the standard normal
LIMITS = (0.05, 20.0)  # of a temperature that is fitted
FITTED = 10_000  # examples, about, that a half gives to such a fit: more change nothing but the time


@dataclass(frozen=True)
class CalibrationBins:
    """One row per bin, in order of rising confidence."""

    confidence: Floats  # mean confidence of the bin
    accuracy: Floats  # fraction of the bin that is right
    low: Floats  # Wilson interval for that fraction
    high: Floats
    count: Ints
    lower: Floats  # smallest and largest confidence in the bin
    upper: Floats

    @property
    def error(self) -> float:
        """Σ_b (n_b / N) · |accuracy_b − confidence_b|: the calibration error over these bins."""
        share = self.count / self.count.sum()
        return float((share * np.abs(self.accuracy - self.confidence)).sum())


def wilson(successes: Any, trials: Any, z: float = Z95) -> tuple[Floats, Floats]:
    """Wilson's score interval for a binomial proportion (95 % by default).

    With p̂ = s/n:  ( p̂ + z²/2n ± z √( p̂(1−p̂)/n + z²/4n² ) ) / (1 + z²/n).
    Unlike p̂ ± z √(p̂(1−p̂)/n) it has a width where p̂ is 0 or 1, as in the most confident bin.
    """
    n = np.asarray(trials, dtype=np.float64)
    s = np.asarray(successes, dtype=np.float64)
    if (n <= 0).any() or (s < 0).any() or (s > n).any():
        raise ValueError("an interval needs trials > 0 and 0 <= successes <= trials")
    p = s / n
    centre = p + z * z / (2 * n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return np.clip((centre - half) / scale, 0.0, p), np.clip((centre + half) / scale, p, 1.0)


def _confidence(probs: Any, labels: Any) -> tuple[Floats, Floats]:
    """Confidence of each example, and 1 where its most probable class is right."""
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    return p.max(axis=1), (p.argmax(axis=1) == y).astype(np.float64)


def ece(probs: Any, labels: Any, bins: int = 15) -> float:
    """Expected calibration error over `bins` bins of equal width: Σ_b (n_b/N) · |accuracy_b − confidence_b|.

    Bin b holds the confidences in (b/B, (b+1)/B]. It lies in [0, 1], and is above 0 by chance: see `ece_by_chance`.
    """
    c, right = _confidence(probs, labels)
    gap = np.bincount(_bin_of(c, bins), weights=right - c)  # Σ over the bin of (right − confidence)
    return float(np.abs(gap).sum() / c.size)


def ece_by_chance(probs: Any, bins: int = 15) -> float:
    """The mean ECE of a calibrated predictor that gives these probabilities; up to 0.4 √(bins/N).

    In a bin Σ (right − confidence) is then nearly normal, with mean 0 and variance Σ c (1 − c).
    """
    c = check_probs(probs).max(axis=1)
    variance = np.bincount(_bin_of(c, bins), weights=c * (1 - c))
    return float(np.sqrt(2 / np.pi * variance).sum() / c.size)


def _bin_of(confidence: Floats, bins: int) -> Ints:
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    index: Ints = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return index


def calibration_bins(probs: Any, labels: Any, bins: int = 8) -> CalibrationBins:
    """The paper's calibration plot: `bins` equally sized groups by confidence, with Wilson 95 % intervals.

    Group sizes differ by at most one; ties keep the order of the data. With fewer examples than bins there are as many
    bins as examples. A calibrated predictor has its mean confidence within the interval in about 95 % of bins.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    confidence, correct = _confidence(probs, labels)
    groups = np.array_split(np.argsort(confidence, kind="stable"), min(bins, confidence.size))
    count = np.array([g.size for g in groups], dtype=np.int64)
    hits = np.array([correct[g].sum() for g in groups])
    low, high = wilson(hits, count)
    return CalibrationBins(
        confidence=np.array([confidence[g].mean() for g in groups]),
        accuracy=hits / count,
        low=low,
        high=high,
        count=count,
        lower=np.array([confidence[g[0]] for g in groups]),
        upper=np.array([confidence[g[-1]] for g in groups]),
    )


def growing_bins(probs: Any, labels: Any, counts: Sequence[int] | None = None) -> dict[int, CalibrationBins]:
    """`calibration_bins` of the average of the first k samples, for 1, 2, 4, … and all of them, or for `counts`.

    `probs` is `[samples, examples, classes]`.
    """
    array = check_samples(probs)
    total = array.shape[0]
    wanted = sorted({int(c) for c in counts}) if counts is not None else _doublings(total)
    if not wanted or wanted[0] < 1 or wanted[-1] > total:
        raise ValueError(f"counts must lie in 1..{total}, the number of samples")
    found, running = {}, np.zeros(array.shape[1:])
    for k, one in enumerate(each_sample(array), start=1):
        running += one
        if k in wanted:
            found[k] = calibration_bins(running / k, labels)
    return found


def _doublings(total: int) -> list[int]:
    return sorted({min(2**i, total) for i in range(total.bit_length() + 1)})


def log_probs(probs: Any) -> Floats:
    """log p with zeros read as the smallest number of the stored type (see `arrays.floor_of`)."""
    raw = to_numpy(probs)
    return np.asarray(np.log(np.maximum(check_probs(raw), floor_of(raw))))


def temperature_scale(logits: Any, labels: Any, limits: tuple[float, float] = LIMITS) -> float:
    """The temperature T > 0 for which softmax(logits / T) has the lowest NLL on these labels.

    Fit it on a validation split. For a predictive pass log p̄. In b = 1/T the mean NLL,
    f(b) = mean_i [ log Σ_c exp(b l_ic) − b l_iy ], is convex, so the root of its increasing derivative
    f'(b) = mean_i [ E_{softmax(b l_i)} l_i − l_iy ] is found by Newton's method within a bracket. If every example is
    right, T is the lower limit; if the logits carry no information, the upper one.
    """
    raw = to_numpy(logits)
    if raw.ndim != 2 or raw.shape[0] == 0:
        raise ValueError(f"logits must have the shape [examples, classes], not {list(raw.shape)}")
    z = raw.astype(np.float64)
    if not np.isfinite(z).all():
        raise ValueError("logits are not finite: take log of probabilities with atmc.posterior.calibration.log_probs")
    y = check_labels(labels, *z.shape)
    z = z - z.max(axis=1, keepdims=True)
    own = z[np.arange(y.size), y]

    def slope(b: float) -> tuple[float, float]:
        """f' and f'' at b."""
        e = np.exp(b * z)
        total = e.sum(axis=1)
        mean = (e * z).sum(axis=1) / total
        spread = (e * z * z).sum(axis=1) / total - mean * mean
        return float((mean - own).mean()), float(spread.mean())

    low, high = 1.0 / limits[1], 1.0 / limits[0]
    if slope(low)[0] >= 0.0:
        return limits[1]
    if slope(high)[0] <= 0.0:
        return limits[0]
    b = 1.0 if low < 1.0 < high else float(np.sqrt(low * high))
    for _ in range(200):  # Newton's steps, kept between two points where f' has different signs
        first, second = slope(b)
        low, high = (b, high) if first < 0.0 else (low, b)
        step = b - first / second if second > 0.0 else high
        now = step if low < step < high else float(np.sqrt(low * high))
        if abs(now - b) <= 1e-13 * b or high / low < 1.0 + 1e-12:
            return 1.0 / now
        b = now
    return 1.0 / b


def apply_temperature(probs: Any, temperature: float) -> Floats:
    """softmax(log p / T). T > 1 softens, T < 1 sharpens."""
    if not (np.isfinite(temperature) and temperature > 0.0):
        raise ValueError(f"temperature must be positive, not {temperature}")
    z = log_probs(probs) / temperature
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def calibrated_nll_each(probs: Any, labels: Any) -> Floats:
    """The NLL of each example after temperature scaling that was fitted on the other half of the examples.

    Halves are the even and the odd examples, so no example is scored with a temperature that it helped to choose. What
    is left of a difference in NLL after this is not overconfidence. Where the other half cannot say (fewer than two
    examples, all of them right, or no better than chance) nothing is scaled.
    """
    raw = to_numpy(probs)
    logs = log_probs(raw)
    y = check_labels(labels, *logs.shape)
    found = np.empty(y.size)
    for half in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - half.start, None, 2 * max(1, y.size // (2 * FITTED)))
        fitted = temperature_scale(logs[other], y[other]) if y.size >= 4 else 1.0
        scaled = logs[half] / (1.0 if fitted in LIMITS else fitted)
        scaled -= scaled.max(axis=1, keepdims=True)
        own = scaled[np.arange(len(scaled)), y[half]]
        found[half] = np.log(np.exp(scaled).sum(axis=1)) - own
    return found


def calibrated_nll(probs: Any, labels: Any) -> float:
    """The mean of `calibrated_nll_each`."""
    return float(calibrated_nll_each(probs, labels).mean())
