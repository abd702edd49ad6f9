"""The figures of the CIFAR-10 page, from what is stored, as SVG.

    calibration  the paper's figure: accuracy against confidence in 8 equally sized bins
    nll-samples  NLL against the number of samples averaged
    nll-epochs   NLL against the epochs seen: the average so far, and each sample by itself

A row keeps its colour. With several seeds curves are means over them, and calibration is that of the first: pooling
seeds would narrow the intervals, though the test images are the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from atmc.common.errors import InputError
from atmc.posterior import metrics
from atmc.report.output_files import write
from atmc.report.plot_style import SERIES, WIDE, Ink, sheet, svg
from cifar10_pages import short_name
from cifar10_scores import cycles_of
from cifar10_store import Array, Predictor, Row, load_predictors, load_rows
from cifar10_table import ENSEMBLE, NETWORK

BINS = 8  # the paper's
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:.4g}\u202f%")
TITLE = "NLL on the test set, nats"


@dataclass(frozen=True)
class Line:
    """A collected row as the figures draw it."""

    name: str
    kind: str
    sampler: str
    chains: int  # that are averaged
    predictors: list[Predictor]
    colour: str
    marker: str = "o"
    cycle: int | None = None  # epochs of one, where the run has them

    @property
    def averages(self) -> bool:
        """Whether there is more than one sample to average."""
        return min(found.samples for found in self.predictors) > 1

    def curve(self, of: str) -> Array:
        """The NLL of the `average` so far or of `single` samples, the mean over predictors as far as the shortest."""
        curves = [found.curves[of]["nll"] for found in self.predictors]
        return np.mean([curve[: min(map(len, curves))] for curve in curves], axis=0)


def save_figures(folder: Path, rows: Sequence[Row], into: Path) -> list[Path]:
    """Draw `rows`, which were collected in `folder`; returns the files written."""
    lines = lines_of(folder, rows, Ink.paper())
    into.mkdir(parents=True, exist_ok=True)
    return [write(into / f"{name}.svg", svg(figure)) for name, figure in figures(lines, Ink.paper())]


def lines_of(folder: Path, rows: Sequence[Row], ink: Ink) -> list[Line]:
    """One line for each collected row that is not set aside, in the table's order and named as there."""
    # Of a sampled run the predictive, which is last.
    shown = list({row["run"]: row for row in rows if not row["aside"]}.values())
    if not shown:
        raise InputError(f"{folder} holds no rows yet: begin with python benchmarks/cifar10.py collect")
    collected = {row["row"]: load_predictors(folder, row) for row in load_rows(folder)}
    plans = {row["run"]: tomllib.loads((folder / row["recipe"]).read_text(encoding="utf-8")) for row in shown}
    return [
        Line(
            name=short_name(row),
            kind=row["kind"],
            sampler=row["sampler"],
            chains=row["chains"],
            predictors=collected[row["run"]],
            colour=ink.series(i),
            marker="os^"[i // SERIES % 3],  # colours come again, and then points have another shape
            cycle=plans[row["run"]]["schedule"].get("cycle_epochs"),
        )
        for i, row in enumerate(shown)
    ]


def figures(lines: Sequence[Line], ink: Ink) -> Iterator[tuple[str, Figure]]:
    """Every figure with its file name."""
    yield "calibration", calibration([line for line in lines if line.sampler in ("atmc", "sgd")], ink)
    if any(line.averages for line in lines):
        yield "nll-samples", against_samples(lines, ink)
    yield "nll-epochs", against_epochs(lines, ink)


@contextmanager
def drawn(lines: Sequence[Line], ink: Ink, xlabel: str, title: str) -> Iterator[tuple[Figure, Any]]:
    """Axes of one size, whatever is written below them: the names of what is in them, in two columns if they fit."""
    columns = 2 if max(len(line.name) for line in lines) <= 30 else 1
    rows = -(-(len(lines) + 1) // columns)
    with sheet(ink, (WIDE[0], WIDE[1] + 0.17 * rows), xlabel, title) as (figure, axes):
        yield figure, axes
        figure.legend(loc="outside lower left", ncols=columns)


def calibration(lines: Sequence[Line], ink: Ink) -> Figure:
    """Accuracy against confidence with 95 % intervals: predictives and trained networks, as in the paper's figure."""
    lines = [line for line in lines if line.kind != ENSEMBLE]
    with drawn(lines, ink, "Mean confidence of the bin", "Accuracy of the bin, test set") as (figure, axes):
        lowest = 1.0
        for line in lines:
            first = line.predictors[0]
            bins = metrics.calibration_bins(metrics.predictive(first.probs), first.labels, BINS)
            spread = [bins.accuracy - bins.low, bins.high - bins.accuracy]
            axes.errorbar(bins.confidence, bins.accuracy, spread, **_style(line), elinewidth=0.9)
            lowest = min(lowest, float(bins.low.min()), float(bins.confidence.min()))
        edge = max(0.0, np.floor(10 * lowest) / 10)
        axes.plot([edge, 1], [edge, 1], color=ink.muted, linewidth=0.8, linestyle=(0, (1, 2)), label="perfect")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PERCENT)
            axis.set_major_locator(MaxNLocator(5))
    return figure


def against_samples(lines: Sequence[Line], ink: Ink) -> Figure:
    """NLL of the average of the first k samples; a trained network is a dotted level."""
    with drawn(lines, ink, "Samples averaged", TITLE) as (figure, axes):
        for line in lines:
            curve = line.curve("average")
            if line.averages:
                axes.plot(np.arange(1, len(curve) + 1), curve, **_style(line))
            else:
                axes.axhline(curve[0], color=line.colour, linestyle=(0, (1, 1.5)), label=line.name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def against_epochs(lines: Sequence[Line], ink: Ink) -> Figure:
    """NLL where samples are taken: solid the average so far, dashed a sample alone. Overfitting would rise.

    Epochs are those of all chains together. Samples of the same cycle, of whatever chain, make one point, at its end,
    as do those that chains without cycles take at the same time, and the networks of an ensemble.
    """
    with drawn(lines, ink, "Epochs, of all chains together", f"{TITLE} (dashed: a sample alone)") as (figure, axes):
        for line in lines:
            average, alone = line.curve("average"), line.curve("single")
            taken = np.array(line.predictors[0].curves["epoch"][: len(average)])
            epochs = taken * line.chains
            if line.kind in (NETWORK, ENSEMBLE) or not line.averages:
                axes.plot(epochs[-1:], average[-1:], **_style(line, linestyle="none"))
                continue
            found = cycles_of(taken, line.cycle)
            each = [np.flatnonzero(found == number) for number in np.unique(found)]
            times = [epochs[same[-1]] for same in each]
            axes.plot(times, [average[same[-1]] for same in each], **_style(line))
            dashed = _style(line, linestyle=(0, (3, 2)), markerfacecolor="none", label=None)
            axes.plot(times, [alone[same].mean() for same in each], **dashed)
    return figure


def _style(line: Line, **changes: Any) -> dict[str, Any]:
    return {"color": line.colour, "marker": line.marker, "markersize": 3.5, "label": line.name} | changes
