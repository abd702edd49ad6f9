"""`atmc predict RUN IMAGE...`: class, probability and uncertainty of each image, or of all in a folder.

Exit code 0 if every image was predicted, 1 if some could not be read (each has a line on stderr), 2 if none could.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atmc.cli.console import command, complain, emit, next_step, printable, say, working
from atmc.common.errors import InputError
from atmc.common.text import plural

if TYPE_CHECKING:
    from torch import Tensor

    from atmc.data.image_decoding import View
    from atmc.posterior.uncertainty import Prediction

AT_ONCE = 256  # images decoded and predicted together, which bounds the memory


class Picture(NamedTuple):
    """A decoded image, uint8 [C, H, W], with what was done to it in words."""

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
    """The command; returns the exit code."""
    from atmc.cli.open_runs import check_device, damage_of, open_posterior, tell_damage, threads_of

    place = check_device(device)
    with working(f"opening {run}"):
        posterior, view = open_posterior(run, size)
        damaged = damage_of(run)
    tell_damage(run, damaged)
    import torch

    images = opened_folders(images)
    found: list[dict[str, Any]] = []
    for start in range(0, len(images), AT_ONCE):
        paths = images[start : start + AT_ONCE]
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
                prediction = posterior.predict(torch.stack([picture.pixels for _, picture in pictures]), device=place)
            for i, (path, picture) in enumerate(pictures):
                entries[path] = _entry(path, picture, prediction, i, top, len(posterior) > 1)
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


def opened_folders(paths: Sequence[Path]) -> list[Path]:
    """The files named, and of each folder the images in it and in its sub-folders, in order."""
    from atmc.data.image_decoding import SUFFIXES

    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not inside:
            raise InputError(f"{path} is a folder without images ({', '.join(SUFFIXES)})")
        found += inside
    return found


def read_picture(path: Path, view: View, *, invert: bool = False) -> Picture:
    """Decode an image file, or raise an `InputError` that says why that fails."""
    from atmc.data.image_decoding import as_example, decode

    notes: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of what is odd about a file and can be read
            pixels = as_example(decode(path, view, notes=notes))
    except MemoryError:
        raise InputError("there is not enough memory to decode it") from None
    return Picture(255 - pixels, [*notes, "inverted"]) if invert else Picture(pixels, notes)


def _entry(path: Path, picture: Picture, prediction: Prediction, i: int, top: int, several: bool) -> dict[str, Any]:
    """What is printed of one image. One network (a distilled one) cannot tell what of its uncertainty is epistemic."""
    probs = prediction.probs[i]
    order = probs.argsort(descending=True)[:top].tolist()
    names = prediction.classes or tuple(str(c) for c in range(len(probs)))
    return {
        "file": str(path),
        "label": names[order[0]],
        "probability": float(probs[order[0]]),
        "top": [{"label": names[c], "probability": float(probs[c])} for c in order],
        "entropy": float(prediction.entropy[i]),
        "aleatoric": float(prediction.aleatoric[i]) if several else None,
        "epistemic": float(prediction.epistemic[i]) if several else None,
        "agreement": float(prediction.agreement[i]) if several else None,
        "notes": picture.notes,
    }


def _print(entry: dict[str, Any]) -> None:
    if "error" in entry:
        complain(f"{entry['file']}: {entry['error']}")
        return
    first, *others = [f"{printable(t['label'])} ({100 * t['probability']:.1f} %)" for t in entry["top"]]
    rest = f", or {', '.join(others)}" if others else ""
    say(f"{printable(entry['file'])}: {first}{rest}", entry["file"], hang=4)
    say(f"    {'; '.join([_uncertainty(entry), *entry['notes']])}")


def _uncertainty(entry: dict[str, Any]) -> str:
    total = entry["entropy"]
    if total < 0.01:
        return f"almost no uncertainty ({total:.3f} nats)"
    if entry["epistemic"] is None:
        return f"uncertainty {total:.2f} nats; how much of it is epistemic one network cannot tell"
    share, agree = 100 * entry["epistemic"] / total, 100 * entry["agreement"]
    return f"uncertainty {total:.2f} nats, {share:.0f} % epistemic; {agree:.0f} % of the samples agree"
