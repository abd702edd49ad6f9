"""Tables of scores on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atmc.cli.console import table, width
from atmc.posterior.metric_entries import Task, columns

if TYPE_CHECKING:
    from atmc.report.report_data import ReportData


ROOM = 96  # columns for the whole table; narrower ones omit epochs and time


def print_table(data: ReportData) -> None:
    """The table of a report, best values bold."""
    from atmc.report import table as rows_of

    rows = rows_of.rows(data.runs)
    bests = rows_of.best(rows)
    short = ("Setup", "T", "Augm.", *(metric.short or metric.label for metric in columns()), "K", "Epochs", "Time")
    shown = len(short) if width() >= ROOM else len(short) - 2
    strong = [[i in rows_of.winners(row, bests) for i in range(shown)] for row in rows]
    named = zip(rows, rows_of.setups(rows), strict=True)
    cells = [(setup, *rows_of.cells(row)[1:shown]) for row, setup in named]
    table(short[:shown], cells, strong)


def print_scores(summary: dict[str, Any], task: Task) -> None:
    """Single sample and predictive of one run, side by side."""
    samples = summary["samples"]
    lines = [("last sample", summary["single"])]
    if samples > 1:
        lines.append((f"predictive of {samples} samples", summary["predictive"]))
    if "scaled" in summary:
        lines.append(("predictive, temperature-scaled on validation", summary["scaled"]))
    score_table(lines, task)


def score_table(lines: Sequence[tuple[str, Mapping[str, float]]], task: Task = "classification") -> None:
    """A line for each set of scores, a column for each metric."""
    shown = columns(task)
    rows = [(label, *(metric.shown(scores.get(metric.name)) for metric in shown)) for label, scores in lines]
    table(("", *(f"{metric.label} {metric.unit}".strip() for metric in shown)), rows)
