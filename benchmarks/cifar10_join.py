"""Join stored rows to one row: seeds that ran on different days, or networks as an ensemble.

The result is that of collecting all runs at once, except the OOD scores of an ensemble, which need the networks.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atmc.common.errors import InputError
from atmc.recipe.settings import Recipe, recipe_from_dict
from cifar10_scores import curves, mean_of, of_average
from cifar10_store import Predictor, Row, check_alike, check_name, load_predictors, save_row


def join(
    folders: Sequence[Path],
    name: str,
    out: Path,
    *,
    into: str | None = None,
    label: str | None = None,
    aside: bool | None = None,
    all_in_one: bool,
) -> Row:
    """The rows called `name` of all `folders` as the row `into` of `out`; returns what its JSON file says.

    `all_in_one` averages all their networks to one prediction, an ensemble; otherwise they are the seeds of the row. A
    row set `aside` stands in the tables only, not in the figures; None leaves it where it is.
    """
    into = check_name(into or name)
    rows = [_load(folder, name) for folder in folders]
    check_alike([(str(folder), _recipe(folder, row)) for folder, row in zip(folders, rows, strict=True)])
    _check_rows(rows, label)
    seeds = [seed for row in rows for seed in row["seeds"]]
    _check_target(out, into, [folder / f"{name}.row.json" for folder in folders], seeds, all_in_one)
    predictors = [found for folder, row in zip(folders, rows, strict=True) for found in load_predictors(folder, row)]
    chains = [row["chains"] for row in rows for _ in row["probabilities"]]
    if all_in_one:
        predictors = [together(predictors)]
    out.mkdir(parents=True, exist_ok=True)
    source, target = folders[0] / rows[0]["recipe"], out / f"{into}.toml"
    if source.resolve() != target.resolve():
        shutil.copyfile(source, target)
    row = {
        **rows[0],
        "row": into,
        **({} if into == name else {"made_of": name}),  # the time of its runs may be in that row as well
        "label": rows[0]["label"] if label is None else label,
        "aside": any(row.get("aside", False) for row in rows) if aside is None else aside,
        **mean_of([of_average(found) for found in predictors]),
        "samples": min(found.samples for found in predictors),
        "epochs": min(row["epochs"] for row in rows),
        "chains": sum(chains) if all_in_one else min(chains),
        "status": "done" if all(row["status"] == "done" for row in rows) else "unfinished",
        "seeds": seeds,
        "gpu_seconds": round(sum(row["gpu_seconds"] for row in rows), 1),
        "rollbacks": sum(row["rollbacks"] for row in rows),
        "device": sorted({device for row in rows for device in row["device"]}),
        "versions": {
            package: " and ".join(dict.fromkeys(row["versions"].get(package, "none") for row in rows))
            for package in dict.fromkeys(package for row in rows for package in row["versions"])
        },
        "recipe": target.name,
    }
    return save_row(out, row, predictors)


def together(predictors: Sequence[Predictor]) -> Predictor:
    """Networks as one ensemble: their stored averages are the networks themselves only where each is one sample."""
    if any(found.samples != len(found.probs) for found in predictors):
        raise InputError("of sampled chains only averages are stored: collect their runs together, with --average all")
    labels = predictors[0].labels
    probs = np.concatenate([found.probs for found in predictors])
    epochs = np.concatenate([found.curves["epoch"] for found in predictors])
    order = np.argsort(epochs, kind="stable")
    return Predictor(
        probs=probs[order],
        labels=labels,
        curves=curves(probs[order], labels, epochs[order], np.arange(len(probs)), None),
    )


def _check_rows(rows: Sequence[Row], label: str | None) -> None:
    """Rows that differ in no setting may still be no seeds of each other."""
    name = rows[0]["row"]
    seeds = [str(seed) for row in rows for seed in row["seeds"]]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"a seed comes twice ({', '.join(seeds)}): it is one run, not two")
    if len({":" in seed for seed in seeds}) > 1 or len({row["chains"] for row in rows}) > 1:
        raise InputError(f"some rows {name} average whole runs and some a part: collect them in the same way")
    if len({row["data"]["digest"] for row in rows}) > 1:
        raise InputError(f"the rows {name} are of different test sets")
    if label is None and len({row["label"] for row in rows}) > 1:
        raise InputError(f"the rows {name} have different labels: give --label")


def _check_target(out: Path, into: str, sources: Sequence[Path], seeds: Sequence[Any], all_in_one: bool) -> None:
    """A row that would be overwritten must be among the joined ones, and an ensemble must not replace its members."""
    target = out / f"{into}.row.json"
    if not target.exists():
        return
    if all_in_one and any(target.resolve() == source.resolve() for source in sources):
        raise InputError("an ensemble needs a --name of its own: its members stay")
    lost = [seed for seed in json.loads(target.read_text(encoding="utf-8"))["seeds"] if seed not in seeds]
    if lost:
        raise InputError(
            f"{target} has seed {', '.join(map(str, lost))}, which would be lost: join it too, or remove it"
        )


def _load(folder: Path, name: str) -> Row:
    try:
        found: Row = json.loads((folder / f"{name}.row.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} holds no row {name}: collect it there first") from None
    return found


def _recipe(folder: Path, row: Row) -> Recipe:
    try:
        return recipe_from_dict(tomllib.loads((folder / row["recipe"]).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{folder / row['recipe']} is missing: collect the row again") from None
