"""Convert a pre-trained BatchNorm network and sample it for a few epochs.

    python benchmarks/pretrained.py --out runs/pretrained    # a small network, one core; resumes where it stopped

For each seed SGD trains a ResNet with BatchNorm until it overfits; `atmc.nn.convert` folds its norms; `atmc.sample`
starts from there at each T. Baselines: temperature scaling (costs nothing), T = 0 (SGD in the same cycles, costs the
same), and the ensemble of the networks of all seeds (costs more). Writes results/pretrained/ and prints the table of
docs/tutorials/pretrained.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import atmc
from atmc.engine import run
from atmc.engine.run_data import load_data
from atmc.nn import convert
from atmc.posterior import Posterior, metrics
from atmc.posterior.calibration import apply_temperature, log_probs, temperature_scale
from atmc.posterior.inputs import Pixels
from atmc.recipe import load_recipe
from atmc.recipe.settings import Recipe
from atmc.storage.manifest import versions
from atmc.storage.run_directory import RunDir
from cifar10_store import Array, save_json

RESULTS = Path(__file__).resolve().parents[1] / "results" / "pretrained"
RECIPE = "cifar10/sgd-batchnorm"
# 4,000 images of Fashion-MNIST, not augmented, scored on its test set; of the rest some are there to scale logits with.
SMALL = (
    "data.name=fashion-mnist data.augment=none data.validation=56000 data.batch_size=100 model.depth=8 model.width=16 "
    "schedule.epochs=60 run.precision=float32 run.compile=false run.threads=1"
)
TEMPERATURES = (0.0, 0.3, 1.0)
EPOCHS = 20
SEEDS = (0, 1, 2)
SCALED_ON = 5_000
SCORES = ("accuracy", "nll", "ece", "brier")
NETWORK, SCALED, ENSEMBLE = "the network", "the network, logits scaled", "the networks of all seeds together"


def scored(probs: Array, labels: Array) -> dict[str, float]:
    """What is kept of a prediction."""
    found = metrics.scores(probs, labels)
    return {score: float(found[score]) for score in SCORES}


def settings_of(recipe: Recipe) -> list[str]:
    """What `atmc.sample` is told beyond its own choices: augmentation and arithmetic as in training."""
    own = [f"data.augment={recipe.data.augment}", f"run.precision={recipe.run.precision}"]
    return own + [f"run.threads={recipe.run.threads}"] * (recipe.run.threads is not None)


def of_seed(recipe: Recipe, temperatures: Sequence[float], epochs: int, out: Path) -> dict[str, Any]:
    """Train the network of a recipe, convert it, sample it at each T: scores on the test set by row."""
    run(recipe, out / "sgd", None, None)
    both = dataclasses.replace(recipe.run, evaluate=["validation", "test"])
    data = load_data(dataclasses.replace(recipe, run=both))
    test, held = data.evaluate["test"], data.evaluate["validation"]
    labels = np.asarray(test.labels)
    trained = Posterior.from_run(out / "sgd")
    before = np.asarray(trained.predict(test.images).probs)
    some = slice(0, SCALED_ON)
    scale = temperature_scale(log_probs(trained.predict(held.images[some]).probs), np.asarray(held.labels[some]))
    seconds = max(row.get("seconds", 0.0) for row in RunDir.open(out / "sgd").metrics())
    rows: dict[str, Any] = {
        NETWORK: {**scored(before, labels), "seconds": round(seconds, 1)},
        SCALED: {**scored(apply_temperature(before, scale), labels), "scale": scale},
    }
    network = trained[-1]
    example = Pixels(trained.mean, trained.std)(test.images[:16], torch.device("cpu"), torch.float32)
    for temperature in temperatures:
        folder = out / f"T{temperature:g}"
        posterior = atmc.sample(
            convert(network, example),
            data.train,
            epochs=epochs,
            temperature=temperature,
            prior="gaussian",
            batch_size=recipe.data.batch_size,
            seed=recipe.seed,
            out=folder,
            progress=None,
            overrides=settings_of(recipe),
        )
        each = np.stack([np.asarray(posterior[[k]].predict(test.images).probs) for k in range(len(posterior))])
        alone = [scored(probs, labels) for probs in each]
        rows[f"T = {temperature:g}"] = {
            **scored(metrics.predictive(each), labels),
            "single": {score: statistics.mean(one[score] for one in alone) for score in SCORES},
            "samples": len(posterior),
            "more": epochs + RunDir.open(folder).recipe.schedule.warm_start_epochs,
        }
        print(f"seed {recipe.seed}, T = {temperature:g}: {rows[f'T = {temperature:g}']}", flush=True)
    return {"rows": rows, "probs": before, "labels": labels}


def table(rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Every row as Markdown, mean ± standard deviation over seeds; the ensemble is one."""
    lines = ["| | further epochs | accuracy % | NLL | ECE | Brier |", "| --- | --- | --- | --- | --- | --- |"]
    for name, seeds in rows.items():
        cells = []
        for score, times, digits in (("accuracy", 100, 1), ("nll", 1, 3), ("ece", 1, 3), ("brier", 1, 3)):
            values = [times * row[score] for row in seeds.values()]
            spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.{digits}f}{spread}")
        more = next(iter(seeds.values())).get("more", 0)
        lines.append(f"| {' | '.join([name, str(more), *cells])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="instead of the small network")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--results", type=Path, default=RESULTS / "cpu.json")
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    found = {}
    for seed in options.seeds:
        recipe = load_recipe(options.recipe, [*(options.set or SMALL.split()), 'run.evaluate=["test"]', f"seed={seed}"])
        found[str(seed)] = of_seed(recipe, options.temperatures, options.epochs, options.out / f"{seed}")
    names = next(iter(found.values()))["rows"]
    rows = {name: {seed: one["rows"][name] for seed, one in found.items()} for name in names}
    if len(found) > 1:
        together = np.mean([one["probs"] for one in found.values()], axis=0)
        more = (len(found) - 1) * recipe.schedule.epochs
        rows[ENSEMBLE] = {"all": {**scored(together, next(iter(found.values()))["labels"]), "more": more}}
    about = {"machine": platform.machine(), "versions": versions(), "recipe": recipe.to_dict(), "rows": rows}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    save_json(options.results, about)
    print(table(rows))


if __name__ == "__main__":
    main()
