"""Scores from stored probabilities by a few independent lines of numpy, and the modules of `benchmarks/` under test."""

from __future__ import annotations

import importlib
import itertools
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "cifar10"

sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names
tool, collecting, keeping, storing, tabling, drawing, exploring = (
    importlib.import_module(name)
    for name in (
        "cifar10",
        "cifar10_collect",
        "cifar10_keep",
        "cifar10_rows",
        "cifar10_table",
        "cifar10_figures",
        "explore",
    )
)


def calibration_error(mean: np.ndarray, labels: np.ndarray) -> float:
    """The ECE over 15 bins of equal width."""
    sure, right = mean.max(1), mean.argmax(1) == labels
    bins = np.digitize(sure, np.arange(1, 15) / 15, right=True)
    return float(sum(abs((right - sure)[bins == b].sum()) for b in range(15)) / len(labels))


def recompute(folder: Path, row: dict[str, Any]) -> dict[str, float]:
    """The scores of a row from its files, with nothing of atmc: average, score, average over seeds."""
    found = []
    for names in storing.by_predictor(row["probabilities"]):
        parts = [np.load(folder / name) for name in names]
        probs, labels = np.concatenate([part["probs"] for part in parts]), parts[0]["labels"]
        if len(probs) > 1 and probs.dtype == np.float32:  # only where float16 would change the score
            assert storing.stored(probs, labels).dtype == np.float32
        else:
            assert probs.dtype == (np.float32 if len(probs) == 1 else np.float16)
        assert probs.min() > 0  # so that whoever takes the logarithm needs no rule for zeros
        assert len(probs) >= row["samples"]
        mean = probs.astype(np.float64).mean(0)
        own = mean[np.arange(len(labels)), labels]
        found.append(
            {
                "accuracy": (mean.argmax(1) == labels).mean(),
                "nll": -np.log(own).mean(),
                "ece": calibration_error(mean, labels),
                "brier": ((mean - np.eye(mean.shape[1])[labels]) ** 2).sum(1).mean(),
            }
        )
    return {score: float(np.mean([scores[score] for scores in found])) for score in found[0]}


def same(one: Any, two: Any) -> bool:
    """Equal JSON values, numbers to nine digits: another CPU may add in another order."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and isinstance(two, int | float):
        return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == two)


def probabilities(row: str) -> np.ndarray:
    """Those of a row's samples, in float64."""
    return np.load(RESULTS / f"{row}-0.npz")["probs"].astype(np.float64)


def costs(probs: np.ndarray) -> np.ndarray:
    """The NLL of each test image."""
    labels = np.load(RESULTS / "atmc-short-0.npz")["labels"]
    return -np.log(probs[..., np.arange(len(labels)), labels])


def ahead(row: str, of: str) -> tuple[str, str]:
    """By how much the average of a row is ahead of another's, in NLL and in points, with standard errors."""
    labels = np.load(RESULTS / f"{row}-0.npz")["labels"]
    means = [probabilities(name).mean(0) for name in (row, of)]
    less = costs(means[1]) - costs(means[0])
    more = 100.0 * np.subtract(*[(mean.argmax(-1) == labels).astype(float) for mean in means])
    error = len(labels) ** 0.5
    return tuple(
        re.sub(r"(?<!\d)0\.", ".", f"{x.mean():.{digits}f} ± {x.std(ddof=1) / error:.{digits}f}")
        for x, digits in ((less, 4), (more, 2))
    )


def limit(probs: np.ndarray) -> tuple[float, float]:
    """a and b of a + b/n, the NLL of n samples, from all of them."""
    alone, together, n = costs(probs).mean(), costs(probs.mean(0)).mean(), len(probs)
    a = (n * together - alone) / (n - 1)
    return a, alone - a


def differ(probs: np.ndarray, chains: list[int]) -> tuple[float, float]:
    """On how many per cent of the images two samples disagree, of one chain and of two."""
    found = {True: [], False: []}
    for i, j in itertools.combinations(range(len(probs)), 2):
        found[chains[i] == chains[j]].append(100 * np.mean(probs[i].argmax(-1) != probs[j].argmax(-1)))
    return tuple(float(np.mean(each)) if each else float("nan") for each in found.values())
