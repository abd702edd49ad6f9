"""`atmc export RUN FOLDER`: safetensors and ONNX."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.common.errors import InputError
from atmc.common.text import plural

if TYPE_CHECKING:
    from torch import Tensor

    from atmc.posterior import Posterior

MADE_UP = 16  # inputs at random


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
        f"{plural(len(posterior), 'sample')} in {printable(folder)}: {plural(len(files), 'file')}"
        + (", posterior.onnx among them." if onnx else "."),
        folder,
    )
    if len(posterior.shape or ()) == 3 and not posterior.is_regression:
        next_step(command("atmc", "predict", folder, "IMAGE.png"))
    return 0


def _open(run: Path, folder: Path, onnx: bool) -> tuple[Posterior, Tensor | None]:
    """The posterior of a run, or a saved one, and for ONNX real inputs to check it on.

    Refuses a custom network, or a saved posterior that does not know its inputs, with what to write in Python.
    """
    from atmc.cli.open_runs import check_run, in_python, is_saved, saved_in_python

    check_run(run)
    goal = str(folder)
    checked, kept = f"export({goal!r}, inputs=x[:16])", f"save({goal!r})"
    if is_saved(run):
        from atmc.posterior import Posterior
        from atmc.posterior.inputs import looks_up

        posterior = Posterior.load(run)
        if onnx and (posterior.shape is None or looks_up(posterior.model)):
            raise InputError(
                f"{run} is a saved posterior that does not say what its inputs are, to check an ONNX file on: name the "
                f"run that it came from, or add --no-onnx, or, in Python, use {saved_in_python(run, checked)}"
            )
        return posterior, _made_up(posterior) if onnx else None
    from atmc.report.read_run import Reading, pixels

    reading = Reading(run)
    reading.need_network(in_python(run, checked if onnx else kept))
    inputs = pixels(reading.examples("test"), range(8)) if onnx and reading.posterior.example is None else None
    return reading.posterior, inputs


def _made_up(posterior: Posterior) -> Tensor:
    """Inputs at random, of the right shape, to check the ONNX file on: a saved posterior keeps no images."""
    import torch

    assert posterior.shape is not None
    generator = torch.Generator().manual_seed(0)
    if posterior.mean:
        return torch.randint(256, (MADE_UP, *posterior.shape), generator=generator, dtype=torch.uint8)
    return torch.randn(MADE_UP, *posterior.shape, generator=generator)


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
