"""The plots of a regression's report: predicted against true, coverage, residuals, and the chains' traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atmc.report.plot_style import WIDE, Ink, sheet
from atmc.report.plots import PERCENT, Plot, has_trace, legend, short, trace_plot
from atmc.report.regression_data import LEVEL, LEVELS, NumbersFacts

POINTS = 400  # drawn, evenly chosen


def regression_plots(runs: tuple[NumbersFacts, ...]) -> Iterator[Plot]:
    """Every plot for which there are data."""
    for i, run in enumerate(runs):
        own = "" if len(runs) == 1 else f"-{i + 1}"
        inside = 100 * run.predictive["coverage90"].value
        label = f"Predicted against true targets of {run.name}; {inside:.1f} % lie in their 90 % interval"
        yield Plot(f"predicted{own}", label, lambda ink, r=run, c=i: _predicted(r, c, ink))  # type: ignore[misc]
        label = f"Residuals of {run.name} in standard deviations against the prediction"
        yield Plot(f"residuals{own}", label, lambda ink, r=run, c=i: _residuals(r, c, ink))  # type: ignore[misc]
    yield Plot("coverage", "Share of targets inside intervals against their level", lambda ink: _coverage(runs, ink))
    for name, title in (("loss", "Training loss"), ("temperature", "Kinetic temperature")):
        if any(has_trace(trace, name) for run in runs for trace in run.traces):
            yield Plot(name, f"{title} over the epochs", lambda ink, n=name: trace_plot(cast(Any, runs), n, ink))  # type: ignore[misc]


def _some(run: NumbersFacts) -> Any:
    count = len(run.true)
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))


def _predicted(run: NumbersFacts, colour: int, ink: Ink) -> Figure:
    with sheet(ink, WIDE, "True value", f"Predicted, with {100 * LEVEL:.0f} % interval") as (figure, axes):
        some = _some(run)
        ends = [float(np.min([run.true[some], run.low[some]])), float(np.max([run.true[some], run.high[some]]))]
        axes.plot(ends, ends, color=ink.muted, linewidth=0.8, linestyle=(0, (1, 2)))
        outside = ~run.inside
        for where, tone in ((some[~outside[some]], ink.series(colour)), (some[outside[some]], ink.ink)):
            if len(where):
                reach = np.stack([run.mean[where] - run.low[where], run.high[where] - run.mean[where]]).clip(min=0)
                axes.errorbar(
                    run.true[where],
                    run.mean[where],
                    yerr=reach,
                    fmt="o",
                    color=tone,
                    markersize=2.5,
                    elinewidth=0.5,
                    alpha=0.7,
                )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
        return figure


def _residuals(run: NumbersFacts, colour: int, ink: Ink) -> Figure:
    with sheet(ink, WIDE, "Predicted", "Error in standard deviations") as (figure, axes):
        some = _some(run)
        for level in (-2.0, 0.0, 2.0):
            axes.axhline(level, color=ink.muted, linewidth=0.8, linestyle=(0, (1, 2)))
        z = (run.true[some] - run.mean[some]) / run.std[some]
        axes.plot(run.mean[some], z, "o", color=ink.series(colour), markersize=2.5, alpha=0.7)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
        return figure


def _coverage(runs: tuple[NumbersFacts, ...], ink: Ink) -> Figure:
    with sheet(ink, WIDE, "Level of the interval", "Share of targets inside") as (figure, axes):
        axes.plot([0, 1], [0, 1], color=ink.muted, linewidth=0.8, linestyle=(0, (1, 2)), label="perfect")
        count = len(runs[0].true)
        error = 1.96 * np.sqrt(LEVELS * (1 - LEVELS) / count)
        axes.fill_between(LEVELS, LEVELS - error, LEVELS + error, color=ink.rule, alpha=0.6, linewidth=0)
        for i, run in enumerate(runs):
            axes.plot(LEVELS, run.coverage, color=ink.series(i), marker="o", markersize=3, label=short(run.name))
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PERCENT)
            axis.set_major_locator(MaxNLocator(5))
        legend(axes, ink, "upper left")
        return figure
