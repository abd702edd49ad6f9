"""The figures of the CIFAR-10 table, from the stored probabilities alone, as SVG and PNG.

    calibration                   the paper's figure: accuracy against confidence in 8 equally sized bins
    accuracy-samples, nll-samples against the number of samples averaged
    accuracy-epochs, nll-epochs   against the epochs seen: the average so far, and each sample by itself
    loss-epochs                   the training loss, of rows with the categorical likelihood: others have other units

A row keeps its colour through all of them, and the names stand below the axes, where no curve can run into them: there
will be a dozen. With several seeds curves are means over them, and calibration is that of
the first: pooling seeds would narrow the intervals, though the test images are the same ones.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from atmc.common.errors import InputError
from atmc.posterior import metrics
from atmc.report.output_files import write
from atmc.report.plot_style import SERIES, WIDE, Ink, png, sheet, svg
from cifar10_rows import Array, Predictor, load_predictors, load_rows
from cifar10_table import ENSEMBLE, NETWORK, build, by_samples, temperature

BINS = 8  # the paper's
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:.4g}\u202f%")
TITLES = {"accuracy": "Accuracy on the test set", "nll": "NLL on the test set, nats"}


@dataclass(frozen=True)
class Line:
    """A collected row as the figures draw it."""

    name: str
    kind: str
    sampler: str
    likelihood: str
    chains: int  # that are averaged
    predictors: list[Predictor]
    colour: str
    marker: str = "o"
    cycle: int | None = None  # epochs of one, where the run has them

    @property
    def dashes(self) -> str:
        """What tells lines of one colour apart where there are no points."""
        return {"o": "-", "s": "--", "^": ":"}[self.marker]

    @property
    def averages(self) -> bool:
        """Whether there is more than one sample to average."""
        return min(len(found.probs) for found in self.predictors) > 1


def save_figures(folder: Path, into: Path) -> list[Path]:
    """Draw everything that is collected in `folder`; returns the files written."""
    lines = lines_of(folder, Ink.paper())
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(lines, Ink.paper()):
        written += [write(into / f"{name}.svg", svg(figure)), write(into / f"{name}.png", png(figure))]
    return written


def lines_of(folder: Path, ink: Ink) -> list[Line]:
    """One line for each collected row that is not set aside, in the table's order and named as there."""
    # Of a sampled run the predictive, which is last.
    rows = list({row["run"]: row for row in build(folder) if not row["aside"]}.values())
    if not rows:
        raise InputError(f"{folder} holds no rows yet: begin with python benchmarks/cifar10.py collect")
    collected = {row["row"]: load_predictors(folder, row) for row in load_rows(folder)}
    plans = {row["run"]: tomllib.loads((folder / row["recipe"]).read_text(encoding="utf-8")) for row in rows}
    return [
        Line(
            name=_name(row),
            kind=row["kind"],
            sampler=row["sampler"],
            likelihood=row["likelihood"],
            chains=row["chains"],
            predictors=collected[row["run"]],
            colour=ink.series(i),
            marker="os^"[i // SERIES % 3],  # colours come again, and then points have another shape
            cycle=plans[row["run"]]["schedule"].get("cycle_epochs"),
        )
        for i, row in enumerate(rows)
    ]


def _name(row: dict[str, Any]) -> str:
    """As in the table, without the network: SGD + BatchNorm has its own, and all others the same."""
    name = re.sub(r", ResNet(\+\+)?-\d+×\d+|, posterior predictive|, average", "", str(row["row"]))
    return name if row["temperature"] is None else f"{name}, T = {temperature(row)}"


def figures(lines: Sequence[Line], ink: Ink) -> Iterator[tuple[str, Figure]]:
    """Every figure with its file name."""
    yield "calibration", calibration([line for line in lines if line.sampler in ("atmc", "sgd")], ink)
    for score in TITLES:
        if any(line.averages for line in lines):
            yield f"{score}-samples", against_samples(lines, score, ink)
        yield f"{score}-epochs", against_epochs(lines, score, ink)
    usual = [line for line in lines if line.likelihood == "categorical"]
    if any(len(found.trace) for line in usual for found in line.predictors):
        yield "loss-epochs", loss(usual, ink)


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


def against_samples(lines: Sequence[Line], score: str, ink: Ink) -> Figure:
    """A score of the average of the first k samples; a trained network is a dotted level."""
    with drawn(lines, ink, "Samples averaged", TITLES[score]) as (figure, axes):
        for line in lines:
            curve = by_samples(line.predictors)
            if line.averages:
                axes.plot(curve["samples"], curve[score], **_style(line))
            else:
                axes.axhline(curve[score][0], color=line.colour, linestyle=(0, (1, 1.5)), label=line.name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _percent(axes, score)
    return figure


def against_epochs(lines: Sequence[Line], score: str, ink: Ink) -> Figure:
    """A score where samples are taken: solid the average so far, dashed a sample alone. Overfitting would rise.

    Epochs are those of all chains together. Samples of the same cycle, of whatever chain, make one point, at its end,
    as do those that chains without cycles take at the same time, and the networks of an ensemble.
    """
    title = f"{TITLES[score]} (dashed: a sample alone)"
    with drawn(lines, ink, "Epochs, of all chains together", title) as (figure, axes):
        for line in lines:
            average = by_samples(line.predictors)[score]
            epochs = line.predictors[0].epochs[: len(average)] * line.chains
            if line.kind in (NETWORK, ENSEMBLE) or not line.averages:
                axes.plot(epochs[-1:], average[-1:], **_style(line, linestyle="none"))
                continue
            alone = np.mean([found.singles()[score][: len(average)] for found in line.predictors], axis=0)
            found = _cycles(line.predictors[0].epochs[: len(average)], line.cycle)
            each = [np.flatnonzero(found == number) for number in np.unique(found)]
            times = [epochs[same[-1]] for same in each]
            axes.plot(times, [average[same[-1]] for same in each], **_style(line))
            dashed = _style(line, linestyle=(0, (3, 2)), markerfacecolor="none", label=None)
            axes.plot(times, [alone[same].mean() for same in each], **dashed)
        _percent(axes, score)
    return figure


def loss(lines: Sequence[Line], ink: Ink) -> Figure:
    """Training loss of every chain of the first seed."""
    with drawn(lines, ink, "Epochs", "Training loss per image, nats") as (figure, axes):
        for line in lines:
            name: str | None = line.name
            for epochs, values in chains(line.predictors[0].trace):
                axes.plot(epochs, values, line.dashes, color=line.colour, linewidth=0.8, alpha=0.8, label=name)
                name = None
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    return figure


def _cycles(epochs: Array, length: int | None) -> Array:
    """The cycle that each sample ends or belongs to; without cycles each time is one."""
    return epochs if not length else np.ceil((epochs - 0.5) / length)


def chains(trace: Array) -> Iterator[tuple[Array, Array]]:
    """Epochs and losses of each chain of a trace."""
    for chain in np.unique(trace[:, 0]):
        own = trace[trace[:, 0] == chain]
        yield own[:, 1], own[:, 2]


def _style(line: Line, **changes: Any) -> dict[str, Any]:
    return {"color": line.colour, "marker": line.marker, "markersize": 3.5, "label": line.name} | changes


def _percent(axes: Any, score: str) -> None:
    if score == "accuracy":
        axes.yaxis.set_major_formatter(PERCENT)
