"""The rows of the CIFAR-10 table from what is stored, beside the paper's numbers: results/cifar10/table.json.

Every row follows one rule: average `probs` over the first axis of each of its files, score that, and average the scores
over the files. `spread` is one standard deviation of such a row: over seeds; of an average over chains by the
jackknife; of a last sample, which is one network, over the chains.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atmc.recipe.settings import recipe_from_dict, temperature_before
from cifar10_scores import against, detection, jackknife, mean_of, of_average, of_last, spread_of
from cifar10_store import Predictor, Row, load_predictors, load_rows, save_json

NETWORK, LAST, PREDICTIVE, ENSEMBLE = "network", "last sample", "posterior predictive", "ensemble"
METHODS = {"sgd": "SGD", "atmc": "ATMC", "sgnht": "SGNHT", "sghmc": "SGHMC", "sgld": "SGLD"}
LIKELIHOODS = {"noisy-dirichlet": "noisy Dirichlet", "dirclip": "DirClip"}
NETWORKS = {"resnetpp": "ResNet++", "resnet": "ResNet", "mlp": "MLP"}
ABLATION = "atmc-zero"  # the row that others are compared with, image by image: the same cycles at T = 0
# The paper's table: accuracy and NLL of ResNet++-56×32, and of ResNet-56×32 where there is BatchNorm.
PAPER = {
    ("sgd", "none", NETWORK): (0.915, 0.370),
    ("sgd", "bn", NETWORK): (0.944, 0.243),
    ("atmc", "none", LAST): (0.924, 0.303),
    ("atmc", "none", PREDICTIVE): (0.939, 0.194),
    ("sgnht", "none", LAST): (0.917, 0.343),
    ("sgnht", "none", PREDICTIVE): (0.935, 0.211),
}


def build(folder: Path) -> list[Row]:
    """The rows of the table, in the paper's order, from everything that was collected in `folder`."""
    collected = {row["row"]: row for row in load_rows(folder)}
    base = load_predictors(folder, collected[ABLATION])[0] if ABLATION in collected else None
    rows = [row for one in collected.values() for row in rows_of(one, folder, base)]
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    kinds = (NETWORK, LAST, PREDICTIVE, ENSEMBLE)
    return (
        row["kind"] == ENSEMBLE,
        list(METHODS).index(row["sampler"]),
        row["norm"] != "none",
        -(row["temperature"] or 0.0),
        row["run"],
        kinds.index(row["kind"]),
    )


def rows_of(collected: Row, folder: Path, base: Predictor | None = None) -> list[Row]:
    """One row for a trained network or an ensemble; for a sampled one the last sample, then the predictive."""
    recipe = tomllib.loads((folder / collected["recipe"]).read_text(encoding="utf-8"))
    predictors = load_predictors(folder, collected)
    several = min(found.samples for found in predictors) > 1
    if recipe["sampler"]["name"] == "sgd":
        kinds = [ENSEMBLE if several else NETWORK]
    else:
        kinds = [LAST, PREDICTIVE] if several else [LAST]
    return [_row(collected, recipe, predictors, kind, base) for kind in kinds]


def _row(collected: Row, recipe: Row, predictors: Sequence[Predictor], kind: str, base: Predictor | None) -> Row:
    last = kind == LAST
    files = [file for some in collected["last"] for file in some] if last and any(collected["last"]) else None
    before = temperature_before(recipe_from_dict(recipe))
    name, done = title(collected, recipe), "" if collected["status"] == "done" else ", unfinished"
    if kind == ENSEMBLE:
        name = f"Deep ensemble of {collected['samples']}: {name}"
    row = {
        "row": f"{name}{'' if kind in (NETWORK, ENSEMBLE) else f', {kind}'}{done}",
        "name": f"{name}{done}",
        "run": collected["row"],
        "made_of": collected.get("made_of"),
        "kind": kind,
        "sampler": recipe["sampler"]["name"],
        "norm": recipe["model"]["norm"],
        "likelihood": recipe["target"]["likelihood"],
        "aside": collected.get("aside", False),
        **{key: collected[key] for key in ("temperature", "augment")},
        **({} if before is None else {"temperature_before": before}),
        **_scores(predictors, last),
        "samples": 1 if last else collected["samples"],
        "chains": 1 if last else collected["chains"],
        **{key: collected[key] for key in ("epochs", "status", "seeds", "gpu_seconds", "device", "versions", "recipe")},
        "probabilities": files or collected["probabilities"],
        "paper": paper_numbers(recipe, kind),
    }
    if not last:
        row["ood"] = _ood(predictors)
        if base is not None and collected["row"] != ABLATION and len(predictors) == 1:
            row["ahead_of_ablation"] = against(predictors[0], base)
    return row


def _scores(predictors: Sequence[Predictor], last: bool) -> Row:
    """Scores averaged over predictors (of last samples also over chains), and their spread."""
    each = [of_last(found) for found in predictors] if last else [[of_average(found)] for found in predictors]
    means = [mean_of(some) for some in each]
    if len(predictors) > 1:
        spread = spread_of(means)
    else:
        spread = spread_of(each[0]) if last else jackknife(predictors[0])
    return {**mean_of(means), "spread": spread}


def title(collected: Row, recipe: Row) -> str:
    """What a row is called: the label it was collected with, or method and network."""
    model, likelihood = recipe["model"], recipe["target"]["likelihood"]
    name = "SGD in cycles" if is_ablation(recipe) else METHODS[recipe["sampler"]["name"]]
    name += {"bn": " + BatchNorm", "frn": " + FRN"}.get(model["norm"], "")
    name += f", {NETWORKS.get(model['name'], model['name'])}-{model['depth']}"
    name += f"×{model['width']}" if "width" in model else ""
    name += "" if likelihood == "categorical" else f", {LIKELIHOODS.get(likelihood, likelihood)}"
    return str(collected["label"] or name)


def is_ablation(recipe: Row) -> bool:
    """At T = 0 all samplers are SGD with momentum, and sample nothing."""
    return recipe["sampler"]["name"] != "sgd" and recipe["sampler"].get("temperature") == 0


def paper_numbers(recipe: Row, kind: str) -> dict[str, float] | None:
    """Accuracy and NLL of the paper's row, where this is its network and one of its rows."""
    model = recipe["model"]
    if (recipe["data"]["name"], model["depth"], model.get("width")) != ("cifar10", 56, 32) or is_ablation(recipe):
        return None
    found = PAPER.get((recipe["sampler"]["name"], model["norm"], kind))
    return None if found is None else {"accuracy": found[0], "nll": found[1]}


def _ood(predictors: Sequence[Predictor]) -> dict[str, dict[str, float]]:
    """How well OOD data sets are told apart, averaged over the predictors; only sets that all of them were shown."""
    each = [detection(found) for found in predictors]
    names = [name for name in each[0] if all(name in other for other in each)]
    return {name: {k: float(np.mean([e[name][k] for e in each])) for k in ("auroc", "aupr", "fpr95")} for name in names}


def total_seconds(rows: Sequence[Row]) -> float:
    """Time of all runs, each once: the last sample and the predictive are of one, and a row may be made of another."""
    names = {row["run"] for row in rows}
    return float(sum({row["run"]: row["gpu_seconds"] for row in rows if row["made_of"] not in names}.values()))


def save(folder: Path, rows: Sequence[Row]) -> None:
    """Write table.json."""
    save_json(folder / "table.json", rows)
