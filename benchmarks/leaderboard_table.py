"""Rows of the leaderboard from what training runs left: prefixes, joined seeds, the choice, one test score a row.

A row is a method at a number of epochs (of all its chains together) with a number of networks at prediction.
  - A run of cycles holds those of fewer epochs: after each cycle it is a row, with one network of each cycle or all.
  - Chains of SGD are deep ensembles of 1, 2, 4, … networks; seeds of WRN-28-10 are joined to one predictor.
  - Of ensembles of equal epochs (few long networks, or many short ones) held-out images choose, by the NLL of all
    networks averaged over seeds. Only the chosen are scored on the test set. Temperatures were chosen before, for each
    run (`leaderboard_networks.py`). Without held-out images there is nothing to choose.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from atmc.posterior import metrics
from atmc.report.plot_style import SERIES, WIDE, Ink, sheet, svg
from cifar10_scores import against, entropy_of, scores
from cifar10_store import Array, Predictor, packed, save_json
from leaderboard_networks import ABLATION, MEANS, METHODS, WAYS
from leaderboard_rows import MOST, NETWORKS, SAMPLERS, Training

Row = dict[str, Any]
COUNTS = (1, 2, 4, 8, 16)
ENSEMBLE = METHODS["sgd"]
SUFFIXES = [way + means for way in WAYS.values() for means in ("", MEANS)]


def load(store: Path) -> list[Row]:
    """Every finished training run with its arrays."""
    found = []
    for path in sorted(store.glob("*.json")):
        run = json.loads(path.read_text())
        if run.get("status") == "done":
            with np.load(store / f"{run['name']}.npz") as stored:
                found.append({**run, "arrays": dict(stored)})
    return found


def rows_of(run: Row) -> Iterator[Row]:
    """The rows of one training run; `pick` are the networks of a row."""
    training = Training(**{field.name: run[field.name] for field in fields(Training)})
    for method, about in run["methods"].items():
        epoch, every = np.array(about["epoch"]), len(about["epoch"])
        if method == ENSEMBLE:
            for n in _counts(training.chains):
                yield _row(run, training, method, n * training.epochs, np.arange(n))
        elif training.cyclic:
            for done in (training.mode_epochs * (mode + 1) for mode in range(training.modes)):
                inside = np.flatnonzero(epoch <= done + 1e-6)
                ends = np.flatnonzero(np.isclose(epoch % training.mode_epochs, 0) & (epoch <= done + 1e-6))
                wanted = {len(ends): ends, len(inside): inside}
                for pick in wanted.values():
                    yield _row(run, training, method, done, pick, len(pick) == len(inside))
        else:
            for n in _counts(every):  # Laplace: of one network
                yield _row(run, training, method, training.epochs, np.arange(n), n == every)


def _counts(most: int) -> list[int]:
    return sorted({n for n in COUNTS if n <= most} | {most})


def _row(run: Row, training: Training, method: str, epochs: float, pick: Array, whole: bool = True) -> Row:
    temperature, own = run.get("temperature"), len(pick) == len(run["methods"][method]["epoch"])
    at = f", T = {temperature:g}" if temperature else ""
    few = f", {training.images:,} images" if training.images < MOST else ""
    split = f", networks of {training.epochs} epochs" if method == ENSEMBLE else ""
    share = epochs / training.total / run["side_by_side"]
    return {
        "row": f"{NETWORKS[training.network][0]}{few}, {method}{at}{split}, {epochs:g} epochs, "
        f"{len(pick)} networks, seed {training.seed}, from {run['name']}",
        "network": training.network,
        "images": training.images,
        "method": "SGD" if method == ENSEMBLE and len(pick) == 1 else method,
        "temperature": temperature,
        "tried": run.get("tried") or [],
        "augment": "crop-flip",
        "epochs": float(epochs),
        "networks": len(pick),
        "all": whole,
        "seed": training.seed,
        "gpu_seconds": round(run["gpu_seconds"] * share, 1),
        "from": [run["name"]],
        "member_epochs": training.epochs,
        "validation": None,
        "_probs": {k.split(".")[1]: v[pick] for k, v in run["arrays"].items() if _of(k, "probs", method)},
        "_labels": {k.split(".")[1]: v for k, v in run["arrays"].items() if k.startswith("labels.")},
        "_all": own,  # of the run; these are of their average
        "_shift": {k: v for k, v in run["arrays"].items() if own and _of(k, "shift", method, 3)},
        "_entropy": {k.split(".")[1]: v for k, v in run["arrays"].items() if own and _of(k, "entropy", method)},
    }


def _of(key: str, kind: str, method: str, dots: int = 2) -> bool:
    """Whether an array is of this kind and method: `probs.SPLIT.METHOD`, `shift.CORRUPTION.SEVERITY.METHOD`."""
    return key.startswith(f"{kind}.") and key.split(".", dots)[dots] == method


def joined(rows: Sequence[Row]) -> list[Row]:
    """Seeds of runs that hold nothing out, as one predictor: deep ensembles, chains of cycles."""
    found: list[Row] = []
    alone = [row for row in rows if "validation" not in row["_probs"] and row["all"]]
    key = lambda row: (row["network"], row["method"], row["epochs"])  # noqa: E731
    for _, group in itertools.groupby(sorted(alone, key=key), key):
        seeds = list(group)
        for n in range(2, len(seeds) + 1):
            part, first = seeds[:n], seeds[0]
            method = ENSEMBLE if first["method"] == "SGD" else first["method"]
            more = {"method": method, "epochs": n * first["epochs"], "networks": n * first["networks"]}
            more |= {"gpu_seconds": sum(row["gpu_seconds"] for row in part), "_entropy": {}, "_shift": {}}
            more |= {"_all": False, "from": [name for row in part for name in row["from"]]}
            probs = {"test": np.concatenate([row["_probs"]["test"] for row in part])}
            found.append({**first, **more, "_probs": probs, "row": f"{first['row']} and {n - 1} more seeds"})
    return found


def latest(rows: Iterable[Row]) -> list[Row]:
    """Of rows that are equal but for the length of their runs, the one of the longest: a prefix counts once."""
    return list({(*_contest(row), _setting(row), row["networks"], row["seed"]): row for row in rows}.values())


def choose(rows: Sequence[Row]) -> list[Row]:
    """Score held-out images, and mark the rows that are best there: by method, network and epochs, over seeds."""
    by: dict[tuple[Any, ...], dict[int | None, list[float]]] = {}
    for row in rows:
        if "validation" in row["_probs"]:
            mean = metrics.predictive(row["_probs"]["validation"])
            row["validation"] = scores(mean, row["_labels"]["validation"])
            if row["all"]:
                setting = by.setdefault(_contest(row), {}).setdefault(_setting(row), [])
                setting.append(row["validation"]["nll"])
    winners = {key: min(found, key=lambda each: np.mean(found[each])) for key, found in by.items()}
    return [row for row in rows if row["validation"] is None or winners.get(_contest(row)) == _setting(row)]


def _contest(row: Row) -> tuple[Any, ...]:
    return (row["network"], row["images"], row["method"], row["epochs"])


def _setting(row: Row) -> int | None:
    return row["member_epochs"] if row["method"] == ENSEMBLE else None


def score(rows: Sequence[Row]) -> None:
    """The one test score of each row, and how far it is ahead of others of equal epochs, image by image."""
    key = lambda row, method: (row["network"], row["images"], row["epochs"], row["seed"], method)  # noqa: E731
    whole = {key(row, row["method"]): row for row in rows if row["all"]}
    for row in rows:
        own = Predictor(metrics.predictive(row["_probs"]["test"])[None], row["_labels"]["test"])
        row["test"] = scores(own.probs[0], own.labels)
        for name, method in (("ablation", ablation_of(row["method"])), ("ensemble", ENSEMBLE)):
            other = whole.get(key(row, method), row)
            if row["all"] and other["method"] != row["method"]:
                base = Predictor(metrics.predictive(other["_probs"]["test"])[None], other["_labels"]["test"])
                row[f"ahead_of_{name}"] = against(own, base)
        home = entropy_of(own.probs[0]).astype(float)
        row["shift"] = _shifted(row["_shift"], own.labels)
        row["ood"] = {name: metrics.detection(home, far.astype(float)) for name, far in row["_entropy"].items()}


def ablation_of(method: str) -> str:
    """Cycles at T = 0; for a sampler in another way, in that way."""
    for name in (METHODS[kind] for kind in SAMPLERS):
        if (way := method.removeprefix(name)) in SUFFIXES:
            return ABLATION + way
    return ABLATION


def _shifted(found: dict[str, Array], labels: Array) -> dict[str, dict[str, float]]:
    """Accuracy, NLL and ECE on corrupted test images by severity, averaged over corruptions."""
    by: dict[str, list[dict[str, float]]] = {}
    for key, probs in found.items():
        by.setdefault(key.split(".")[2], []).append(metrics.scores(probs, labels[: len(probs)]))
    return {
        severity: {s: float(np.mean([one[s] for one in each])) for s in ("accuracy", "nll", "ece")}
        for severity, each in sorted(by.items())
    }


def make(store: Path, out: Path) -> list[Row]:
    """Write table.json, averages of seed 0, and a figure for each network; returns the rows."""
    rows = latest(row for run in sorted(load(store), key=lambda run: run["epochs"]) for row in rows_of(run))
    rows += joined(rows)
    chosen = choose(rows)
    score(chosen)
    out.mkdir(parents=True, exist_ok=True)
    kept = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    for row, plain in zip(rows, kept, strict=True):
        plain["probabilities"] = []
        if row["_all"] and row["seed"] == 0 and "test" in row:
            name = f"{row['network']}-{row['images']}-{row['method']}-{row['epochs']:g}"
            name = name.replace(", ", "-").replace(" ", "-").replace("=-", "")
            mean = metrics.predictive(row["_probs"]["test"])[None].astype(np.float32)
            (out / f"{name}.npz").write_bytes(packed(probs=mean, labels=row["_labels"]["test"]))
            plain["probabilities"] = [f"{name}.npz"]
    save_json(out / "table.json", kept)
    for network in sorted({row["network"] for row in kept}):
        own = [row for row in kept if row["network"] == network and "test" in row]
        most = max(row["images"] for row in own)
        own = [row for row in own if row["images"] == most]
        plain = [row for row in own if not any(way and row["method"].endswith(way) for way in SUFFIXES)]
        for by in BY if plain else ():
            figure(out / f"{by}-{network}.svg", plain, by)
    return kept


BY = {"epochs": "training epochs, all networks together", "networks": "networks at prediction"}


def figure(path: Path, rows: Sequence[Row], by: str) -> None:
    """NLL by method against epochs, of all networks, or against their number, at the most epochs that all have.

    Means and standard errors over seeds.
    """
    ink, methods = Ink.paper(), sorted({row["method"] for row in rows})
    size = (WIDE[0], WIDE[1] + 0.17 * len(methods))
    most = max(rows, key=lambda row: (len({r["method"] for r in rows if r["epochs"] == row["epochs"]}), row["epochs"]))
    drawn = [row for row in rows if (row["all"] if by == "epochs" else row["epochs"] == most["epochs"])]
    with sheet(ink, size, BY[by], "NLL on the test images") as (drawing, axes):
        for number, method in enumerate(methods):
            found: dict[float, list[float]] = {}
            for row in drawn:
                if row["method"] == method:
                    found.setdefault(row[by], []).append(row["test"]["nll"])
            each = [found[at] for at in sorted(found)]
            mean = [float(np.mean(values)) for values in each]
            wide = [float(np.std(v, ddof=1)) / len(v) ** 0.5 if len(v) > 1 else 0.0 for v in each]
            style = {"color": ink.series(number), "linestyle": "-" if number < SERIES else "--"}
            axes.errorbar(sorted(found), mean, wide, marker="o", markersize=3, label=method, **style)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    path.write_text(svg(drawing), encoding="utf-8")
