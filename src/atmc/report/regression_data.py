"""What a report says about runs of a regression: targets, predictions with intervals, coverage and residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atmc.common.errors import InputError
from atmc.posterior import regression
from atmc.posterior.mixture import quantile
from atmc.report import collect, run_details
from atmc.report.read_run import Reading
from atmc.report.redaction import Hidden
from atmc.report.report_data import Array, Finding, Spreads, Trace

SPLIT, LEVEL = "test", regression.LEVEL
LEAST = 5  # test examples for a report
LEVELS = np.linspace(0.05, 0.95, 19)  # of the intervals whose coverage is drawn


@dataclass(frozen=True)
class NumbersFacts:
    """One run of a regression. Arrays have one entry for each number of a target, in the targets' units."""

    name: str
    method: str
    network: str
    temperature: float | None
    samples: int
    chains: int
    epochs: float
    seconds: float | None
    device: str
    examples: int
    single: Spreads  # of the last sample alone
    predictive: Spreads
    constant: Spreads  # of one answer for every example
    noise: float  # root mean square of the noise's standard deviation
    spread: float  # and of what samples disagree by
    true: Array
    mean: Array
    low: Array  # of the central 90 % interval
    high: Array
    std: Array
    below: Array  # predictive probability of a target below the true one
    traces: tuple[Trace, ...] = ()
    findings: tuple[Finding, ...] = ()
    pilots: tuple[dict[str, Any], ...] = ()
    recipe: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    @property
    def noun(self) -> str:
        """The plural noun of an example."""
        return "examples"

    @property
    def is_posterior(self) -> bool:
        """Whether a sampler drew the networks; those of an optimiser have no temperature."""
        return self.temperature is not None

    @property
    def error(self) -> Array:
        """True minus predicted, of each number."""
        return self.true - self.mean

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Which numbers lie in their 90 % interval, as the metric counts them."""
        return np.asarray(np.abs(self.below - 0.5) <= LEVEL / 2)

    @property
    def coverage(self) -> Array:
        """The share of targets in the central interval of each of LEVELS."""
        return np.array([np.mean(np.abs(self.below - 0.5) <= level / 2) for level in LEVELS])


def gather_numbers(paths: Sequence[Path], command: str = "") -> tuple[tuple[NumbersFacts, ...], str]:
    """The facts of several runs and the command, without paths of this machine.

    Runs must have the same test targets to stand side by side.
    """
    readings = [Reading(path) for path in paths]
    hidden = Hidden([reading.path for reading in readings], [reading.recipe.data.name for reading in readings])
    plain = [_facts(*pair) for pair in zip(readings, collect.run_names(readings), strict=True)]
    found = tuple(replace(facts, **hidden.texts(facts)) for facts in plain)
    for path, one in zip(paths, found, strict=True):
        if one.true.shape != found[0].true.shape or not np.array_equal(one.true, found[0].true):
            raise InputError(f"{path} and {paths[0]} have different test targets: report them one by one")
    return found, hidden.text(command)


def _facts(reading: Reading, name: str) -> NumbersFacts:
    answers = reading.answers(SPLIT)
    if len(answers) < LEAST:
        raise InputError(f"{reading.path}: {len(answers)} test examples are too few for a report")
    recipe, manifest = reading.recipe, reading.run.manifest
    outputs, targets, law = reading.numbers(SPLIT, answers)
    mixture = regression.mixture_of(outputs, targets, law)
    y, count = mixture.known, len(mixture.weights)
    low, high = (quantile(mixture, q) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    damage = reading.run.damage()
    notes = [f"Damaged: {line}" for line in damage]
    if reading.run.status != "done":
        notes.append(f"This run has not finished; resume it with: atmc sample {reading.path}")
    sampled = recipe.sampler.name != "sgd"
    variance = mixture.aleatoric + mixture.epistemic
    return NumbersFacts(
        name=name,
        method=run_details.method_of(recipe),
        network=run_details.network_of(reading),
        temperature=recipe.sampler.temperature if sampled else None,
        samples=count,
        chains=recipe.chains,
        epochs=run_details.rounded(reading.epochs()),
        seconds=reading.seconds(),
        device=run_details.device_of(manifest),
        examples=len(answers),
        single=regression.spreads(regression.one_of(mixture, count - 1)),
        predictive=regression.spreads(mixture),
        constant=regression.constant_spreads(y),
        noise=float(mixture.aleatoric.mean().sqrt()),
        spread=float(mixture.epistemic.mean().sqrt()),
        true=_flat(y),
        mean=_flat(mixture.mean),
        low=_flat(low),
        high=_flat(high),
        std=_flat(variance.sqrt()),
        below=_flat(mixture.below(y)),
        traces=reading.traces(),
        findings=collect.findings_of(reading, notes) if sampled else (),
        pilots=run_details.pilots_of(manifest),
        recipe=str(manifest["recipe"]),
        facts=run_details.details_of(manifest, recipe),
        notes=tuple(notes),
        damage=tuple(damage),
    )


def _flat(values: torch.Tensor) -> Array:
    return np.asarray(values.reshape(-1).numpy(), dtype=np.float64)
