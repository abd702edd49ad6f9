"""Collect the data of a report from run directories. Every score comes from `atmc.posterior`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atmc.common.errors import InputError, RunError
from atmc.posterior import metrics
from atmc.posterior.arrays import floor_of
from atmc.posterior.class_scores import confidence_levels, confusion
from atmc.posterior.intervals import constant_scores, spreads
from atmc.recipe.settings import temperature_before
from atmc.report.example_images import cards_of, png_of
from atmc.report.read_run import Reading, pixels
from atmc.report.redaction import Hidden, short_paths
from atmc.report.report_data import Finding, Growth, ImageCard, OodScores, ReportData, RunFacts
from atmc.report.run_details import details_of, device_of, method_of, network_of, noise_of, pilots_of, rounded
from atmc.report.shift import measure as measure_shift

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atmc.posterior.ood_detection import RiskCoverage

SPLIT = "test"
STRIP = 8  # OOD images shown on the page
SHOWN = 500  # OOD images shown to a network
GROWTH_POINTS = 60
LEAST = 8  # examples: fewer cannot fill the eight bins


def gather(paths: Sequence[Path], *, ood: Sequence[str] = (), shift: bool = False, command: str = "") -> ReportData:
    """The report data of all runs, under distinct names."""
    import atmc

    if not paths:
        raise InputError("name at least one run directory")
    readings = [Reading(Path(path)) for path in paths]
    names = run_names(readings)
    runs = [run_facts(reading, name, ood, shift) for reading, name in zip(readings, names, strict=True)]
    today = datetime.date.today().isoformat()
    named = [*(reading.recipe.data.name for reading in readings), *ood]
    roots = [f"folder:{root}" for reading in readings if (root := reading.recipe.data.root)]
    hidden = Hidden([reading.path for reading in readings], [*named, *roots])
    return ReportData(tuple(map(hidden.run, runs)), today, atmc.__version__, hidden.text(command))


def run_names(readings: Sequence[Reading]) -> list[str]:
    """The recipes' names, or the folders' where settings are those of a sampler; where two are the same, the paths."""
    choices = (
        [r.path.resolve().name if r.recipe.name == r.recipe.sampler.name else r.recipe.name for r in readings],
        [r.path.resolve().name for r in readings],
        short_paths([r.path for r in readings]),
    )
    for names in choices:
        if len(set(names)) == len(names):
            return names
    return [f"{path} ({i})" for i, path in enumerate(choices[-1], start=1)]


def run_facts(reading: Reading, name: str, ood: Sequence[str] = (), shift: bool = False) -> RunFacts:
    """Everything the page says about one run."""
    answers = reading.answers(SPLIT)
    if not answers.classes:
        raise InputError(f"{reading.path} is a regression: reports are for classifiers")
    if len(answers) < LEAST:
        raise InputError(f"{reading.path}: {len(answers)} {answers.what} are too few for a report")
    probs = reading.probs(SPLIT, answers)
    labels = answers.labels
    mean = metrics.predictive(probs)
    single = probs[-1]
    summary = metrics.summary(probs, labels)
    recipe, manifest = reading.recipe, reading.run.manifest
    sampled = recipe.sampler.name != "sgd"
    damage = reading.run.damage()
    notes = [f"Damaged: {line}" for line in damage]
    if reading.run.status != "done":
        notes.append(f"This run has not finished; resume it with: atmc sample {reading.path}")
    scaled, scaled_by = reading.scaled(mean, labels) or (None, None)
    softer = {} if scaled_by is None else spreads(metrics.apply_temperature(mean, scaled_by), labels)
    floor = floor_of(probs)
    cards = _cards(reading, probs, notes)
    return RunFacts(
        name=name,
        method=method_of(recipe),
        network=network_of(reading),
        data=answers.name,
        split=SPLIT,
        examples=len(answers),
        temperature=recipe.sampler.temperature if sampled else None,
        temperature_before=temperature_before(recipe) if sampled else None,
        augment=recipe.data.augment,
        samples=len(probs),
        chains=recipe.chains,
        epochs=rounded(reading.epochs()),
        seconds=reading.seconds(),
        device=device_of(manifest),
        seed=recipe.seed,
        single=summary["single"],
        predictive=summary["predictive"],
        bins_single=metrics.calibration_bins(single, labels),
        bins=metrics.calibration_bins(mean, labels),
        risk=_risk(mean, labels),
        risk_single=_risk(single, labels),
        growth=_growth(probs, labels),
        nll_each=np.asarray(metrics.nll_each(mean.astype(np.float32), labels), dtype=np.float64),
        scaled=scaled,
        scaled_by=scaled_by,
        traces=reading.traces(),
        surest=cards[0],
        least_sure=cards[1],
        ood=tuple(_ood(reading, kind, probs) for kind in ood),
        shift=measure_shift(reading) if shift else None,
        findings=findings_of(reading, notes) if sampled else (),
        recipe=str(manifest["recipe"]),  # what was run: recipe.toml may be gone or altered
        pilots=pilots_of(manifest),
        facts=details_of(manifest, recipe) | noise_of(reading),
        notes=tuple(notes),
        damage=tuple(damage),
        data_digest=answers.digest,
        likelihood=recipe.target.likelihood,
        takes_images=recipe.model.name != "custom" and len(manifest["data"]["shape"]) == 3,
        single_spreads=spreads(single, labels, floor),
        spreads=spreads(mean, labels, floor),
        scaled_spreads=softer,
        constant=constant_scores(labels, len(answers.classes)),
        classes=answers.classes,
        confusion=confusion(mean, labels),
        levels=confidence_levels(mean, labels),
        path=str(reading.path),
    )


def _risk(probs: NDArray[Any], labels: NDArray[Any]) -> RiskCoverage:
    return metrics.risk_coverage(1.0 - probs.max(axis=1).astype(np.float64), probs.argmax(axis=1) == labels)


def _growth(probs: NDArray[Any], labels: NDArray[Any]) -> Growth:
    counts = np.unique(np.linspace(1, len(probs), min(len(probs), GROWTH_POINTS)).round().astype(int))
    curve = metrics.growing(probs, labels, counts.tolist())
    gaps = [bins.error for bins in metrics.growing_bins(probs, labels, counts.tolist()).values()]
    return Growth(
        np.asarray(curve["samples"], dtype=np.float64),
        np.asarray(curve["accuracy"]),
        np.asarray(curve["nll"]),
        np.asarray(gaps, dtype=np.float64),
    )


def _cards(
    reading: Reading, probs: NDArray[Any], notes: list[str]
) -> tuple[tuple[ImageCard, ...], tuple[ImageCard, ...]]:
    """The images with the most and the least confident predictions, where they can be read."""
    if len(reading.run.manifest["data"]["shape"]) != 3:
        return (), ()
    try:
        return cards_of(reading.examples(SPLIT), probs)
    except (InputError, OSError) as error:  # scores need no images
        notes.append(f"No images are shown: {error}")
        return (), ()


def _ood(reading: Reading, kind: str, probs: NDArray[Any]) -> OodScores:
    """How well entropy separates OOD images from the test set."""
    import torch

    from atmc.posterior.uncertainty import from_probs
    from atmc.report.ood_inputs import make

    home = reading.examples(SPLIT)
    some = pixels(home, range(min(len(home), SHOWN)))
    images = make(kind, some, SHOWN, reading.recipe.data.root)
    other = reading.ask(images.images)
    here, there = from_probs(probs).entropy.numpy(), from_probs(other).entropy.numpy()
    found = metrics.detection(here, there)
    strip = png_of(torch.cat(list(images.images[:STRIP]), dim=2))
    alone = None
    if len(probs) > 1:
        last = [from_probs(p[-1:]).entropy.numpy() for p in (probs, other)]
        alone = metrics.detection(*last)["auroc"]
    return OodScores(
        images.name, images.about, there, here, found["auroc"], found["aupr"], found["fpr95"], alone, strip
    )


def findings_of(reading: Reading, notes: list[str]) -> tuple[Finding, ...]:
    try:
        return reading.findings()
    except (InputError, RunError) as error:  # too few samples for a diagnosis must not cost the whole page
        notes.append(f"No diagnosis: {error}")
        return ()
