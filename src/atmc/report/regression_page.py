"""The report of regressions: one self-contained page, as `page` makes for classifiers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from atmc.common.text import duration, plural
from atmc.posterior.intervals import clearly_best
from atmc.posterior.metric_entries import columns
from atmc.report.glossary import terms
from atmc.report.page import GENERATOR, filled
from atmc.report.plot_style import SERIES, Ink, page_svg
from atmc.report.regression_answers import (
    best_of,
    by_prediction,
    by_uncertainty,
    coverage_said,
    largest,
    regression_answers,
)
from atmc.report.regression_data import NumbersFacts, gather_numbers
from atmc.report.regression_plots import regression_plots
from atmc.report.table import interval


def build_regression(
    runs: Sequence[str | Path], out: str | Path, figures: str | Path | None = None, *, command: str = ""
) -> tuple[NumbersFacts, ...]:
    """Write the report of runs of a regression to `out`, their plots also into `figures`; return what it says."""
    from atmc.report.output_files import refuse_foreign, write
    from atmc.report.plot_style import png, svg

    refuse_foreign(Path(out), GENERATOR)
    found, command = gather_numbers([Path(run) for run in runs], command)
    write(Path(out), render_regression(found, command))
    if figures is not None:
        Path(figures).mkdir(parents=True, exist_ok=True)
        for plot in regression_plots(found):
            figure = plot.draw(Ink.paper())
            write(Path(figures) / f"{plot.name}.svg", svg(figure))
            write(Path(figures) / f"{plot.name}.png", png(figure))
    return found


def render_regression(runs: tuple[NumbersFacts, ...], command: str = "") -> str:
    """The whole page as text."""
    import atmc

    ink, main = Ink.page(), best_of(runs)
    drawn = {p.name: Markup(page_svg(p.draw(ink), p.name, p.label)) for p in regression_plots(runs)}
    context: dict[str, Any] = {
        "answers": regression_answers(runs),
        "views": [_view(run, i, len(runs)) for i, run in enumerate(runs)],
        "rows": _rows(runs),
        "headings": [{"key": metric.name, "text": metric.heading} for metric in columns("regression")],
        "plots": drawn,
        "main": main,
        "by_prediction": by_prediction(main),
        "by_uncertainty": by_uncertainty(main),
        "largest": largest(main),
        "mixed": False,
        "made_on": datetime.date.today().isoformat(),
        "version": atmc.__version__,
        "command": command,
    }
    return filled("regression.html", runs, terms("regression"), context)


def _view(run: NumbersFacts, i: int, total: int) -> dict[str, Any]:
    """One run with its colour, the ending of its plots' names, and what it was."""
    method = run.method + ("" if run.temperature is None else f", T = {run.temperature:g}")
    length = f"{run.epochs:g} epochs, {duration(run.seconds)} on {run.device}"
    samples = f"{plural(run.samples, 'sample')} of {plural(run.chains, 'chain')}"
    details = {"Method": method, "Network": run.network, "Samples": samples, "Length": length, **run.facts}
    return {"run": run, "colour": i % SERIES + 1, "own": "" if total == 1 else f"-{i + 1}", "details": details}


def _rows(runs: tuple[NumbersFacts, ...]) -> list[dict[str, Any]]:
    """The table of scores: of each run the predictive and the last sample, and one answer for every example."""
    named = [(run.name, f"posterior predictive, {plural(run.samples, 'sample')}", run.predictive) for run in runs]
    for i, run in enumerate(runs):
        if run.samples > 1:
            named.insert(2 * i + 1, (run.name, "last sample alone", run.single))
    metrics = columns("regression")
    best = {metric.name: clearly_best(metric, [spreads[metric.name] for _, _, spreads in named]) for metric in metrics}
    named.append(("Mean of the targets", "one answer for every example", runs[0].constant))
    rows = []
    for at, (name, about, spreads) in enumerate(named):
        cells = [
            {
                "heading": metric.heading,
                "text": metric.shown(spreads[metric.name].value),
                "interval": interval(metric, spreads) if at < len(named) - 1 else "",
                "best": best[metric.name] == at,
            }
            for metric in metrics
        ]
        rows.append({"name": name, "about": about, "cells": cells, "constant": at == len(named) - 1})
    return rows


def regression_verdict(runs: Sequence[NumbersFacts]) -> list[str]:
    """What the terminal says: error, uncertainty and whether intervals hold what they promise."""
    said = []
    for run in runs:
        rmse = run.predictive["rmse"]
        name = f"{run.name}: " if len(runs) > 1 else ""
        said += [
            f"{name}RMSE {rmse.value:.3g} ({rmse.low:.3g} to {rmse.high:.3g}); always predicting the mean has "
            f"{run.constant['rmse'].value:.3g}.",
            coverage_said(run),
        ]
    return said
