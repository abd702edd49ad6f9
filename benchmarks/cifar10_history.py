"""The steps on the way to the settings of the CIFAR-10 table, from results/cifar10/exploration.json."""

from __future__ import annotations

from collections.abc import Sequence

from cifar10_store import Row
from pages import markdown

EXPLORE = "T0.02 after 0, speed 0.0025, hold 0.6, explore"
SHORT = "speed 0.0025, hold 0.6, explore {}, cycles of 25, 100 epochs"
AFTER = "speed 0.0025, hold 0.6, {}SGD settled first, 100 epochs"
AT_ONE = "noisy Dirichlet 0.01, speed 0.001, hold {}, 100 epochs"
STEPS = {  # what was tried, and which run of exploration.json it is
    "T = 0.02 throughout, heavy thermostats": "T0.02-s0.003, 100 epochs",
    "T = 0.02 throughout, thermostats scaled with the step size": "T0.02, thermostats that follow, 150 epochs",
    "T = 0.03 annealed from 0.3": "T0.03 from 0.3, thermostats that follow, 150 epochs",
    "explore at T = 0, sample at T = 0.02": "T0.02 after 0, thermostats that follow, 100 epochs",
    "the same, step size held for 60 % of a cycle": f"{EXPLORE} 0.8, 100 epochs",
    "ablation: T = 0 up to the last half epoch": f"{EXPLORE} 0.99, 100 epochs",
    "cycles of 25 epochs, T = 0.005": f"T0.005 after 0, {SHORT.format(0.8)}",
    "ablation: T = 0 up to the last half epoch, cycles of 25": f"T0.02 after 0, {SHORT.format(0.98)}",
    "after annealing, T = 0.02": f"T0.02 after 0, {AFTER.format('explore 0.943, ')}",
    "after annealing, T = 0.05": f"T0.05 after 0, {AFTER.format('explore 0.94, ')}",
    "after annealing, T = 0.1": f"T0.1 after 0, {AFTER.format('explore 0.94, ')}",
    "ablation: after annealing, T = 0": f"T0, {AFTER.format('')}",
    "T = 1, noisy Dirichlet, 20 epochs at T": f"T1 after 0, {AT_ONE.format('0, explore 0.6')}",
    "T = 1, noisy Dirichlet, 5 epochs at T": f"T1 after 0, {AT_ONE.format('0.6, explore 0.9, SGD settled first')}",
    "T = 1, noisy Dirichlet, 3 epochs at T": f"T1 after 0, {AT_ONE.format('0.6, explore 0.94, SGD settled first')}",
    "ablation: noisy Dirichlet, T = 0": f"T0, {AT_ONE.format('0.6, SGD settled')}",
}


def history_table(runs: Sequence[Row]) -> str:
    """Steps on the way to the settings, on held-out images."""
    named = {run["name"]: run for run in runs}
    cells = []
    for what, name in STEPS.items():
        samples, loss = named[name]["samples"], named[name].get("training_loss")
        scores = [pair(samples[-1], of) for of in ("single ", "predictive ")]
        cells.append([what, str(len(samples)), *scores, "–" if loss is None else f"{loss:.3g}"])
    return markdown(["accuracy % / NLL, held out", "samples", "last sample", "average", "training loss"], cells)


def pair(scores: Row, of: str) -> str:
    """Accuracy and NLL of a run."""
    return f"{100 * scores[f'{of}accuracy']:.1f} / {scores[f'{of}nll']:.3f}"
