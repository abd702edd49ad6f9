"""`atmc demo`: the whole story in about a minute, on data that need no download."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.cli.main import INTERRUPTED, Told
from atmc.common.errors import InputError, OtherRunError

if TYPE_CHECKING:
    from atmc.report.report_data import ReportData, RunFacts

RECIPES = (("atmc", "digits-atmc"), ("sgd", "digits-sgd"))
STRANGERS = ("letters", "scrambled", "noise")


def demo(out: Path, *, seed: int, as_json: bool) -> int:
    """The verb; returns the exit code."""
    from atmc.cli.open_runs import run_recipe
    from atmc.recipe.toml_files import load_recipe
    from atmc.report import build

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: name a folder with --out")
    # Going on needs the same seed: with another one the runs there would be refused.
    typed = command("atmc", "demo", "--out", out, *(("--seed", seed) if seed else ()))
    began = time.monotonic()
    tell = (lambda text="": None) if as_json else say
    recipes = [(name, load_recipe(source, [f"seed={seed}"])) for name, source in RECIPES]
    tell("A small ResNet++ learns 8 × 8 handwritten digits twice: sampled by ATMC, and trained by SGD.")
    for name, recipe in recipes:
        tell()
        tell(f"{'Sampling the posterior with ATMC' if name == 'atmc' else 'Training the same network with SGD'} …")
        try:
            result = run_recipe(recipe, out / name, quiet=as_json, again=typed)
        except OtherRunError as error:  # settings that nobody can set here
            raise InputError(f"{out} holds another demo ({error}): name another folder with --out") from None
        if result.status != "done":
            tell("Stopped; nothing is lost.")
            if not as_json:
                next_step(typed)
            return Told(INTERRUPTED)
    runs = [out / name for name, _ in recipes]
    page = out / "report.html"
    with working("drawing the report"):
        data = build(runs, page, ood=STRANGERS, command=typed)
    spent = time.monotonic() - began
    if as_json:
        emit(_machine(data, page, spent))
        return 0
    _tell(data, runs[0], page, spent)
    doubted = out / "least-sure.png"  # something to predict at once: few people have digits of 8 × 8 pixels at hand
    doubted.write_bytes(data.runs[0].least_sure[0].png)
    next_step(
        command("atmc", "predict", runs[0], doubted),
        command("atmc", "sample", "folder:YOUR_IMAGES", "--out", "runs/mine"),
    )
    return 0


def _tell(data: ReportData, run: Path, page: Path, spent: float) -> None:
    from atmc.cli.score_tables import print_table
    from atmc.report.verdict import verdict

    say()
    print_table(data)
    say()
    for sentence in verdict(data)[:2]:  # the doctor has a line of its own, also where it has nothing against it
        say(printable(sentence))
    if data.runs[0].findings:
        more = command("atmc", "doctor", run)
        say(f"{printable(_health(data.runs[0]))} More: {printable(more)}", more)
    say()
    say("Images that are not digits, and how often doubt tells them from digits (AUROC; chance is 50 %):")
    sampled, trained = data.runs
    one_name, other_name = _short(sampled), _short(trained)
    for one, other in zip(sampled.ood, trained.ood, strict=True):
        shares = f"{one_name} {100 * one.auroc:.1f} %, {other_name} {100 * other.auroc:.1f} %"
        say(f"  {one.name:10} {shares}. {one.about}", hang=13)
    say(f"  {_certain(sampled)}; {_certain(trained)}.")
    say()
    say(f"The report, after {spent:.0f} s: {printable(page.resolve())}", page.resolve())


def _health(run: RunFacts) -> str:
    """What the doctor says of the chain, in a sentence or two."""
    whole = run.findings[0]
    # The verdict's evidence is the first of its troubles, or a line of figures where it has none.
    why = f" {whole.evidence}" if whole.level in ("warning", "problem") else ""
    return f"The doctor: {whole.title[:1].lower()}{whole.title[1:].rstrip('.')}.{why}"


def _short(run: RunFacts) -> str:
    return run.method.partition(",")[0]


def _certain(run: RunFacts) -> str:
    """How often a run is nearly certain about an image that is no digit."""
    import numpy as np

    doubts = np.concatenate([stranger.entropy for stranger in run.ood])
    # Below 0.1 nats of entropy the likeliest class has more than 97 % of the probability.
    return f"{_short(run)} is all but certain (below 0.1 nats) about {100 * float((doubts < 0.1).mean()):.0f} % of them"


def _machine(data: ReportData, page: Path, spent: float) -> dict[str, object]:
    return {
        "report": str(page),
        "seconds": spent,
        "runs": [
            {
                "name": run.name,
                "single": run.single,
                "predictive": run.predictive,
                "samples": run.samples,
                "strangers": {stranger.name: stranger.auroc for stranger in run.ood},
                "doctor": run.findings[0].title if run.findings else None,
            }
            for run in data.runs
        ],
    }
