"""Does balancing mini-batch noise make temperatures above 0 pay on CIFAR-10? On held-out images, never the test set.

    ATMC_DATA=data python benchmarks/minibatch_cifar10.py --out results/minibatch [--jobs 4] [--only 'T1*'] [--seed 1]

WRN-16-4 with GroupNorm and weight standardisation, 45,000 images, crops and flips, the prior that SGD's weight decay
of 5e-4 stands for. Each run is one cycle of 48 epochs, so one mode: SGD's steps (rate 0.1) fall to a tenth, and in the
last eighth the chain samples at T, five samples one epoch apart. Rows differ in T, likelihood and `sampler.noise_rank`
alone; T = 0 is the ablation. "slow" has a third of the step size while sampling; "follow" keeps the momentum at 0.9 as
steps get smaller (0.99 otherwise), so that mini-batch noise heats a tenth as much. For each row the table has NLL and
accuracy on 5,000 held-out images of one sample and of all five, and the NLL after a temperature fitted on one half of
them is applied to the other; the training loss, the kinetic temperature and the one along the gradient noise while
sampling. "shipped" is the recipe cifar10/atmc-settled for one cycle of one chain, for its temperature along the noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from atmc.engine import run
from atmc.posterior import metrics
from atmc.posterior.calibration import apply_temperature, log_probs, temperature_scale
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

TRAIN, HELD_OUT, CYCLE, RATE, DECAY = 45_000, 5_000, 48, 0.1, 5e-4


@dataclasses.dataclass(frozen=True)
class Row:
    """What one run differs in."""

    temperature: float
    noise_rank: int = 0
    dirichlet: bool = False
    floor: float = 0.1  # step size while sampling, of the largest
    follow: bool = False  # friction as much larger as steps are smaller: the momentum stays 0.9


ROWS = {
    "T0": Row(0.0),
    "T1": Row(1.0),
    "T1-rank8": Row(1.0, 8),
    "T1-rank32": Row(1.0, 32),
    "T0.05": Row(0.05),
    "T0.05-rank8": Row(0.05, 8),
    "T0.05-slow": Row(0.05, floor=0.03),
    "T0.05-rank8-slow": Row(0.05, 8, floor=0.03),
    "T0.02": Row(0.02),
    "T0.02-rank8": Row(0.02, 8),
    "T0-slow": Row(0.0, floor=0.03),
    "T0-follow": Row(0.0, follow=True),
    "T0.02-follow-rank8": Row(0.02, 8, follow=True),
    "T0.05-follow": Row(0.05, follow=True),
    "T0.05-follow-rank8": Row(0.05, 8, follow=True),
    "T1-follow": Row(1.0, follow=True),
    "T1-follow-rank8": Row(1.0, 8, follow=True),
    "T0-dirichlet": Row(0.0, dirichlet=True),
    "T1-dirichlet": Row(1.0, dirichlet=True),
    "T1-dirichlet-rank8": Row(1.0, 8, dirichlet=True),
    "shipped": Row(0.02),
}


def recipe_of(name: str, seed: int) -> Recipe:
    row = ROWS[name]
    # The noisy Dirichlet likelihood has large gradients where a network is wrong: a sixth of the rate, as it has in
    # cifar10/atmc-settled-one.
    speed = math.sqrt(RATE * (0.16 if row.dirichlet else 1.0) / TRAIN)
    recipe = Recipe(
        name=name,
        seed=seed,
        data=DataSection(name="cifar10", batch_size=128, augment="crop-flip", validation=HELD_OUT),
        model=ModelSection(name="wide-resnet", depth=16, width=4, norm="gn-ws"),
        target=TargetSection(
            prior="gaussian-weights",  # weight decay w on the mean loss is Normal(0, 1/(N w)); the rest has a wide one
            prior_scale=1 / math.sqrt(TRAIN * DECAY),
            likelihood="noisy-dirichlet" if row.dirichlet else "categorical",
        ),
        sampler=SamplerSection(
            name="atmc",
            lr=1e-3,
            speed=speed,
            max_speed=speed / 0.3,
            momentum=0.9,
            temperature=row.temperature,
            noise_rank=row.noise_rank,
            friction_follows_step=row.follow,
        ),
        schedule=ScheduleSection(
            epochs=CYCLE,
            cycle_epochs=CYCLE,
            cycle_warmup_epochs=1,
            hold_fraction=0.4,
            lr_floor=row.floor,
            temperature_schedule="explore",
            explore_fraction=0.875,
            samples_per_cycle=5,
        ),
        run=RunSection(precision="bf16", log_steps=100, evaluate=["validation"], checkpoint_minutes=30.0),
    )
    if row.temperature == 0.0:
        plain = dataclasses.replace(recipe.schedule, temperature_schedule="constant", explore_fraction=0.0)
        return dataclasses.replace(recipe, schedule=plain)
    if name != "shipped":
        return recipe
    return dataclasses.replace(
        recipe,
        model=ModelSection(name="resnetpp", depth=56, width=32),
        target=TargetSection(prior="resnetpp", prior_scale=5.0),
        sampler=dataclasses.replace(recipe.sampler, speed=0.0025, max_speed=0.0083),
        schedule=ScheduleSection(
            epochs=50,
            cycle_epochs=50,
            cycle_warmup_epochs=3,
            hold_fraction=0.6,
            lr_floor=0.05,
            temperature_schedule="explore",
            explore_fraction=0.94,
            samples_per_cycle=3,
        ),
        run=dataclasses.replace(recipe.run, compile=True),
    )


def calibrated_nll(probs: Any, y: Any) -> float:
    """NLL with a temperature fitted on the other half of the images."""
    halves = np.arange(len(y)) % 2 == 0
    total = 0.0
    for fit, score in ((halves, ~halves), (~halves, halves)):
        best = temperature_scale(log_probs(probs[fit]), y[fit])
        total += metrics.nll(apply_temperature(probs[score], best), y[score]) * int(score.sum())
    return total / len(y)


def measure(name: str, seed: int, runs: Path) -> dict[str, Any]:
    """One row, run to its end."""
    began = time.monotonic()
    recipe, folder = recipe_of(name, seed), runs / f"{name}-{seed}"
    run(recipe, folder, None, None)
    opened = RunDir.open(folder)
    labels, probs = opened.labels("validation"), opened.predictions("validation").numpy()
    assert labels is not None
    y = labels.numpy()
    logs = [row for row in opened.metrics() if row["event"] == "log"]
    sampling = [row for row in logs if row["epoch"] > 0.9 * recipe.schedule.epochs]
    rates = sorted(row["images_per_second"] for row in logs if row.get("images_per_second"))

    def scores(p: Any) -> dict[str, float]:
        found = metrics.scores(p, y)
        return {key: float(found[key]) for key in ("accuracy", "nll", "ece")} | {"calibrated_nll": calibrated_nll(p, y)}

    def mean(key: str) -> float | None:
        values = [row[key] for row in sampling if row.get(key) is not None and math.isfinite(row[key])]
        return sum(values) / len(values) if values else None

    return {
        "row": name,
        "temperature": recipe.sampler.temperature,
        "likelihood": recipe.target.likelihood,
        "noise_rank": recipe.sampler.noise_rank,
        "augment": recipe.data.augment,
        "split": "validation",
        "epochs": recipe.schedule.epochs,
        "seeds": [recipe.seed],
        "one": scores(probs[-1]),
        "all": scores(probs.mean(0)),
        "samples": len(probs),
        "training_loss": mean("loss"),
        "kinetic_temperature": mean("kinetic_temperature"),
        "noise_temperature": mean("noise_temperature"),
        "noise_readings": sum(row.get("noise_readings", 0) for row in sampling),
        "images_per_second_side_by_side": rates[len(rates) // 2] if rates else None,
        "seconds": time.monotonic() - began,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'row':20} {'seed':>4} {'one':>14} {'all':>14} {'calibrated':>10} {'loss':>6} {'kinetic T':>9} "
        f"{'noise T':>8} {'img/s':>7} {'s':>5}"
    )
    for row in rows:
        each = [f"{100 * row[k]['accuracy']:.2f}/{row[k]['nll']:.4f}" for k in ("one", "all")]
        hot, noise = row["kinetic_temperature"], row["noise_temperature"]
        print(
            f"{row['row']:20} {row['seeds'][0]:4} {each[0]:>14} {each[1]:>14} {row['all']['calibrated_nll']:10.4f} "
            f"{row['training_loss']:6.3f} {hot if hot is not None else math.nan:9.3f} "
            f"{noise if noise is not None else math.nan:8.3f} "
            f"{row['images_per_second_side_by_side'] or 0:7.0f} {row['seconds']:5.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=["*"], help="rows, as patterns of names")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/minibatch"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=4, help="runs side by side on one GPU")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.child:
        row = measure(options.child, options.seed, options.runs)
        (options.out / f"{options.child}-{options.seed}.row.json").write_text(json.dumps(row, indent=1) + "\n")
        show([row])
        return
    waiting = [name for name in ROWS if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        running = [child for child in running if child.poll() is None]
        while waiting and len(running) < options.jobs:
            words = ["--child", waiting.pop(0), "--runs", str(options.runs), "--out", str(options.out)]
            running.append(subprocess.Popen([sys.executable, __file__, *words, "--seed", str(options.seed)]))
        time.sleep(0.5)
    keep(options.out)


def keep(out: Path) -> None:
    """Put the rows that were made into the table, which keeps those of other seeds."""
    table = out / "cifar10.json"
    rows = {(row["row"], *row["seeds"]): row for row in (json.loads(table.read_text()) if table.exists() else [])}
    for path in sorted(out.glob("*.row.json")):
        row = json.loads(path.read_text())
        rows[row["row"], *row["seeds"]] = row
        path.unlink()
    order = list(ROWS)
    kept = sorted(rows.values(), key=lambda row: (order.index(row["row"]), row["seeds"]))
    table.write_text(json.dumps(kept, indent=1) + "\n")
    show(kept)


if __name__ == "__main__":
    main()
