"""The report of regressions: one self-contained page, as `page` makes for classifiers."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from atmc.posterior.metric_entries import columns
from atmc.report.page import GENERATOR, environment, palette, template_text
from atmc.report.plot_style import SERIES, Ink, page_svg
from atmc.report.regression_data import NumbersFacts, gather_numbers
from atmc.report.regression_plots import regression_plots

LOOSE = 0.03  # of the coverage of a 90 % interval, beyond which it is said to be off


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

    ink = Ink.page()
    drawn = {p.name: Markup(page_svg(p.draw(ink), p.name, p.label)) for p in regression_plots(runs)}
    metrics = columns("regression")
    bests = [metric.best([run.predictive.get(metric.name) for run in runs]) for metric in metrics]
    views = [
        {"run": run, "colour": i % SERIES + 1, "own": "" if len(runs) == 1 else f"-{i + 1}"}
        for i, run in enumerate(runs)
    ]
    rows = [
        {
            "run": run.name,
            "cells": [
                {
                    "heading": metric.heading,
                    "text": metric.shown(run.predictive.get(metric.name)),
                    "alone": metric.shown(run.single.get(metric.name)),
                    "best": len(runs) > 1 and metric.shown(run.predictive.get(metric.name)) == best,
                }
                for metric, best in zip(metrics, bests, strict=True)
            ],
        }
        for run in runs
    ]
    context: dict[str, Any] = {
        "runs": runs,
        "views": views,
        "rows": rows,
        "headings": [metric.heading for metric in metrics],
        "plots": drawn,
        "verdict": regression_verdict(runs),
        "generator": Markup(GENERATOR),
        "style": Markup(palette() + template_text("page.css")),
        "made_on": datetime.date.today().isoformat(),
        "version": atmc.__version__,
        "command": command,
    }
    return environment().from_string(template_text("regression.html")).render(context)


def regression_verdict(runs: Sequence[NumbersFacts]) -> list[str]:
    """What stands at the top: error, uncertainty and whether intervals hold what they promise."""
    said = []
    for run in runs:
        inside, error = run.predictive["coverage90"], run.predictive["rmse"]
        start = f"{run.name}: RMSE {error:.3g}" if len(runs) > 1 else f"The root mean squared error is {error:.3g}"
        noise = f"the noise has a standard deviation of {run.noise:.3g}, and samples differ by {run.spread:.3g}"
        parts = f"{start}; {noise}."
        chance = 1.96 * math.sqrt(0.9 * 0.1 / len(run.true))  # by which it may be off though all is right
        verdict = (
            "as it should be" if abs(inside - 0.9) <= LOOSE else f"which chance allows for {len(run.true)} of them"
        )
        if abs(inside - 0.9) > max(LOOSE, chance):
            verdict = "which is overconfident" if inside < 0.9 else "which is underconfident"
        said += [parts, f"{100 * inside:.1f} % of the targets lie in their 90 % interval, {verdict}."]
    return said
