"""What `atmc.sample` says of a run that ended badly: one line for each thing that makes its samples doubtful.

Fewer questions than `atmc doctor` asks, and only those that need no held-out data. Thresholds are such that a chain of
independent samples at T is hardly ever complained of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atmc.diagnose import noise_checks, traces
from atmc.diagnose.collapse import complaint
from atmc.diagnose.convergence import by_chain, ess, exchangeability_test, rhat
from atmc.diagnose.finding import SIGNIFICANT
from atmc.diagnose.run_measurements import RunMeasurements
from atmc.diagnose.sample_checks import UNMIXED
from atmc.posterior.arrays import Floats
from atmc.storage.run_directory import RunDir

FEW = 10  # cycles below which R-hat and ESS are not asked
POOR = 8.0  # effective samples that are too few for a spread


def complaints(run: RunDir) -> list[str]:
    """Plain sentences about collapse, temperature, mini-batch noise, mixing, effective samples; none for a good run."""
    written = run.metrics()
    rows = traces.settled(written, run.recipe.schedule.settled_epochs)
    hot = traces.warmed(rows) if run.recipe.schedule.explore_fraction else rows
    found = [complaint(written, run.recipe.sampler.temperature), _temperature(hot), _noise(run, hot), *_mixing(rows)]
    return [line for line in found if line]


def _temperature(rows: Sequence[Mapping[str, Any]]) -> str:
    level = traces.temperature_ratio(rows, by_time=True)
    if level.rows < 5 or not math.isfinite(level.mean) or 0.5 < level.mean < 2.0:
        return ""
    return (
        f"the chain was at {level.mean:.2g} times the temperature it was asked for, so these are no samples of the "
        "posterior: standardise inputs and targets, or give it more epochs"
    )


def _noise(run: RunDir, rows: Sequence[Mapping[str, Any]]) -> str:
    level = traces.noise_ratio(rows)
    if not noise_checks.outside(level):
        return ""
    count = (run.manifest.get("data") or {}).get("examples")
    batch = run.recipe.data.batch_size
    steps = float(count) / batch if isinstance(count, int) else math.nan
    known = RunMeasurements(sampler=run.recipe.sampler.name, recipe=run.recipe, noise=level, steps_per_epoch=steps)
    larger = noise_checks.enough_batch(known)
    change = f"pass batch_size={larger}" if larger else "lower sampler.speed and sampler.max_speed in overrides"
    return (
        f"along the noise of mini-batch gradients the temperature is {noise_checks.said(level)} times the one asked "
        f"for, so spreads are off: {change}"
    )


def _mixing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    losses = loss_of_cycles(rows)
    if losses.shape[-1] < FEW:
        return []
    found = []
    try:
        unlike, worth = float(rhat(losses)), float(ess(losses))
    except ImportError:  # arviz is of the cli extra, and a run that has ended well must not end in an error
        return []
    if unlike > UNMIXED and exchangeability_test(losses[None]) < SIGNIFICANT:
        found.append(
            f"R-hat of the training loss is {unlike:.2f} (above {UNMIXED:g}): the chain has not converged; "
            "give it more epochs"
        )
    if worth < min(POOR, 0.3 * losses.size):
        found.append(
            f"the training loss of {losses.size} samples is worth {worth:.0f} independent ones: too few for a spread; "
            "give it more epochs"
        )
    return found


def loss_of_cycles(rows: Sequence[Mapping[str, Any]]) -> Floats:
    """The training loss at the end of each cycle after burn-in, `[chains, cycles]`; as many as all chains have."""
    ends = traces.cycle_ends(rows)
    places: dict[tuple[int, int], list[float]] = {}
    for row, loss in zip(ends, traces.column(ends, "loss"), strict=True):
        if np.isfinite(loss):
            places.setdefault((int(row.get("chain", 0)), int(row.get("cycle", 0))), []).append(float(loss))
    keys = sorted(places)
    if not keys:
        return np.empty((1, 0))
    return by_chain(np.array([np.mean(places[key]) for key in keys]), [chain for chain, _ in keys])
