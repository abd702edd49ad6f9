"""Scores from stored probabilities by a few independent lines of numpy, and the modules of `benchmarks/` under test."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "cifar10"

sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names
names = ("cifar10", "cifar10_collect", "cifar10_keep", "cifar10_store", "cifar10_scores", "cifar10_table")
tool, collecting, keeping, storing, scoring, tabling = map(importlib.import_module, names)
showing, drawing, comparing, paging = map(
    importlib.import_module, ("cifar10_pages", "cifar10_figures", "compare_settings", "pages")
)


def calibration_error(mean: np.ndarray, labels: np.ndarray) -> float:
    """The ECE over 15 bins of equal width."""
    sure, right = mean.max(1), mean.argmax(1) == labels
    bins = np.digitize(sure, np.arange(1, 15) / 15, right=True)
    return float(sum(abs((right - sure)[bins == b].sum()) for b in range(15)) / len(labels))


def calibrated_nll(mean: np.ndarray, labels: np.ndarray) -> float:
    """The NLL with a temperature fitted on the other half of the images, by scipy."""

    def cost(log_t: float, half: int) -> float:
        z = np.log(mean[half::2]) * math.exp(-log_t)
        own = z[np.arange(len(z)), labels[half::2]]
        return float((np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - own).sum())

    fits = [minimize_scalar(cost, bounds=(-3, 3), args=(half,), method="bounded").x for half in (0, 1)]
    return (cost(fits[1], 0) + cost(fits[0], 1)) / len(labels)


def recompute(folder: Path, row: dict[str, Any]) -> dict[str, float]:
    """The scores of a row from its files, with nothing of atmc: average, score, average over files."""
    found = []
    for name in row["probabilities"]:
        with np.load(folder / name) as stored:
            probs, labels = stored["probs"], stored["labels"]
        assert probs.dtype == np.float32  # one precision for all rows
        assert probs.min() > 0  # so that whoever takes the logarithm needs no rule for zeros
        mean = probs.astype(np.float64).mean(0)
        own = mean[np.arange(len(labels)), labels]
        found.append(
            {
                "accuracy": (mean.argmax(1) == labels).mean(),
                "nll": -np.log(own).mean(),
                "calibrated_nll": calibrated_nll(mean, labels),
                "ece": calibration_error(mean, labels),
                "brier": ((mean - np.eye(mean.shape[1])[labels]) ** 2).sum(1).mean(),
            }
        )
    return {score: float(np.mean([scores[score] for scores in found])) for score in found[0]}


def same(one: Any, two: Any) -> bool:
    """Equal JSON values, numbers to nine digits: another CPU may add in another order."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and isinstance(two, int | float):
        return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == two)
