"""Does balancing mini-batch noise make temperatures above 0 pay on CIFAR-10? On held-out images, never the test set.

    ATMC_DATA=data python benchmarks/minibatch_cifar10.py --out results/minibatch [--jobs 4] [--only T0 T0.05-rank8 …]

WRN-16-4 with GroupNorm and weight standardisation, 45,000 images, crops and flips. Each run has two cycles of 32
epochs: SGD's steps (rate 0.1) fall to a tenth, and in the last fifth of a cycle the chain samples at T, six samples one
epoch apart. Rows differ in T and in `sampler.noise_rank` alone; T = 0 is the ablation. For each row the table has NLL
and accuracy on 5,000 held-out images of one sample, of the first mode's six, and of all twelve; the training loss, the
kinetic temperature and the one along the gradient noise while sampling. "shipped" is the recipe cifar10/atmc-settled
for one cycle of one chain, for its temperature along the noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from atmc.engine import run
from atmc.posterior import metrics
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

TRAIN, HELD_OUT, CYCLE, RATE = 45_000, 5_000, 32, 0.1
ROWS = {
    "T0": (0.0, 0),
    "T0.05": (0.05, 0),
    "T0.05-rank8": (0.05, 8),
    "T1": (1.0, 0),
    "T1-rank8": (1.0, 8),
    "T0.3": (0.3, 0),
    "T0.3-rank8": (0.3, 8),
    "shipped": (0.02, 0),
}


def recipe_of(name: str) -> Recipe:
    temperature, rank = ROWS[name]
    speed = math.sqrt(RATE / TRAIN)
    recipe = Recipe(
        name=name,
        data=DataSection(name="cifar10", batch_size=128, augment="crop-flip", validation=HELD_OUT),
        model=ModelSection(name="wide-resnet", depth=16, width=4, norm="gn-ws"),
        target=TargetSection(prior="normalised"),
        sampler=SamplerSection(
            name="atmc",
            lr=1e-3,
            speed=speed,
            max_speed=speed / 0.3,
            momentum=0.9,
            temperature=temperature,
            noise_rank=rank,
        ),
        schedule=ScheduleSection(
            epochs=2 * CYCLE,
            cycle_epochs=CYCLE,
            cycle_warmup_epochs=1,
            hold_fraction=0.4,
            lr_floor=0.1,
            temperature_schedule="explore",
            explore_fraction=0.8,
            samples_per_cycle=6,
        ),
        run=RunSection(precision="bf16", log_steps=100, evaluate=["validation"], checkpoint_minutes=30.0),
    )
    if temperature == 0.0:
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


def measure(name: str, runs: Path) -> dict[str, Any]:
    """One row, run to its end."""
    began = time.monotonic()
    recipe = recipe_of(name)
    run(recipe, runs / name, None, None)
    opened = RunDir.open(runs / name)
    labels, probs = opened.labels("validation"), opened.predictions("validation").numpy()
    assert labels is not None
    y, per = labels.numpy(), recipe.schedule.samples_per_cycle
    logs = [row for row in opened.metrics() if row["event"] == "log"]
    sampling = [row for row in logs if row["temperature"] > 0] or logs[-20:]
    rates = sorted(row["images_per_second"] for row in logs if row.get("images_per_second"))

    def scores(p: Any) -> dict[str, float]:
        found = metrics.scores(p, y)
        return {key: float(found[key]) for key in ("accuracy", "nll", "ece")}

    def mean(key: str) -> float | None:
        values = [row[key] for row in sampling if row.get(key) is not None and math.isfinite(row[key])]
        return sum(values) / len(values) if values else None

    return {
        "row": name,
        "temperature": recipe.sampler.temperature,
        "noise_rank": recipe.sampler.noise_rank,
        "augment": recipe.data.augment,
        "split": "validation",
        "epochs": recipe.schedule.epochs,
        "seeds": [recipe.seed],
        "one": scores(probs[per - 1]),
        "mode": scores(probs[:per].mean(0)),
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
        f"{'row':14} {'one':>14} {'mode':>14} {'all':>14} {'loss':>6} {'kinetic T':>9} {'noise T':>8} "
        f"{'img/s':>7} {'s':>5}"
    )
    for row in rows:
        each = [f"{100 * row[k]['accuracy']:.2f}/{row[k]['nll']:.4f}" for k in ("one", "mode", "all")]
        hot, noise = row["kinetic_temperature"], row["noise_temperature"]
        print(
            f"{row['row']:14} {each[0]:>14} {each[1]:>14} {each[2]:>14} {row['training_loss']:6.3f} "
            f"{hot if hot is not None else math.nan:9.3f} {noise if noise is not None else math.nan:8.3f} "
            f"{row['images_per_second_side_by_side'] or 0:7.0f} {row['seconds']:5.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--runs", type=Path, default=Path("runs/minibatch"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=4, help="runs side by side on one GPU")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.child:
        row = measure(options.child, options.runs)
        (options.out / f"{options.child}.row.json").write_text(json.dumps(row, indent=1) + "\n")
        show([row])
        return
    waiting, running = list(options.only), []
    while waiting or running:
        running = [child for child in running if child.poll() is None]
        while waiting and len(running) < options.jobs:
            words = ["--child", waiting.pop(0), "--runs", str(options.runs), "--out", str(options.out)]
            running.append(subprocess.Popen([sys.executable, __file__, *words]))
        time.sleep(0.5)
    found = [options.out / f"{name}.row.json" for name in ROWS]
    rows = [json.loads(path.read_text()) for path in found if path.exists()]
    (options.out / "cifar10.json").write_text(json.dumps(rows, indent=1) + "\n")
    for path in found:
        path.unlink(missing_ok=True)
    show(rows)


if __name__ == "__main__":
    main()
