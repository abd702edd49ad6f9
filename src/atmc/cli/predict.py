"""`atmc predict RUN IMAGE...`: class, probability, and how much of the doubt is the model's.

Exit code 0 when every image was predicted, 1 when some could not be read (each has its line on stderr), 2 when none
could.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atmc.cli.console import command, complain, emit, next_step, printable, say, working
from atmc.common.errors import InputError
from atmc.common.text import plural

if TYPE_CHECKING:
    from torch import Tensor

    from atmc.data.image_decoding import View
    from atmc.posterior import Posterior
    from atmc.posterior.uncertainty import Prediction

AT_ONCE = 256  # images decoded and predicted together: any number of files needs the memory of these


class Picture(NamedTuple):
    """A decoded image as the network wants it, uint8 [C, H, W], with what had to be done to it in words."""

    pixels: Tensor
    notes: list[str]


def predict(
    run: Path,
    images: Sequence[Path],
    *,
    top: int,
    size: str | None,
    invert: bool,
    device: str | None,
    as_json: bool,
) -> int:
    """The verb; returns the exit code."""
    from atmc.cli.open_runs import check_device, damage_of, open_posterior, tell_damage, threads_of

    place = check_device(device)
    with working(f"opening {run}"):
        posterior, view = open_posterior(run, size)
        damaged = damage_of(run)
    tell_damage(run, damaged)
    found: list[dict[str, Any]] = []
    for paths in _groups(images):
        pictures: list[tuple[Path, Picture]] = []
        entries: dict[Path, dict[str, Any]] = {}
        with working(f"reading {plural(len(paths), 'file')}"):
            for path in paths:
                try:
                    pictures.append((path, read_picture(path, view, invert=invert)))
                except InputError as error:
                    entries[path] = {"file": str(path), "error": str(error)}
        if pictures:
            many = plural(len(pictures), "image")
            with working(f"asking {plural(len(posterior), 'sample')} about {many}"), threads_of(run):
                prediction = _ask(posterior, [picture for _, picture in pictures], place)
            for i, (path, picture) in enumerate(pictures):
                entries[path] = _entry(path, picture, prediction, i, top)
        for path in paths:
            found.append(entries[path])
            if not as_json:
                _print(entries[path])
    failed = sum("error" in entry for entry in found)
    if as_json:
        emit({"samples": len(posterior), "images": found} | ({"damaged": damaged} if damaged else {}))
        for entry in found:
            if "error" in entry:
                complain(f"{entry['file']}: {entry['error']}")
    elif failed < len(found) and not (run / "posterior.json").is_file():  # a saved posterior has no report
        next_step(command("atmc", "report", run))
    return 0 if failed == 0 else 2 if failed == len(found) else 1


def _groups(images: Sequence[Path]) -> Iterator[Sequence[Path]]:
    for start in range(0, len(images), AT_ONCE):
        yield images[start : start + AT_ONCE]


def read_picture(path: Path, view: View, *, invert: bool = False) -> Picture:
    """Decode a file that was named on the command line; an `InputError` says in one line why that cannot be done."""
    from atmc.data.image_decoding import as_example, decode

    notes: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of what is odd about a file and can be read
            pixels = as_example(decode(path, view, notes=notes))
    except MemoryError:
        raise InputError("there is not enough memory to decode it") from None
    return Picture(255 - pixels, [*notes, "inverted"]) if invert else Picture(pixels, notes)


def _ask(posterior: Posterior, pictures: list[Picture], device: str | None) -> Prediction:
    import torch

    return posterior.predict(torch.stack([picture.pixels for picture in pictures]), device=device)


def _entry(path: Path, picture: Picture, prediction: Prediction, i: int, top: int) -> dict[str, Any]:
    probs = prediction.probs[i]
    order = probs.argsort(descending=True)[:top].tolist()
    names = prediction.classes or tuple(str(c) for c in range(len(probs)))
    return {
        "file": str(path),
        "label": names[order[0]],
        "probability": float(probs[order[0]]),
        "top": [{"label": names[c], "probability": float(probs[c])} for c in order],
        "entropy": float(prediction.entropy[i]),
        "aleatoric": float(prediction.aleatoric[i]),
        "epistemic": float(prediction.epistemic[i]),
        "agreement": float(prediction.agreement[i]),
        "notes": picture.notes,
    }


def _print(entry: dict[str, Any]) -> None:
    if "error" in entry:
        complain(f"{entry['file']}: {entry['error']}")
        return
    first, *others = [f"{printable(t['label'])} ({100 * t['probability']:.1f} %)" for t in entry["top"]]
    rest = f", or {', '.join(others)}" if others else ""
    say(f"{printable(entry['file'])}: {first}{rest}", entry["file"], hang=4)
    details = [_doubt(entry), *entry["notes"]]
    say(f"    {'; '.join(details)}")


def _doubt(entry: dict[str, Any]) -> str:
    """The doubt in words: how much, and whose."""
    total = entry["entropy"]
    if total < 0.01:
        return f"no doubt to speak of ({total:.3f} nats)"
    share, agree = 100 * entry["epistemic"] / total, 100 * entry["agreement"]
    return f"doubt {total:.2f} nats, {share:.0f} % of it the model's; {agree:.0f} % of the samples agree"
