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
    """The table of a report, what is clearly best in bold, and beneath it what answers without looking would score."""
    from atmc.report import table as rows_of

    rows = rows_of.rows(data.runs)
    winners = rows_of.winners(rows)
    short = ("Setup", "T", "Augm.", *(metric.short or metric.label for metric in columns()), "K", "Epochs", "Time")
    shown = len(short) if width() >= ROOM else len(short) - 2
    strong = [[i in own for i in range(shown)] for own in winners]
    named = zip(rows, rows_of.setups(rows), strict=True)
    cells = [(setup, *rows_of.cells(row)[1:shown]) for row, setup in named]
    for label, spreads in rows_of.constant_rows(data.runs):
        values = [metric.shown(spreads[metric.name].value) for metric in columns() if metric.name in spreads]
        line = (label.partition(":")[0].lower(), "", "", *values, "", "", "")
        cells.append(line[:shown])
        strong.append([False] * shown)
    table(short[:shown], cells, strong)


def print_scores(summary: dict[str, Any], task: Task) -> None:
    """Single sample and predictive of one run, side by side."""
    samples = summary["samples"]
    lines = [("last sample", summary["single"])]
    if samples > 1:
        lines.append((f"predictive of {samples} samples", summary["predictive"]))
    if "scaled" in summary:
        lines.append(("predictive, temperature-scaled on validation", summary["scaled"]))
    score_table(lines, task, summary.get("intervals"))


def score_table(
    lines: Sequence[tuple[str, Mapping[str, float]]],
    task: Task = "classification",
    intervals: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """A line for each set of scores, a column for each metric; beneath the last of them its 95 % intervals."""
    shown = columns(task)
    rows = [(label, *(metric.shown(scores.get(metric.name)) for metric in shown)) for label, scores in lines]
    if intervals:
        ends = [[metric.shown(end) for end in intervals.get(metric.name, (None, None))] for metric in shown]
        rows.insert(min(2, len(rows)), ("  its 95 % interval", *("–".join(pair) for pair in ends)))
    table(("", *(f"{metric.label} {metric.unit}".strip() for metric in shown)), rows)
