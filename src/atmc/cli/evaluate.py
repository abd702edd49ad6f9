"""`atmc evaluate RUN`: scores of the last sample and of the predictive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.common.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atmc.report.read_run import Answers, Reading


def evaluate(run: Path, *, on: str | None, split: str, shift: str | None, device: str | None, as_json: bool) -> int:
    """The command; returns the exit code."""
    from atmc.cli.open_runs import check_device, check_run, in_python, is_regression, tell_damage, threads_of

    check_run(run)
    from atmc.recipe.settings import temperature_before, temperature_said
    from atmc.report.read_run import Reading

    place = check_device(device)
    if shift is not None:
        return _shift(run, shift, on or (None if split == "test" else split), place, as_json)
    with working(f"evaluating {run}"), threads_of(run):
        reading = Reading(run)
        numbers = is_regression(reading.run)
        if numbers and on is not None:
            raise InputError(f"{run} is a regression, and --on names images with classes: leave it out")
        if on is None:
            data = reading.answers(split)
            result = (_numbers if numbers else _own)(reading, data, split, place)
        else:
            data, result = _other(reading, on, split, place)
        damaged = reading.run.damage()
    tell_damage(run, damaged)
    if damaged:
        result["damaged"] = damaged
    if as_json:
        emit(result)
        return 0
    own = reading.recipe
    said = temperature_said(own.sampler.temperature, temperature_before(own))
    temperature = "" if own.sampler.name == "sgd" else f", T = {said}"
    noise = f"noise of the targets: {result['scale']:.3g}, " if numbers else ""
    say(f"{printable(own.name)} on {len(data):,} {printable(data.what)}"
        f" ({noise}augmentation in training: {own.data.augment}{temperature})")  # fmt: skip
    if "auroc" in result:
        _print_ood(result)
    else:
        from atmc.cli.score_tables import print_scores

        print_scores(result, "regression" if numbers else "classification")
    # Not the doctor, which names this very command: what follows scores is predictions.
    next_step(f"in Python, {in_python(run, 'regress(x)')}" if numbers else command("atmc", "report", run))
    return 0


def _shift(run: Path, shift: str, other: str | None, device: str | None, as_json: bool) -> int:
    """Scores on corrupted test images, by severity and by corruption."""
    from atmc.cli.console import table
    from atmc.cli.open_runs import is_regression, tell_damage, threads_of
    from atmc.report.read_run import Reading
    from atmc.report.shift import check_kind, measure

    check_kind(shift)
    if other is not None:
        raise InputError(f"--shift corrupts the run's own test images: leave out {other}")
    with working(f"evaluating {run} on corrupted images"), threads_of(run):
        reading = Reading(run)
        if is_regression(reading.run):
            raise InputError(f"{run} is a regression, and --shift is for images with classes: leave it out")
        found = measure(reading, device)
        damaged = reading.run.damage()
    tell_damage(run, damaged)
    if as_json:
        emit(found.to_json() | ({"damaged": damaged} if damaged else {}))
        return 0
    what, count = printable(reading.recipe.name), len(found.predictive)
    say(
        f"{what} on {found.images:,} test images and {count} corruptions of them, predictive of {found.samples} samples"
    )
    by = [
        (
            f"severity {s}" if s else "as they are",
            *_shown(found.curve(score)[s] for score in ("accuracy", "nll", "ece")),
        )
        for s in range(6)
    ]
    by += [(name, *_shown(means)) for name, *means in found.by_corruption()]
    table(("", "Accuracy %", "NLL nats", "ECE"), by)
    next_step(command("atmc", "report", run, "--shift", shift))
    return 0


def _shown(values: Iterable[float]) -> tuple[str, str, str]:
    accuracy, nll, ece = values
    return f"{100 * accuracy:.1f}", f"{nll:.3f}", f"{ece:.3f}"


def _own(reading: Reading, data: Answers, split: str, device: str | None) -> dict[str, Any]:
    from atmc.posterior import metrics

    probs, labels = reading.probs(split, data, device), data.labels
    result = _summary(probs, labels)
    if split == "test" and (scaled := reading.scaled(metrics.predictive(probs), labels)):
        result["scaled"] = {**scaled[0], "temperature": scaled[1]}
    return result


def _summary(probs: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
    """The scores of a classifier, with 95 % intervals of the predictive's."""
    from atmc.posterior import metrics
    from atmc.posterior.arrays import floor_of
    from atmc.posterior.intervals import spreads

    found = spreads(metrics.predictive(probs), labels, floor_of(probs))
    intervals = {name: [spread.low, spread.high] for name, spread in found.items()}
    return metrics.summary(probs, labels) | {"intervals": intervals}


