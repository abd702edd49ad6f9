"""`atmc export RUN FOLDER`: safetensors and ONNX."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from atmc.posterior import Posterior


def export(run: Path, folder: Path, *, onnx: bool, as_json: bool) -> int:
    """The command; returns the exit code."""
    new_folder(folder)
    from atmc.cli.open_runs import damage_of, tell_damage, threads_of

    with working(f"exporting {run}"), threads_of(run):
        posterior, inputs = _open(run, folder, onnx)
        damaged = damage_of(run)
        with made_whole(folder):
            posterior.export(folder, onnx=onnx, inputs=inputs)
    tell_damage(run, damaged)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if as_json:
        emit({"folder": str(folder), "files": files} | ({"damaged": damaged} if damaged else {}))
        return 0
    say(
        f"{len(posterior)} samples are in {printable(folder)}: {len(files)} files"
        + (", posterior.onnx among them." if onnx else "."),
        folder,
    )
    if len(posterior.shape or ()) == 3 and not posterior.is_regression:
        next_step(command("atmc", "predict", folder, "IMAGE.png"))
    return 0


def _open(run: Path, folder: Path, onnx: bool) -> tuple[Posterior, Tensor | None]:
    """The posterior of a run, or a saved one, and for ONNX real inputs to check it on.

    Refuses a custom network, or a saved posterior without inputs, with what to write in Python.
    """
    from atmc.cli.open_runs import check_run, in_python, is_saved, saved_in_python

    check_run(run)
    goal = str(folder)
    checked, kept = f"export({goal!r}, inputs=x[:16])", f"save({goal!r})"
    if is_saved(run):
        from atmc.posterior import Posterior

        posterior = Posterior.load(run)
        if onnx:
            raise InputError(
                f"{run} is a saved posterior and has no inputs to check an ONNX file on: name the run that it came "
                f"from, or add --no-onnx, or, in Python, use {saved_in_python(run, checked)}"
            )
        return posterior, None
    from atmc.report.read_run import Reading, pixels

    reading = Reading(run)
    reading.need_network(in_python(run, checked if onnx else kept))
    inputs = pixels(reading.examples("test"), range(8)) if onnx and reading.posterior.example is None else None
    return reading.posterior, inputs


@contextmanager
def made_whole(folder: Path) -> Iterator[None]:
    """Removes a new folder's content on failure, so that the same command can be run again."""
    there = folder.exists()
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if there:
            folder.mkdir(exist_ok=True)
        raise


def new_folder(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder: name a new one")
