"""Rows that were stored one by one, as one row: seeds that ran on different days, or networks as an ensemble.

Where machines keep nothing, the seeds of a row are collected where each of them ran. What is stored of
them is enough to put them together, and gives what collecting all runs at once would have given.
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
from cifar10_rows import (
    SCORES,
    Predictor,
    Row,
    by_predictor,
    check_alike,
    check_name,
    load_predictor,
    numbered_on,
    positive,
    save_predictor,
    save_row,
    stored,
)


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

    `all_in_one` averages all their samples to one prediction, an ensemble; otherwise they are the seeds of the row. A
    row set `aside` stands in the long table only, not in README's and not in the figures; None leaves it where it is.
    """
    into = check_name(into or name)
    rows = [_load(folder, name) for folder in folders]
    check_alike([(str(folder), _recipe(folder, row)) for folder, row in zip(folders, rows, strict=True)])
    _check_rows(rows, label)
    seeds = [seed for row in rows for seed in row["seeds"]]
    _check_place(out, into, [folder / f"{name}.row.json" for folder in folders], seeds, all_in_one)
    predictors = [
        load_predictor(folder, files)
        for folder, row in zip(folders, rows, strict=True)
        for files in by_predictor(row["probabilities"])
    ]
    if all_in_one:
        predictors = [together(predictors)]
    out.mkdir(parents=True, exist_ok=True)
    files = [save_predictor(out, f"{into}-{i}", found) for i, found in enumerate(predictors)]
    source, target = folders[0] / rows[0]["recipe"], out / f"{into}.toml"
    if source.resolve() != target.resolve():
        shutil.copyfile(source, target)
    each = [found.scores() for found in predictors]
    chains = [row["chains"] for row in rows for _ in by_predictor(row["probabilities"])]
    row = {
        **rows[0],
        "row": into,
        **({} if into == name else {"made_of": name}),  # the time of its runs may be in that row as well
        "label": rows[0]["label"] if label is None else label,
        "aside": any(row.get("aside", False) for row in rows) if aside is None else aside,
        **{score: float(np.mean([scores[score] for scores in each])) for score in SCORES},
        "samples": min(len(found.probs) for found in predictors),
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
        "probabilities": [file for some in files for file in some],
        "validation": _validation(rows, all_in_one),
    }
    save_row(out, row)
    return row


def together(predictors: Sequence[Predictor]) -> Predictor:
    """The samples of all as one predictor, in the order of the epochs at which they were taken."""
    labels = predictors[0].labels
    epochs = np.concatenate([found.epochs for found in predictors])
    order = np.argsort(epochs, kind="stable")
    probs = np.concatenate([found.probs.astype(np.float32) for found in predictors])[order]
    final = np.concatenate([found.final.astype(np.float32) for found in predictors if found.epochs[-1] == epochs.max()])
    counts = [len(found.probs) for found in predictors]
    names = [name for name in predictors[0].outside if all(name in found.outside for found in predictors)]
    shown = {
        name: np.average([found.outside[name].astype(np.float64) for found in predictors], axis=0, weights=counts)
        for name in names
    }
    return Predictor(
        probs=stored(probs, labels),
        labels=labels,
        epochs=epochs[order],
        trace=numbered_on([found.trace for found in predictors]),
        outside={name: positive(probs, np.float16) for name, probs in shown.items()},
        last=positive(final, np.float32) if len(probs) > 1 else None,
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


def _check_place(out: Path, into: str, sources: Sequence[Path], seeds: Sequence[Any], all_in_one: bool) -> None:
    """What is in the way must be among what is joined, and an ensemble must not take the place of its members."""
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


def _validation(rows: Sequence[Row], all_in_one: bool) -> list[dict[str, list[float]]]:
    each = [columns for row in rows for columns in row["validation"]]
    if not all_in_one:
        return each
    keys = dict.fromkeys(key for columns in each for key in columns)
    return [{key: [value for columns in each for value in columns.get(key, [])] for key in keys}]


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
