"""`atmc export RUN FOLDER`: the posterior for other programs."""

from __future__ import annotations

from pathlib import Path

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.errors import InputError


def export(run: Path, folder: Path, *, onnx: bool, as_json: bool) -> int:
    """The verb; returns the exit code."""
    new_folder(folder)
    from atmc.cli.runs import open_posterior, threads_of
    from atmc.report.reading import Reading, pixels

    with working(f"exporting {run}"):
        posterior, _ = open_posterior(run)
        if onnx and (run / "posterior.json").is_file():
            raise InputError(
                f"{run} is a saved posterior and has no images to check an ONNX file on: "
                "name the run that it came from, or add --no-onnx"
            )
        inputs = pixels(Reading(run).examples("test"), range(8)) if onnx and posterior.example is None else None
        with threads_of(run):
            posterior.export(folder, onnx=onnx, inputs=inputs)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if as_json:
        emit({"folder": str(folder), "files": files})
        return 0
    say(
        f"{len(posterior)} samples are in {printable(folder)}: {len(files)} files"
        + (", posterior.onnx among them." if onnx else "."),
        folder,
    )
    next_step(command("atmc", "predict", folder, "IMAGE.png"))
    return 0


def new_folder(folder: Path) -> None:
    """Refuse a folder that already holds something: it is somebody's."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder: name a new one")
