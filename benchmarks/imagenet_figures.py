"""Calibration figures of the ImageNet rows, one for each set, from the stored probabilities.

    python benchmarks/imagenet_figures.py [--folder results/imagenet]

Accuracy against confidence in 8 bins of equal size, with 95 % intervals, as in the paper's figure: the averages of all
rows of a set with the usual number of epochs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atmc.posterior import metrics
from atmc.report.output_files import write
from atmc.report.plot_style import WIDE, Ink, sheet, svg
from cifar10_figures import BINS, PERCENT
from imagenet_pages import RIVALS, TITLES, of_set, rows
from imagenet_recipes import LONG
from pages import ROOT

NAMES = {**RIVALS, "atmc": "ATMC", "atmc-pp": "ATMC, ResNet++"}


def calibration(name: str, found: list[dict[str, Any]], folder: Path, ink: Ink) -> Figure:
    """The rows of one set."""
    size = WIDE[0], WIDE[1] + 0.17 * (len(found) + 1)
    with sheet(ink, size, "Mean confidence of the bin", f"Accuracy of the bin, {TITLES[name]}") as (figure, axes):
        lowest = 1.0
        for at, row in enumerate(found):
            stored = np.load(folder / row["probabilities"][0])
            bins = metrics.calibration_bins(stored["probs"].astype(np.float64).mean(0), stored["labels"], BINS)
            spread = [bins.accuracy - bins.low, bins.high - bins.accuracy]
            style = {"color": ink.series(at), "marker": "os"[at // 6 % 2], "markersize": 3.5, "elinewidth": 0.9}
            axes.errorbar(bins.confidence, bins.accuracy, spread, label=NAMES[row["kind"]], **style)
            lowest = min(lowest, float(bins.low.min()), float(bins.confidence.min()))
        edge = max(0.0, np.floor(10 * lowest) / 10)
        axes.plot([edge, 1], [edge, 1], color=ink.muted, linewidth=0.8, linestyle=(0, (1, 2)), label="perfect")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PERCENT)
            axis.set_major_locator(MaxNLocator(5))
        figure.legend(loc="outside lower left")
    return figure


def save(folder: Path) -> list[Path]:
    """Write `calibration-SET.svg` of every set that has rows."""
    made = []
    for name in TITLES:
        found = [row for row in of_set(name, rows(folder)) if not row["kind"].endswith(LONG)]
        if found:
            figure = calibration(name, found, folder, Ink.paper())
            made.append(write(folder / f"calibration-{name}.svg", svg(figure)))
    return made


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "results" / "imagenet")
    for path in save(parser.parse_args(words).folder):
        print(path)


if __name__ == "__main__":
    main()
