"""Check that no diverged sample is kept, for every sampler and step sizes from far too small to far too large.

    python benchmarks/divergence.py [--runs 200] [--seed 0] [--out FILE.json]

Each run samples a small MLP on scikit-learn's digits for a few short cycles, or with a constant step size. The step
size is drawn log-uniformly over eight orders of magnitude. A run may end in three ways: done, done after rollbacks, or
given up with a line that names the step size. In none of them may the bank hold a sample whose test NLL is above
three times that of guessing, which is what `run.worst_sample` says. Step sizes that are far from stable are to be named
before the first step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from atmc.common.errors import RunError
from atmc.diagnose.doctor import doctor
from atmc.engine.runner import run
from atmc.posterior.metrics import nll
from atmc.recipe.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)
from atmc.storage.run_directory import RunDir

# What a step size of 1 means to each: about where a sampler of this network and these data begins to break.
SAMPLERS: dict[str, tuple[float, dict[str, Any]]] = {
    "sgld": (1e-3, {}),
    "sghmc": (1e-2, {"mass": 1.0, "friction": 10.0}),
    "sgnht": (1e-2, {"mass": 1.0, "friction": 10.0, "inertia": 0.1}),
    "atmc": (1e-2, {"mass": 1.0, "friction": 10.0, "inertia": 0.1, "speed_limit": 3.0}),
    "sgd": (0.3, {"momentum": 0.9}),
}
DECADES = 4.0  # on either side


def recipes(count: int, seed: int = 0) -> list[Recipe]:
    """`count` recipes: the samplers in turn, two kinds of schedule, a step size drawn for each."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        name = list(SAMPLERS)[number % len(SAMPLERS)]
        scale, more = SAMPLERS[name]
        lr = scale * 10 ** draw.uniform(-DECADES, DECADES)
        cyclic = number // len(SAMPLERS) % 2 == 0
        every = {"cycle_epochs": 1} if cyclic else {"sample_every_steps": 7}
        made.append(
            Recipe(
                name=f"{name}-{number}",
                seed=number,
                data=DataSection(name="digits", batch_size=64),
                model=ModelSection(name="mlp", depth=2, width=16),
                target=TargetSection(prior="gaussian"),
                sampler=SamplerSection(name=name, lr=lr, **more),  # type: ignore[arg-type]
                schedule=ScheduleSection(epochs=3, kind="cyclic" if cyclic else "constant", **every),
                run=RunSection(device="cpu", threads=1),
            )
        )
    return made


def outcome(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """One run: how it ended, what the bank's worst sample has, and whether a failure was named."""
    said = ""
    try:
        run(recipe, folder, progress=None)
    except RunError as error:
        said = str(error)
    found = RunDir.open(folder)
    labels = found.labels("test")
    worst = max((nll(p, labels) for p in found.predictions("test")), default=0.0) if len(found.bank) else 0.0
    warned = [row["overshoot"] for row in found.metrics() if row["event"] == "unstable"]
    advice = "" if not said else " ".join(str(finding) for finding in doctor(found))
    return {
        "sampler": recipe.sampler.name,
        "lr": recipe.sampler.lr,
        "schedule": recipe.schedule.kind,
        "samples": len(found.bank),
        "rollbacks": sum(row["event"] == "rollback" for row in found.metrics()),
        "overshoot": warned[0] if warned else None,  # only where it was far from stable
        "worst_nll": worst,
        "said": said,
        "named": not said or ("sampler.lr" in said and "sampler.lr" in advice and "\n" not in said),
        "diverged": worst > replace(recipe.run).worst_sample * math.log(10),
    }


def sweep(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The outcomes of `count` runs."""
    found = []
    for recipe in recipes(count, seed):
        with tempfile.TemporaryDirectory() as folder:
            found.append(outcome(recipe, Path(folder) / "run"))
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--runs", type=int, default=200)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--out", type=Path)
    asked = words.parse_args()
    began = time.monotonic()
    found = sweep(asked.runs, asked.seed)
    ends = Counter(
        (r["sampler"], "gave up" if r["said"] else "rolled back" if r["rollbacks"] else "done") for r in found
    )
    for name in SAMPLERS:
        print(f"{name:6}", {how: ends[name, how] for how in ("done", "rolled back", "gave up")})
    diverged, unnamed = [r for r in found if r["diverged"]], [r for r in found if not r["named"]]
    print(f"{len(found)} runs in {time.monotonic() - began:.0f} s: {len(diverged)} with a diverged sample in the bank, "
          f"{len(unnamed)} failures without a name")  # fmt: skip
    told = [r for r in found if r["overshoot"] is not None]
    gave_up, back = [r for r in told if r["said"]], [r for r in told if not r["said"] and r["rollbacks"]]
    missed = sum(bool(r["said"]) for r in found) - len(gave_up)
    print(f"{len(told)} were said to be unstable before their first step: {len(gave_up)} gave up, {len(back)} "
          f"rolled back, {len(told) - len(gave_up) - len(back)} did neither; {missed} others gave up")  # fmt: skip
    for r in (*diverged, *unnamed):
        print(r)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    raise SystemExit(bool(diverged or unnamed))


if __name__ == "__main__":
    main()
