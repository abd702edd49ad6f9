"""`atmc demo`: few labelled images, a posterior average against one trained network, in about a minute.

The images come with scikit-learn, so that nothing is downloaded.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.cli.main import INTERRUPTED, Told
from atmc.common.errors import InputError, OtherRunError

if TYPE_CHECKING:
    from atmc.report.report_data import ReportData, RunFacts

RECIPES = (("atmc", "digits-atmc"), ("sgd", "digits-sgd"))
OOD = ("letters", "scrambled", "noise")


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
    tell("A small ResNet++ learns handwritten digits from 200 labelled images, twice: sampled by ATMC, trained by SGD.")
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
        data = build(runs, page, ood=OOD, command=typed)
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

    sampled, trained = data.runs
    say()
    say(printable(_verdict(sampled, trained)))
    say(printable(_refusal(sampled, trained)))
    say()
    print_table(data)
    say()
    say("OOD inputs, which are no digits: how often they are less certain than a digit (AUROC; chance is 50 %)")
    for one, other in zip(sampled.ood, trained.ood, strict=True):
        shares = f"{_short(sampled)} {100 * one.auroc:.1f} %, {_short(trained)} {100 * other.auroc:.1f} %"
        say(f"  {one.name:10} {shares}. {one.about}", hang=13)
    say(f"  {_overconfident(sampled)}; {_overconfident(trained)}.")
    say()
    if sampled.findings:
        more = command("atmc", "doctor", run)
        say(f"{printable(_health(sampled))} More: {printable(more)}", more)
    say(f"The report, after {spent:.0f} s: {printable(page.resolve())}", page.resolve())


def _verdict(sampled: RunFacts, trained: RunFacts) -> str:
    """The averaged samples against the trained network in NLL, ECE and OOD AUROC, in one line."""
    import numpy as np

    each = trained.nll_each - sampled.nll_each  # the same images: their difficulty cancels
    lead, error = float(np.mean(each)), float(np.std(each)) / math.sqrt(len(each))
    if abs(lead) < 2 * error:
        told = f"within the error, {error:.3f}"
    else:
        told = f"{'better' if lead > 0 else 'worse'} by {abs(lead):.3f} ± {error:.3f}"
    pairs = (
        f"NLL {sampled.predictive['nll']:.3f} against {trained.predictive['nll']:.3f} ({told})",
        f"ECE {sampled.predictive['ece']:.3f} against {trained.predictive['ece']:.3f}",
        f"OOD AUROC {100 * _auroc(sampled):.1f} % against {100 * _auroc(trained):.1f} %",
    )
    who = f"{sampled.samples} networks sampled by {_short(sampled)} against one trained by {_short(trained)}"
    return f"{who}, on {sampled.examples:,} test images: {', '.join(pairs)}."


def _refusal(sampled: RunFacts, trained: RunFacts) -> str:
    """What is left of the errors where the least certain tenth is refused."""
    (kept, whole), (other_kept, other_whole) = map(_errors, (sampled, trained))
    said = f"refusing the least certain 10 % leaves {100 * kept:.1f} % errors instead of {100 * whole:.1f} %"
    return (
        f"{_short(sampled)}: {said}; {_short(trained)}: {100 * other_kept:.1f} % instead of {100 * other_whole:.1f} %."
    )


def _errors(run: RunFacts) -> tuple[float, float]:
    """The share of errors among the most certain 90 %, and among all."""
    import numpy as np

    at = int(np.argmin(np.abs(run.risk.coverage - 0.9)))
    return float(run.risk.risk[at]), float(run.risk.risk[-1])


def _auroc(run: RunFacts) -> float:
    """The average over the kinds of OOD inputs."""
    return sum(kind.auroc for kind in run.ood) / len(run.ood)


def _health(run: RunFacts) -> str:
    """What the doctor says of the chain, in a sentence or two."""
    whole = run.findings[0]
    # The verdict's evidence is the first of its troubles, or a line of figures where it has none.
    why = f" {whole.evidence}" if whole.level in ("warning", "problem") else ""
    return f"atmc doctor: {whole.title[:1].lower()}{whole.title[1:].rstrip('.')}.{why}"


def _short(run: RunFacts) -> str:
    return run.method.partition(",")[0]


def _overconfident(run: RunFacts) -> str:
    """How often a run is nearly certain about an input that is no digit."""
    import numpy as np

    entropy = np.concatenate([kind.entropy for kind in run.ood])
    # Below 0.1 nats of entropy the likeliest class has more than 97 % of the probability.
    return (
        f"{_short(run)} is all but certain (below 0.1 nats) about {100 * float((entropy < 0.1).mean()):.0f} % of them"
    )


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
                "ood": {kind.name: kind.auroc for kind in run.ood},
                "doctor": run.findings[0].title if run.findings else None,
            }
            for run in data.runs
        ],
    }
