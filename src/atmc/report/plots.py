"""The plots of a report; `plot_style.py` sets their style.

A run keeps its colour through all plots. Solid lines are the posterior predictive, dashed lines one sample.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from atmc.report.plot_style import NARROW, WIDE, Ink, sheet
from atmc.report.report_data import Array, ReportData, RunFacts, Trace

_TRACE_POINTS = 400
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:.4g}\u202f%")


@dataclass(frozen=True)
class Plot:
    """A plot: its file name, its description for screen readers, and how to draw it."""

    name: str
    label: str
    draw: Callable[[Ink], Figure]


def plots(data: ReportData) -> Iterator[Plot]:
    """Every plot for which there are data."""
    runs = data.runs
    yield Plot("calibration", _calibration_label(runs), lambda ink: _calibration(runs, ink))
    yield Plot("risk-coverage", "Error rate against the share of images answered", lambda ink: _risk(runs, ink))
    if any(len(run.growth.samples) > 1 for run in runs):
        yield Plot("nll-samples", "NLL against the number of samples averaged", lambda ink: _growth(runs, "nll", ink))
        yield Plot(
            "accuracy-samples",
            "Accuracy against the number of samples averaged",
            lambda ink: _growth(runs, "accuracy", ink),
        )
        if all(len(run.growth.gap) for run in runs):
            label = "Mean gap between confidence and accuracy against the number of samples averaged"
            yield Plot("calibration-samples", label, lambda ink: _growth(runs, "gap", ink))
    for name, title in (
        ("loss", "Training loss"),
        ("temperature", "Kinetic temperature"),
        ("thermostat", "Thermostat"),
    ):
        if any(has_trace(trace, name) for run in runs for trace in run.traces):
            yield Plot(name, f"{title} over the epochs", lambda ink, n=name: trace_plot(runs, n, ink))  # type: ignore[misc]
    if any(run.shift for run in runs):
        for score, title in (("accuracy", "Accuracy"), ("nll", "NLL [nats]"), ("ece", "ECE")):
            label = f"{title} against the severity of corruptions"
            yield Plot(f"shift-{score}", label, lambda ink, s=score, t=title: _shift(runs, s, t, ink))  # type: ignore[misc]
    for i, run in enumerate(runs):
        if run.ood:
            label = f"Uncertainty of {run.name} on test images and on OOD images"
            name = "ood" if len(runs) == 1 else f"ood-{i + 1}"
            yield Plot(name, label, lambda ink, r=run, c=i: _ood(r, c, ink))  # type: ignore[misc]


def _calibration_label(runs: tuple[RunFacts, ...]) -> str:
    parts = [
        f"{run.name}: mean gap {100 * float(np.mean(np.abs(run.bins.confidence - run.bins.accuracy))):.1f} points"
        for run in runs
    ]
    return "Accuracy against confidence in eight equally sized bins. " + "; ".join(parts)


def _calibration(runs: tuple[RunFacts, ...], ink: Ink) -> Figure:
    with sheet(ink, WIDE, "Mean confidence of the bin", "Accuracy of the bin") as (figure, axes):
        lowest = min(float(np.min([run.bins.low.min(), run.bins.confidence.min()])) for run in runs)
        edge = max(0.0, np.floor(lowest * 10) / 10)
        axes.plot([edge, 1], [edge, 1], color=ink.muted, linewidth=0.8, linestyle=(0, (1, 2)), label="perfect")
        for i, run in enumerate(runs):
            colour = ink.series(i)
            if run.samples_weights:
                axes.plot(
                    run.bins_single.confidence,
                    run.bins_single.accuracy,
                    **_single(colour, ink),
                    label=f"{short(run.name)}, single sample",
                )
            spread = np.stack([run.bins.accuracy - run.bins.low, run.bins.high - run.bins.accuracy]).clip(min=0)
            axes.errorbar(
                run.bins.confidence,
                run.bins.accuracy,
                yerr=spread,
                color=colour,
                marker="o",
                markersize=4,
                elinewidth=0.9,
                label=short(run.name),
            )
        axes.set_xlim(edge, 1.01)
        axes.set_ylim(edge, 1.02)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PERCENT)
            axis.set_major_locator(MaxNLocator(5))
        legend(axes, ink, "upper left")
        return figure


def _single(colour: str, ink: Ink) -> dict[str, Any]:
    return {
        "color": colour,
        "linestyle": (0, (3, 2)),
        "linewidth": 1.0,
        "marker": "o",
        "markersize": 3,
        "markerfacecolor": "none",
        "alpha": 0.8,
    }


def _risk(runs: tuple[RunFacts, ...], ink: Ink) -> Figure:
    with sheet(ink, WIDE, "Share of images answered", "Error rate among the answered") as (figure, axes):
        # The most confident predictions of a good network are all right: begin near the first mistake.
        starts = [run.risk.coverage[np.argmax(run.risk.risk > 0)] for run in runs if (run.risk.risk > 0).any()]
        start = max(0.0, np.floor(10 * min(starts, default=0.0)) / 10 - 0.1)
        highest = 0.0
        for i, run in enumerate(runs):
            colour = ink.series(i)
            whole: dict[str, Any] = {"color": colour, "label": short(run.name)}
            single = {k: v for k, v in _single(colour, ink).items() if not k.startswith("marker")}
            single["label"] = f"{short(run.name)}, single sample"
            curves = [(run.risk_single, single)] if run.samples_weights else []
            for curve, style in (*curves, (run.risk, whole)):
                seen = curve.coverage >= start
                x, y = _thin(curve.coverage[seen], curve.risk[seen])
                axes.plot(x, y, **style, clip_on=False)  # at 0, half of a line would be cut
                highest = max(highest, float(np.max(y, initial=0.0)))
        axes.set_xlim(start, 1)
        axes.set_ylim(bottom=0)
        if highest == 0:  # an empty plot would look like a failure
            axes.set_ylim(0, 0.01)
            axes.text(0.5, 0.5, "No mistakes", transform=axes.transAxes, ha="center", va="center", color=ink.muted)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_formatter(PERCENT)
        legend(axes, ink, "upper left")
        return figure


_GROWTH_TITLES = {
    "nll": "NLL on the test set, nats",
    "accuracy": "Accuracy on the test set",
    "gap": "Gap between confidence and accuracy",
}


def _growth(runs: tuple[RunFacts, ...], score: str, ink: Ink) -> Figure:
    with sheet(ink, NARROW, "Samples averaged", _GROWTH_TITLES[score]) as (figure, axes):
        longest = max(int(run.growth.samples[-1]) for run in runs)
        for i, run in enumerate(runs):
            values = getattr(run.growth, score)
            if len(values) == 1:
                axes.axhline(
                    values[0], color=ink.series(i), linestyle=(0, (1, 1.5)), label=f"{short(run.name)}, one network"
                )
            else:
                axes.plot(
                    run.growth.samples, values, color=ink.series(i), marker="o", markersize=3, label=short(run.name)
                )
        axes.set_xlim(left=min(1, longest) - 0.02 * longest)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if score != "nll":
            axes.yaxis.set_major_formatter(PERCENT)
            low, high = axes.get_ylim()  # margins that no share can lie in are cut to what a marker needs
            edge = 0.02 * (high - low)
            axes.set_ylim(max(low, -edge), min(high, 1.0 + edge))
        legend(axes, ink, "best")
        return figure


def has_trace(trace: Trace, name: str) -> bool:
    return bool(np.isfinite(getattr(trace, name)).any())


_TRACE_TITLES = {
    "loss": "Training loss per example, nats",
    "temperature": "Kinetic temperature (target dotted)",
    "thermostat": "Thermostat ξ: median, and 98 % of weights",
}


def trace_plot(runs: tuple[RunFacts, ...], name: str, ink: Ink) -> Figure:
    with sheet(ink, NARROW, "Epoch", _TRACE_TITLES[name]) as (figure, axes):
        goals = set()
        for i, run in enumerate(runs):
            traces = [trace for trace in run.traces if has_trace(trace, name)]
            for j, trace in enumerate(traces):
                x, y = _thin(trace.epoch, getattr(trace, name), _TRACE_POINTS)
                if name == "thermostat":
                    low, high = (
                        _thin(trace.epoch, y, _TRACE_POINTS)[1] for y in (trace.thermostat_low, trace.thermostat_high)
                    )
                    axes.fill_between(x, low, high, color=ink.series(i), alpha=0.15, linewidth=0)
                faint = 1.0 if len(traces) == 1 else 0.65
                axes.plot(
                    x, y, color=ink.series(i), linewidth=1.1, alpha=faint, label=short(run.name) if j == 0 else None
                )
            if traces and run.temperature is not None:
                goals.add(run.temperature)
        if name == "temperature":
            for goal in sorted(goals):
                axes.axhline(goal, color=ink.muted, linewidth=0.9, linestyle=(0, (1, 2)))
        if name != "thermostat" and _spans_decades(runs, name):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        legend(axes, ink, "best")
        return figure


def _spans_decades(runs: tuple[RunFacts, ...], name: str) -> bool:
    values = np.concatenate([getattr(trace, name) for run in runs for trace in run.traces])
    values = values[np.isfinite(values)]
    return bool(len(values) and values.min() > 0 and values.max() > 10 * values.min())


def _shift(runs: tuple[RunFacts, ...], score: str, title: str, ink: Ink) -> Figure:
    with sheet(ink, NARROW, "Severity of corruptions (0: none)", title) as (figure, axes):
        for i, run in enumerate(runs):
            if run.shift is not None:
                axes.plot(range(6), run.shift.curve(score), color=ink.series(i), marker="o", ms=3, label=run.name)
                if run.shift.samples > 1:
                    alone = run.shift.curve(score, single=True)
                    axes.plot(range(6), alone, color=ink.series(i), linestyle="--", linewidth=1.1)
        if score == "accuracy":
            axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if ink.legend:
            axes.legend()
        return figure


def _ood(run: RunFacts, colour: int, ink: Ink) -> Figure:
    with sheet(ink, WIDE, "Uncertainty: entropy of the prediction, nats", "Share of images") as (figure, axes):
        top = max(float(np.max(s.entropy, initial=0.0)) for s in run.ood)
        top = max(top, float(np.max(run.ood[0].test_entropy, initial=0.0)), 1e-3)
        edges = np.linspace(0.0, top, 25)
        home = _shares(run.ood[0].test_entropy, edges)
        axes.stairs(home, edges, fill=True, color=ink.series(colour), alpha=0.25)
        axes.stairs(home, edges, color=ink.series(colour), linewidth=1.4, label=short(f"{run.title}, {run.split}"))
        for j, other in enumerate(run.ood):
            share = _shares(other.entropy, edges)
            axes.stairs(share, edges, color=ink.series(5 - j % 4), linewidth=1.4, label=short(other.name))
        axes.yaxis.set_major_formatter(PERCENT)
        axes.set_xlim(0, top)
        axes.legend(loc="best")
        return figure


def _shares(values: Array, edges: Array) -> Array:
    counts, _ = np.histogram(values[np.isfinite(values)], edges)
    return np.asarray(counts / max(counts.sum(), 1), dtype=np.float64)


def _thin(x: Array, y: Array, points: int = 200) -> tuple[Array, Array]:
    """At most `points` of a long curve, its ends included, to keep the page small."""
    if len(x) <= points:
        return x, y
    keep = np.unique(np.linspace(0, len(x) - 1, points).round().astype(int))
    return x[keep], y[keep]


def short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:15]}…{name[-16:]}"


def legend(axes: Any, ink: Ink, where: str) -> None:
    # The page has one legend for all plots, in HTML; a file must carry its own.
    if ink.legend:
        axes.legend(loc=where)
