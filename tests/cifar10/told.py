"""What docs/cifar10.md says, to be held to what is kept: its tables and its numbers."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
from scipy import stats

from .rescored import ROOT

DOCS = (ROOT / "docs" / "cifar10.md").read_text(encoding="utf-8")
TEXT = " ".join(DOCS.split())  # without its line breaks
# Runs of exploration.json that several parts of the story speak of.
FOUR = "T0.02 after 0, speed 0.0025, hold 0.6, explore 0.8, four chains of 100 epochs"
CONTROLS = [f"T0.02 after 0, speed 0.0025, hold 0.6, explore 0.99{seed}, 100 epochs" for seed in ("", ", seed 1")]


def table_after(words: str) -> list[list[str]]:
    """The cells of the first table of the page after some words, without its head."""
    lines = DOCS[DOCS.index(words) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| "))
    found = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def agree(said: str, kept: float, digits: int = 3) -> bool:
    """Whether a number of the page is one that is kept, in four digits: both were rounded from the same."""
    return abs(float(said.replace(",", "")) - kept) < 0.5 * 10**-digits + 0.5 * 10**-4 * max(1.0, abs(kept))


def scored(cell: str, sample: dict[str, Any], what: str) -> bool:
    """Whether a cell as 94.1 / .211 has the scores of a sample."""
    accuracy, nll = cell.split(" / ")
    return agree(accuracy, 100 * sample[f"{what} accuracy"], 1) and agree(nll, sample[f"{what} nll"])


def said_by_runs(explored: dict[str, dict[str, Any]], rows: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What the runs of some rows said of their samples, in float32, by the keys of the rows."""
    runs = {key: next(run for name, run in explored.items() if f"(the row {row})" in name) for key, row in rows.items()}
    return {key: run["samples"] for key, run in runs.items()}


def bare(text: str) -> str:
    """Numbers as the page writes them, without the zero before the point."""
    return re.sub(r"(?<!\d)0\.", ".", text)


def said_of(row: dict[str, Any], ece: bool = False) -> str:
    """A row's scores as the page writes them."""
    return bare(f"{100 * row['accuracy']:.2f} / {row['nll']:.3f}" + (f", ECE {row['ece']:.3f}" if ece else ""))


def between(one: np.ndarray, two: np.ndarray, digits: int) -> str:
    """The difference of two groups of chains with its standard error, as the page writes it: they are not pairs."""
    error = np.sqrt(one.var(ddof=1) / len(one) + two.var(ddof=1) / len(two))
    return bare(f"{one.mean() - two.mean():.{digits}f} ± {error:.{digits}f}")


def p_of(one: np.ndarray, two: np.ndarray) -> float:
    return float(stats.ttest_ind(one, two, equal_var=False).pvalue)
