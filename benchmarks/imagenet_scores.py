"""Run one row of the ImageNet tables, or resume it, and score it: what `imagenet_rows.py` puts into its table.

`single` is the mean over samples (or members) of each one's score, the rest is of their average. Out-of-distribution
images are the validation images of the other set (Imagenette and Imagewoof share no class), told apart by the entropy
of the prediction.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atmc.common.errors import RunError
from atmc.data import default_root, load, open_source
from atmc.data.streamed_source import Source
from atmc.engine import run
from atmc.engine.sample_predictions import Evaluator
from atmc.posterior import metrics
from atmc.posterior.ood_detection import detection
from atmc.recipe.build import build_likelihood, build_model
from atmc.recipe.settings import Recipe
from atmc.recipe.toml_files import recipe_to_toml
from atmc.report.output_files import write
from atmc.storage.run_directory import RunDir
from cifar10_store import packed, rounded
from image_packs import ENCODING
from imagenet_recipes import SETS, recipe_of

MANY_CLASSES = 50  # with more, the probabilities of all chains together are kept alone


def scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    found = metrics.scores(probs, labels)
    wanted = {key: float(found[key]) for key in ("accuracy", "nll", "ece", "brier")}
    if probs.shape[1] > 5:
        wanted["top5"] = float(metrics.top_k(probs, labels, 5))
    return wanted


def measure(name: str, kind: str, options: argparse.Namespace, budget: float) -> dict[str, Any]:
    """Run a row, or resume it, and say what came out. Its `status` is done unless the budget ended it."""
    recipe = recipe_of(name, kind, options)
    folder = options.runs / recipe.name
    other_images(name, recipe, options)  # what is missing is missed now, and not when the run is done
    row: dict[str, Any] = {
        "row": recipe.name,
        "set": name,
        "kind": kind,
        "temperature": None if kind.startswith("ensemble") else recipe.sampler.temperature,
        "augment": recipe.data.augment,
        "crop": recipe.data.crop_size,
        "data": SETS[name].data if name not in options.data else "another copy",
        "images": options.note or encoding(name, options),
        "epochs": recipe.schedule.epochs * recipe.chains,
        "chains": recipe.chains,
        "batch": recipe.data.batch_size,
        "split": recipe.run.evaluate[0],
        "seeds": [recipe.seed],
    }
    try:
        row["status"] = run(recipe, folder, budget, None).status
    except RunError as error:  # chains that diverged for good are a result as well
        row["status"] = f"stopped: {error}"
    opened = RunDir.open(folder)
    logs = [each for each in opened.metrics() if each["event"] == "log"]
    fast = sorted(each["images_per_second"] for each in logs if each.get("images_per_second"))
    last = {each["chain"]: each["seconds"] for each in logs}
    row |= {
        "gpu_seconds": round(max(last.values(), default=0.0), 1),  # chains of one process take turns
        "images_per_second": round(fast[len(fast) // 2]) if fast else None,
        "rollbacks": sum(each["event"] == "rollback" for each in opened.metrics()),
    }
    if not len(opened.bank):
        return row
    split = recipe.run.evaluate[0]
    labels, probs = opened.labels(split), opened.predictions(split).double().numpy()
    assert labels is not None
    each = [scores(one, labels.numpy()) for one in probs]
    row |= scores(probs.mean(0), labels.numpy()) | {"samples": len(probs)}
    row["single"] = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
    if row["status"] == "done":
        row["bank_megabytes"] = round(sum(f.stat().st_size for f in folder.rglob("samples/*.safetensors")) / 1e6, 1)
        row["ood"] = None if options.validation else ood(name, recipe, opened, probs, options)
        row |= stored(recipe, name, opened, probs, labels.numpy(), options.out)
    return row


def encoding(name: str, options: argparse.Namespace) -> str | None:
    """How the images were coded to be sent here, where they were (`image_packs.py`)."""
    path = (Path(options.root) if options.root else default_root()) / name / ENCODING
    return path.read_text().strip() if path.is_file() else None


def other_images(name: str, recipe: Recipe, options: argparse.Namespace) -> Source | None:
    """The validation images of the set that is out of distribution, not decoded yet."""
    other = SETS[name].other
    if other is None:
        return None
    return open_source(options.data.get(other, SETS[other].data), "test", recipe.data.root)


def ood(
    name: str, recipe: Recipe, opened: RunDir, probs: np.ndarray, options: argparse.Namespace
) -> dict[str, Any] | None:
    """How well the entropy of the prediction tells the other set's validation images from this one's."""
    other, source = SETS[name].other, other_images(name, recipe, options)
    if other is None or source is None:
        return None
    inside = load(recipe.data.name, "test", recipe.data.root)  # the network expects these statistics
    data = source.in_memory((inside.mean, inside.std))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(recipe, data.shape, probs.shape[2])
    evaluator = Evaluator(model, build_likelihood(recipe), {other: data}, device, recipe.run.evaluate_batch)
    outside = np.stack([evaluator.predict(sample, other).double().numpy() for sample in opened.bank])

    def entropy(p: np.ndarray) -> np.ndarray:
        return -(p * np.log(np.clip(p, 1e-30, None))).sum(-1)

    found = detection(entropy(probs.mean(0)), entropy(outside.mean(0)))
    alone = [detection(entropy(a), entropy(b))["auroc"] for a, b in zip(probs, outside, strict=True)]
    return {"set": other, **found, "single_auroc": float(np.mean(alone))}


def stored(
    recipe: Recipe, name: str, opened: RunDir, probs: np.ndarray, labels: np.ndarray, out: Path
) -> dict[str, Any]:
    """The recipe, and probabilities: each chain's average, or with many classes that of all chains."""
    plain = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root=None, name=SETS[name].data))
    write(out / f"{recipe.name}.toml", recipe_to_toml(plain).encode())  # no folder of this machine
    chain = np.array([opened.bank.chain_of(i) for i in range(len(opened.bank))])
    chains = np.stack([probs[chain == c].mean(0) for c in np.unique(chain)])
    kept = chains if probs.shape[2] <= MANY_CLASSES else chains.mean(0, keepdims=True)
    write(out / f"{recipe.name}-0.npz", packed(probs=rounded(kept), labels=labels.astype("int64")))
    return {"recipe": f"{recipe.name}.toml", "probabilities": [f"{recipe.name}-0.npz"]}


def line(row: dict[str, Any]) -> str:
    text = f"{row['row']:24s} {str(row['status'])[:40]:8s} {row['gpu_seconds']:6.0f} s"
    if row.get("accuracy") is not None:
        text += f"  {100 * row['accuracy']:.2f} % / {row['nll']:.3f} / {row['ece']:.3f}"
        text += f"  single {100 * row['single']['accuracy']:.2f} % / {row['single']['nll']:.3f}"
    if row.get("ood"):
        text += f"  OOD {100 * row['ood']['auroc']:.1f} %"
    return text + (f"  {row['images_per_second']:,} img/s" if row["images_per_second"] else "")