def _numbers(reading: Reading, data: Answers, split: str, device: str | None) -> dict[str, Any]:
    """Scores of a regression, from the outputs and the likelihood that the run kept, with intervals."""
    from atmc.posterior import regression

    outputs, targets, law = reading.numbers(split, data)
    found = regression.spreads(regression.mixture_of(outputs, targets, law))
    intervals = {name: [spread.low, spread.high] for name, spread in found.items()}
    scale = float(law.noise(outputs.double()).mean())
    return {**regression.summary(outputs, targets, law), "intervals": intervals, "scale": scale}


def _other(reading: Reading, name: str, split: str, device: str | None) -> tuple[Answers, dict[str, Any]]:
    """Scores where the classes are the run's own; otherwise OOD detection against the test set."""
    from atmc import data
    from atmc.posterior import metrics
    from atmc.posterior.uncertainty import from_probs
    from atmc.report.read_run import Answers, pixels

    known = reading.run.manifest["data"]
    found = data.load(_brought(name, reading.recipe.data.name, known["shape"]), split, root=reading.recipe.data.root)
    seen = Answers(found.name, found.split, found.labels.numpy(), tuple(found.classes), found.digest)
    if tuple(found.classes) == tuple(known["classes"]):
        if tuple(found.shape) != tuple(known["shape"]):
            shape, files = known["shape"], ""
            if len(shape) == 3:
                grey = "" if shape[0] == 3 else f"&channels={shape[0]}"
                files = f", or image files, resized: 'folder:PATH?size={shape[1]}x{shape[2]}{grey}'"
            raise InputError(
                f"{name} has examples of shape {list(found.shape)}, the run was made for {shape}: name data of that "
                f"shape{files}"
            )
        return seen, _summary(reading.ask(pixels(found), device), seen.labels)
    from atmc.report.ood_inputs import other_data

    home = reading.examples("test")
    other = other_data(name, pixels(home, [0]), len(found), reading.recipe.data.root)
    there = reading.ask(other.images, device)
    here = reading.probs("test", reading.answers("test"), device)
    result = metrics.detection(from_probs(here).entropy.numpy(), from_probs(there).entropy.numpy())
    return seen, {**result, "samples": len(here)}


def _brought(name: str, own: str, shape: Sequence[int]) -> str:
    """`name`, with the run's size, channels and crop if it is a folder of images that sets none."""
    from atmc.data.dataset_names import Name

    parts = Name.parse(name)
    if parts is None or parts.family != "folder" or len(shape) != 3:
        return name
    channels, height, width = shape
    run = {"size": f"{height}x{width}"} | ({"channels": str(channels)} if channels in (1, 3) else {})
    if (home := Name.parse(own)) is not None and "crop" in home.options:
        run["crop"] = home.options["crop"]
    more = "&".join(f"{key}={value}" for key, value in run.items() if key not in parts.options)
    return f"{name}{'&' if parts.options else '?'}{more}" if more else name


def _print_ood(result: dict[str, Any]) -> None:
    say("The classes differ from the run's, so these images are out-of-distribution (OOD). Detection by entropy:")
    say(f"  AUROC {100 * result['auroc']:.1f} %   (how often an OOD image is more uncertain than a test image)")
    say(f"  AUPR  {100 * result['aupr']:.1f} %   (chance is {100 * result['share']:.1f})")
    say(f"  FPR   {100 * result['fpr95']:.1f} %   (test images rejected when 95 % of the OOD images are)")
