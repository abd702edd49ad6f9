"""Do the lengths of standardised filters settle, and with them the effective step? 1,000 epochs of ATMC on digits.

    python benchmarks/filter_lengths.py [--temperatures 1 0.1] [--epochs 1000] [--out results/networks]

WRN-10-1 with GroupNorm + weight standardisation and the prior `normalised`, on a CPU, at a constant step. By the prior
a filter has a mean squared length of 2T, whatever the data say. `network_table.py --rows 'drift-*'` does the same with
WRN-16-4 on CIFAR-10. `--time-budget` ends each temperature's run earlier; the epochs reached are in the results.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from atmc.data import load
from atmc.engine import run
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
from network_rows import drift, dynamics

RATE, BATCH, SAMPLES = 0.02, 64, 50
NETWORK: dict[str, Any] = {"name": "wide-resnet", "depth": 10, "width": 1, "in_channels": 1, "norm": "gn-ws"}


def recipe_of(temperature: float, epochs: int) -> Recipe:
    examples = len(load("digits", "train"))
    speed = math.sqrt(RATE / examples)
    return Recipe(
        name=f"lengths-T{temperature:g}",
        data=DataSection(name="digits", batch_size=BATCH),
        model=ModelSection(**{key: value for key, value in NETWORK.items() if key != "in_channels"}),
        target=TargetSection(prior="normalised"),
        sampler=SamplerSection(
            name="atmc", lr=1e-3, speed=speed, max_speed=speed / 0.3, momentum=0.9, temperature=temperature
        ),
        schedule=ScheduleSection(
            epochs=epochs, kind="constant", sample_every_steps=max(1, epochs * examples // (BATCH * SAMPLES))
        ),
        run=RunSection(device="cpu", threads=1, evaluate=[]),
    )


def measure(temperature: float, epochs: int, budget: float | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        status = run(recipe_of(temperature, epochs), folder, budget, None).status
        opened = RunDir.open(folder)
        found = {"temperature": temperature, "status": status, **drift(opened)}
        return found | {key: dynamics(opened)[key] for key in ("jump", "jumps", "rollbacks", "kinetic_temperature")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperatures", type=float, nargs="*", default=[1.0, 0.1])
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--time-budget", type=float, help="seconds for each temperature")
    parser.add_argument("--out", type=Path, default=Path("results/networks"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    path = options.out / "filter_lengths.json"
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for temperature in options.temperatures:
        rows.append(measure(temperature, options.epochs, options.time_budget))
        record = {
            "command": " ".join(["python benchmarks/filter_lengths.py", *sys.argv[1:]]),
            "torch": torch.__version__,
            "rows": rows,
        }
        path.write_text(json.dumps(record, indent=1) + "\n")
        last = rows[-1]["lengths"][-1]
        print(
            f"T = {temperature:g}: after {last['epoch']:.0f} epochs length² {last['mean_square']:.3f} (2T = "
            f"{2 * temperature:g}), effective step × {last['step']:.2f} since the first sample",
            flush=True,
        )


if __name__ == "__main__":
    main()
