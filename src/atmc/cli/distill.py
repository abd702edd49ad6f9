"""`atmc distill RUN FOLDER`: train one network to match the predictive of all samples."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from atmc.cli.console import PATIENCE, command, emit, next_step, printable, remark, say
from atmc.cli.export import made_whole, new_folder
from atmc.cli.score_tables import score_table
from atmc.common.errors import InputError


def distill(run: Path, folder: Path, *, epochs: int, as_json: bool) -> int:
    """The command; returns the exit code."""
    new_folder(folder)
    from atmc.cli.open_runs import in_python, is_regression, tell_damage, threads_of
    from atmc.report.read_run import Reading, pixels

    reading = Reading(run)
    if is_regression(reading.run):
        raise InputError(
            f"{run} is a regression, and distilling is for classifiers: in Python, use {in_python(run, 'regress(x)')}"
        )
    saved = f"distill(x).posterior.save({str(folder)!r}), with x the training inputs"
    reading.need_network(in_python(run, saved))
    damaged = reading.run.damage()
    tell_damage(run, damaged)
    train, test = reading.examples("train"), reading.examples("test")
    began = time.monotonic()
    shown = [began]

    def progress(epoch: int, divergence: float) -> None:
        now = time.monotonic()
        if now - shown[0] >= PATIENCE or epoch == epochs:
            shown[0] = now
            left = (now - began) / epoch * (epochs - epoch)
            remark(f"epoch {epoch} of {epochs}: {divergence:.4f} nats from the predictive, {left:.0f} s left")

    held = (pixels(test), test.labels.numpy())
    with threads_of(run):
        made = reading.posterior.distill(pixels(train), epochs=epochs, held_out=held, progress=progress)
    with made_whole(folder):
        made.posterior.save(folder)
    sys.stderr.flush()
    if as_json:
        told = {"folder": str(folder), "divergence": made.divergence, "scores": made.scores}
        emit(told | ({"damaged": damaged} if damaged else {}))
        return 0
    names = (("student", "the distilled network"), ("ensemble", "all samples"), ("single", "the last sample"))
    score_table([(label, made.scores[key]) for key, label in names])
    say(f"The distilled network is in {printable(folder)}.", folder)
    next_step(command("atmc", "predict", folder, "IMAGE.png"))
    return 0
