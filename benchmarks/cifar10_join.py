"""Rows that were stored one by one, as one row: seeds that ran on different days, or networks as an ensemble.

A machine that is lent keeps nothing, so the seeds of a row are collected where each of them ran. What is stored of
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

from atmc.chain.settings import Recipe, recipe_from_dict
from atmc.errors import InputError
from cifar10_rows import (
    SCORES,
    Predictor,
    Row,
    by_predictor,
    check_alike,
    load_predictor,
    positive,
    save_json,
    save_predictor,
    stored,
)


def join(
    folders: Sequence[Path],
    name: str,
    out: Path,
    *,
    into: str | None = None,
    label: str | None = None,
    all_in_one: bool,
) -> Row:
    """The rows called `name` of all `folders` as the row `into` of `out`; returns what its JSON file says.

    `all_in_one` averages all their samples to one prediction, an ensemble; otherwise they are the seeds of the row.
    """
    rows = [_load(folder, name) for folder in folders]
    check_alike([(str(folder), _recipe(folder, row)) for folder, row in zip(folders, rows, strict=True)])
    seeds = [seed for one in rows for seed in one["seeds"]]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"a seed comes twice ({', '.join(map(str, seeds))}): it is one run, not two")
    if len({row["data"]["digest"] for row in rows}) > 1:
        raise InputError(f"the rows {name} are of different test sets")
    predictors = [
        load_predictor(folder, files)
        for folder, row in zip(folders, rows, strict=True)
        for files in by_predictor(row["probabilities"])
    ]
    into = into or name
    if all_in_one:
        predictors = [together(predictors)]
    out.mkdir(parents=True, exist_ok=True)
    files = [save_predictor(out, f"{into}-{i}", found) for i, found in enumerate(predictors)]
    source, target = folders[0] / rows[0]["recipe"], out / f"{into}.toml"
    if source.resolve() != target.resolve():
        shutil.copyfile(source, target)
    each = [found.scores() for found in predictors]
    row = {
        **rows[0],
        "row": into,
        "label": rows[0]["label"] if label is None else label,
        **{score: float(np.mean([scores[score] for scores in each])) for score in SCORES},
        "samples": min(len(found.probs) for found in predictors),
        "epochs": min(one["epochs"] for one in rows),
        "chains": (sum if all_in_one else min)(_of_each_seed(rows, "chains")),
        "status": "done" if all(one["status"] == "done" for one in rows) else "unfinished",
        "seeds": seeds,
        "gpu_seconds": round(sum(one["gpu_seconds"] for one in rows), 1),
        "rollbacks": sum(one["rollbacks"] for one in rows),
        "device": sorted({device for one in rows for device in one["device"]}),
        "recipe": target.name,
        "probabilities": [file for some in files for file in some],
        "validation": _validation(rows, all_in_one),
    }
    save_json(out / f"{into}.row.json", row)
    return row


def together(predictors: Sequence[Predictor]) -> Predictor:
    """The samples of all as one predictor, in the order of the epochs at which they were taken."""
    labels = predictors[0].labels
    epochs = np.concatenate([found.epochs for found in predictors])
    order = np.argsort(epochs, kind="stable")
    probs = np.concatenate([found.probs.astype(np.float32) for found in predictors])[order]
    final = np.concatenate([found.final.astype(np.float32) for found in predictors if found.epochs[-1] == epochs.max()])
    counts = np.array([len(found.probs) for found in predictors])
    names = [name for name in predictors[0].outside if all(name in found.outside for found in predictors)]
    shown = {
        name: np.average([found.outside[name].astype(np.float64) for found in predictors], axis=0, weights=counts)
        for name in names
    }
    return Predictor(
        probs=stored(probs, labels),
        labels=labels,
        epochs=epochs[order],
        trace=np.concatenate(_traces(predictors)),
        outside={name: positive(probs, np.float16) for name, probs in shown.items()},
        last=positive(final, np.float32) if len(probs) > 1 else None,
    )


def _traces(predictors: Sequence[Predictor]) -> list[Any]:
    """Their traces, with chains numbered on: every predictor counts its own from 0."""
    found, first = [], 0.0
    for predictor in predictors:
        trace = predictor.trace.copy()
        if len(trace):
            trace[:, 0] += first - trace[:, 0].min()
            first = trace[:, 0].max() + 1
        found.append(trace)
    return found


def _of_each_seed(rows: Sequence[Row], key: str) -> list[int]:
    """A number that a row says of each of its predictors, once for each of them."""
    return [one[key] for one in rows for _ in by_predictor(one["probabilities"])]


def _validation(rows: Sequence[Row], all_in_one: bool) -> list[dict[str, list[float]]]:
    each = [columns for one in rows for columns in one["validation"]]
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
    return recipe_from_dict(tomllib.loads((folder / row["recipe"]).read_text(encoding="utf-8")))
