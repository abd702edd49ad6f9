"""Few labelled images: the demo's comparison over seeds, with a deep ensemble beside it.

    python benchmarks/demo.py --out runs/demo                 # minutes a seed on one core; resumes where it stopped
    python benchmarks/demo.py --choose digits-sgd sampler.weight_decay=0.02    # score settings by cross-validation

200 of scikit-learn's digits are labelled, the other 1,597 are the test set, and images that are no digits are the OOD
inputs. The rows are the demo's two recipes, a deep ensemble of five networks trained by SGD, and SGD with the weight
decay that is usual for larger training sets. Settings of the first three were chosen by `--choose` alone: five-fold
cross-validation over the 200 training images. Neither test images nor OOD inputs had a part in it.

Writes results/demo/table.json and prints the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from atmc.cli.demo import OOD
from atmc.data import ImageData
from atmc.data.validation_split import held_out_index
from atmc.engine import run
from atmc.engine.run_data import RunData, load_data
from atmc.posterior import metrics
from atmc.recipe import load_recipe
from atmc.recipe.settings import Recipe
from atmc.report.collect import gather
from atmc.report.read_run import Reading
from atmc.report.report_data import RunFacts
from atmc.storage.manifest import versions
from cifar10_store import save_json

RESULTS = Path(__file__).resolve().parents[1] / "results" / "demo"
SEEDS = (0, 1, 2, 3, 4)
MEMBERS = 5
FOLDS = 5
# Usual settings for a larger training set, beside those chosen by NLL: an overconfident network.
USUAL = ("sampler.lr=0.05", "sampler.weight_decay=0.0005", "schedule.epochs=250")
SCORES = {"accuracy": "Accuracy %", "error_at_90": "Error % at 90 %", "nll": "NLL", "ece": "ECE", "auroc": "AUROC %"}
PERCENT = ("accuracy", "error_at_90", "auroc")


def recipes(changes: list[str]) -> dict[str, Recipe]:
    """The rows and how each is made; a row's seed is set later. `changes` are to the sampled one."""
    trained = load_recipe("digits-sgd")
    return {
        "ATMC": load_recipe("digits-atmc", changes),
        "SGD": trained,
        f"deep ensemble of {MEMBERS} SGD": dataclasses.replace(trained, chains=MEMBERS),
        "SGD, weight decay 0.0005": load_recipe("digits-sgd", USUAL),
    }


def measured(row: str, seed: int, facts: RunFacts) -> dict[str, Any]:
    """The scores of the average of a run's networks."""
    at = int(np.argmin(np.abs(facts.risk.coverage - 0.9)))
    kinds = {kind.name: round(kind.auroc, 5) for kind in facts.ood}
    return {
        "row": row,
        "seed": seed,
        "networks": facts.samples,
        **{name: round(value, 5) for name, value in facts.predictive.items()},
        "error_at_90": round(float(facts.risk.risk[at]), 5),
        "confidence": round(float(np.mean(facts.bins.confidence)), 5),
        "auroc": round(statistics.mean(kinds.values()), 5),
        "auroc_of": kinds,
        "single_nll": round(facts.single["nll"], 5),
        "seconds": round(facts.seconds or 0.0, 1),
        "doctor": facts.findings[0].title if facts.findings else None,
    }


def lead(seed: int, best: RunFacts, other: RunFacts, row: str) -> dict[str, Any]:
    """How much lower the NLL of `best` is, with the standard error over the test images, which both share."""
    each = other.nll_each - best.nll_each
    error = float(np.std(each)) / len(each) ** 0.5
    return {"over": row, "seed": seed, "nll": round(float(np.mean(each)), 5), "error": round(error, 5)}


def table(rows: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds as Markdown."""
    lines = [f"| | {' | '.join(SCORES.values())} |", f"| --- |{' --- |' * len(SCORES)}"]
    for name in dict.fromkeys(row["row"] for row in rows):
        cells = []
        for score in SCORES:
            values = [row[score] * (100 if score in PERCENT else 1) for row in rows if row["row"] == name]
            spread = statistics.stdev(values) if len(values) > 1 else float("nan")
            digits = 1 if score in PERCENT else 3
            cells.append(f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def study(out: Path, results: Path, seeds: list[int], changes: list[str]) -> list[dict[str, Any]]:
    """Run every row with every seed, and keep what was measured."""
    rows: list[dict[str, Any]] = []
    leads: list[dict[str, Any]] = []
    made = recipes(changes)
    for seed in seeds:
        folders = [out / f"{re.sub('[^a-z0-9]+', '-', row.lower())}-seed{seed}" for row in made]
        for folder, recipe in zip(folders, made.values(), strict=True):
            run(dataclasses.replace(recipe, seed=seed), folder, None, None)
        facts = dict(zip(made, gather(folders, ood=OOD).runs, strict=True))
        rows += [measured(row, seed, found) for row, found in facts.items()]
        leads += [lead(seed, facts["ATMC"], found, row) for row, found in facts.items() if row != "ATMC"]
        print(table(rows[-len(made) :]), flush=True)
    results.mkdir(parents=True, exist_ok=True)
    kept = {name: recipe.to_dict() for name, recipe in made.items()}
    save_json(results / "table.json", {"versions": versions(), "rows": rows, "lead of ATMC": leads, "recipes": kept})
    return rows


def cross_validated(recipe: Recipe) -> dict[str, float]:
    """Scores of predictions for every training image, by networks that were not taught it."""
    train = load_data(recipe).train
    assert isinstance(train, ImageData)
    least = len(train) - -(-len(train) // FOLDS)  # of a fold's training images: a batch of all stays one of all
    recipe = dataclasses.replace(
        recipe, data=dataclasses.replace(recipe.data, batch_size=min(recipe.data.batch_size, least))
    )
    rest, probs, labels = np.arange(len(train)), [], []
    for fold in range(FOLDS):
        # A fold is a stratified share of what the folds before it have left.
        size = len(rest) // (FOLDS - fold)
        held = rest if fold == FOLDS - 1 else rest[held_out_index(train.labels[rest], size, f"demo/{fold}")[1].numpy()]
        rest = np.setdiff1d(rest, held)
        taught = np.setdiff1d(np.arange(len(train)), held)
        parts = RunData(train.subset(_index(taught), "train"), {"test": train.subset(_index(held), "test")})
        with tempfile.TemporaryDirectory() as folder:
            run(dataclasses.replace(recipe, seed=100 + fold), Path(folder) / "run", None, None, data=parts)
            reading = Reading(Path(folder) / "run")
            answers = reading.answers("test")
            probs.append(metrics.predictive(reading.probs("test", answers)))
            labels.append(answers.labels)
    return metrics.scores(np.concatenate(probs), np.concatenate(labels))


def _index(rows: Any) -> Any:
    import torch

    return torch.from_numpy(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where the runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--choose", nargs="+", metavar=("RECIPE", "KEY=VALUE"), help="cross-validate these settings")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes to the recipe of ATMC")
    options = parser.parse_args()
    if options.choose:
        source, *settings = options.choose
        print({name: round(value, 4) for name, value in cross_validated(load_recipe(source, settings)).items()})
        return
    print(f"\n{table(study(options.out, options.results, options.seeds, options.set))}")


if __name__ == "__main__":
    main()
