"""Scores on a terminal: the paper's table and the numbers of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atmc.cli.console import table, width

if TYPE_CHECKING:
    from atmc.report.report_data import ReportData


SHORT = ("Setup", "T", "Augm.", "Acc. %", "NLL", "Brier", "ECE", "K", "Epochs", "Time")
ROOM = 96  # columns of a terminal that take the whole table; below, epochs and time are left to the report


def print_table(data: ReportData) -> None:
    """The table of a report, best values bold."""
    from atmc.report import table as rows_of

    rows = rows_of.rows(data.runs)
    best = rows_of.best(rows)
    shown = len(SHORT) if width() >= ROOM else len(SHORT) - 2
    strong = []
    for row in rows:
        marks = [False] * len(SHORT)
        for at, score in enumerate(rows_of.SCORES, start=3):
            marks[at] = rows_of.is_best(row, score, best)
        strong.append(marks[:shown])
    named = zip(rows, rows_of.setups(rows), strict=True)
    cells = [(setup, *rows_of.cells(row)[1:shown]) for row, setup in named]
    table(SHORT[:shown], cells, strong)


def print_scores(summary: dict[str, Any]) -> None:
    """Single sample and predictive of one run, side by side."""
    samples = summary["samples"]
    lines = [("last sample", summary["single"])]
    if samples > 1:
        lines.append((f"predictive of {samples} samples", summary["predictive"]))
    if "scaled" in summary:
        lines.append(("predictive, temperature-scaled on validation", summary["scaled"]))
    names = [("accuracy", "accuracy %"), ("nll", "NLL nats"), ("brier", "Brier"), ("ece", "ECE")]
    if "rmse" in summary["single"]:
        names = [("rmse", "RMSE"), ("nll", "NLL nats"), ("coverage90", "in 90 % interval %")]
    percent = ("accuracy", "coverage90")
    rows = []
    for label, scores in lines:
        cells = [f"{100 * scores[key]:.1f}" if key in percent else _digits(scores[key], key) for key, _ in names]
        rows.append((label, *cells))
    table(("", *(heading for _, heading in names)), rows)


def _digits(value: float, name: str) -> str:
    # An error is in the units of the targets, which may be any: three digits of it, wherever they are.
    return f"{value:.3g}" if name == "rmse" else f"{value:.3f}"
