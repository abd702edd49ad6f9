"""The paper's ImageNet table on subsets of ImageNet: Imagenette, Imagewoof, Tiny-ImageNet-200.

    ATMC_DATA=data python benchmarks/imagenet_rows.py --runs runs/imagenet --out results/imagenet \\
        --time-budget 480 [--rows 'imagenette-*'] [--epochs 40] [--data SET=NAME ...]

Rows of a set, in the order of how much each is wanted; four networks each, so that all have the same epochs:

    atmc, zero, sgnht   ResNet-50 with GroupNorm and weight standardisation; each of four chains anneals once and
                        samples at T in its last epochs, three samples a chain; zero is the same at T = 0
    ensemble-bn         a deep ensemble of ResNet-50 with BatchNorm under SGD; its members are SGD + BN
    ensemble-gn         the same with GroupNorm and weight standardisation; its members alone are the row SGD
    atmc-pp, zero-pp    as atmc and zero, with ResNet++-50

imagenet-mini, all 1,000 classes with 35 images each, has atmc and ensemble-bn alone: it shows that a thousand classes
work end to end (`--data imagenet-mini=shards:…`). SGD has weight decay 5e-4 (with BatchNorm on all parameters, else on
weights alone, the better choice of each on CIFAR-10), and the chains of GroupNorm networks have the prior that this
decay stands for.

Images are held on the device; training crops are smaller than the evaluated images, which are scored whole. `single` is
the mean over samples (or members) of each one's score, the rest is of their average. Out-of-distribution images are the
validation images of the other set (Imagenette and Imagewoof share no class), told apart by the entropy. What is in
`table.json` already is not run again; what the time budget cut short is resumed from `--runs`. Nothing was tuned on
these sets: rates are those of CIFAR-10.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atmc.common.errors import RunError
from atmc.data import load, open_source
from atmc.engine import run
from atmc.engine.sample_predictions import Evaluator
from atmc.posterior import metrics
from atmc.posterior.ood_detection import detection
from atmc.recipe.build import build_likelihood, build_model
from atmc.recipe.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)
from atmc.recipe.toml_files import recipe_to_toml
from atmc.report.output_files import write
from atmc.storage.run_directory import RunDir
from cifar10_store import packed, rounded

CHAINS, BATCH, DECAY = 4, 128, 5e-4
TEMPERATURE = 0.02  # of the CIFAR-10 row with the lowest NLL
TAIL, SAMPLES = 3, 3  # epochs at the end of a chain in which it samples, and samples
# The paper's numbers on ImageNet itself: another data set, so for the order of the rows alone.
PAPER = {
    "ensemble-gn": {"SGD": [0.709, 1.24]},
    "ensemble-bn": {"SGD + BatchNorm": [0.762, 0.947]},
    "atmc-pp": {"one sample": [0.742, 1.08], "predictive": [0.775, 0.883]},
    "sgnht": {"one sample": [0.731, 1.15], "predictive": [0.764, 0.941]},
}


@dataclasses.dataclass(frozen=True)
class Set:
    """A data set: its name with the size to evaluate at, training images, crop in training, network, epochs."""

    data: str
    train: int
    crop: int
    depth: int
    epochs: int
    other: str | None = None  # for out-of-distribution images
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


SETS = {
    # One network sees 128-pixel crops of 160-pixel images for 50 epochs.
    "imagenette": Set("imagenette?size=160", 9_469, 128, 50, 50, "imagewoof"),
    "imagewoof": Set("imagewoof?size=160", 9_025, 128, 50, 50, "imagenette"),
    # A 3 × 3 stem without pooling, as is usual at 64 pixels.
    "tiny-imagenet": Set("tiny-imagenet", 100_000, 64, 18, 30, None, {"small_input": True}),
    "imagenet-mini": Set("imagenet-mini?size=128", 34_745, 112, 50, 30),
}
KINDS = ("atmc", "ensemble-bn", "zero", "sgnht", "ensemble-gn", "atmc-pp", "zero-pp")
ROWS = [(name, kind) for kind in KINDS for name in SETS if name != "imagenet-mini" or kind in KINDS[:2]]


def recipe_of(name: str, kind: str, options: argparse.Namespace) -> Recipe:
    """A row as a recipe, which is kept beside the table."""
    found = SETS[name]
    epochs = options.epochs or found.epochs
    plus, sgd = kind.endswith("-pp"), kind.startswith("ensemble")
    rate = 0.05 if plus else 0.1  # on the mean loss, as on CIFAR-10
    if sgd:
        decay = DECAY if kind == "ensemble-bn" else 0.0  # else as a prior, which can leave parameters out
        sampler = SamplerSection(name="sgd", lr=rate, momentum=0.9, nesterov=True, weight_decay=decay)
        schedule = ScheduleSection(epochs=epochs, kind="cosine", warmup_epochs=min(2, epochs - 1))
    else:
        speed = math.sqrt(rate / found.train)
        tail = min(TAIL, max(1, epochs // 4))
        temperature = 0.0 if kind.startswith("zero") else options.temperature
        sampler = SamplerSection(
            name="sgnht" if kind == "sgnht" else "atmc",
            lr=1e-3,
            speed=speed,
            max_speed=None if kind == "sgnht" else speed / 0.3,
            momentum=0.9,
            temperature=temperature,
        )
        schedule = ScheduleSection(
            epochs=epochs,
            kind="cyclic",
            cycle_epochs=epochs,
            cycle_warmup_epochs=min(2, epochs - 1),
            hold_fraction=0.4,
            lr_floor=0.05,
            samples_per_cycle=min(SAMPLES, tail),
            temperature_schedule="explore" if temperature else "constant",
            explore_fraction=1 - tail / epochs if temperature else 0.0,
        )
    network: dict[str, Any] = {"name": "resnet-v2", "norm": "bn" if kind == "ensemble-bn" else "gn-ws"}
    data = options.data.get(name, found.data)
    target = TargetSection(prior="gaussian-weights", prior_scale=1 / math.sqrt(found.train * DECAY))
    if plus or kind == "ensemble-bn":
        target = TargetSection(prior="resnetpp" if plus else "none")
    return Recipe(
        name=f"{name}-{kind}",
        seed=options.seed,
        chains=options.chains,
        data=DataSection(
            name=data,
            root=options.root,
            batch_size=options.batch,
            augment="resized-crop-flip" if name != "tiny-imagenet" else "crop-flip",
            crop_size=(options.crop or found.crop) if name != "tiny-imagenet" else None,
            crop_area=0.35 if name != "tiny-imagenet" else 0.08,
        ),
        model=ModelSection(
            **({"name": "resnetpp"} if plus else network),
            depth=options.depth or found.depth,
            width=options.width,
            options=dict(found.options),
        ),
        target=target,
        sampler=sampler,
        schedule=schedule,
        run=RunSection(
            precision="bf16" if torch.cuda.is_available() else "float32",
            compile=plus or kind == "ensemble-bn",  # the kernels of the others are fused as they are
            checkpoint_minutes=2.0,
            evaluate_batch=250,
        ),
    )


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
    row: dict[str, Any] = {
        "row": recipe.name,
        "set": name,
        "kind": kind,
        "paper_on_imagenet": PAPER.get(kind),
        "temperature": None if kind.startswith("ensemble") else recipe.sampler.temperature,
        "augment": recipe.data.augment,
        "crop": recipe.data.crop_size,
        "data": options.note or SETS[name].data,
        "epochs": recipe.schedule.epochs * recipe.chains,
        "chains": recipe.chains,
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
    labels, probs = opened.labels("test"), opened.predictions("test").double().numpy()
    assert labels is not None
    each = [scores(one, labels.numpy()) for one in probs]
    row |= scores(probs.mean(0), labels.numpy()) | {"samples": len(probs)}
    row["single"] = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
    if row["status"] == "done":
        row["ood"] = ood(name, recipe, opened, probs, options)
        row |= stored(recipe, kind, opened, probs, labels.numpy(), options.out)
    return row


def ood(
    name: str, recipe: Recipe, opened: RunDir, probs: np.ndarray, options: argparse.Namespace
) -> dict[str, Any] | None:
    """How well the entropy of the prediction tells the other set's validation images from this one's."""
    other = SETS[name].other
    if other is None:
        return None
    inside = load(recipe.data.name, "test", recipe.data.root)  # the network expects these statistics
    source = open_source(options.data.get(other, SETS[other].data), "test", recipe.data.root)
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
    recipe: Recipe, kind: str, opened: RunDir, probs: np.ndarray, labels: np.ndarray, out: Path
) -> dict[str, Any]:
    """The recipe, and probabilities: each chain's average, or with many classes that of all chains."""
    usual = SETS[recipe.name.removesuffix(f"-{kind}")].data  # no folder of this machine
    plain = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root=None, name=usual))
    write(out / f"{recipe.name}.toml", recipe_to_toml(plain).encode())
    chain = np.array([opened.bank.chain_of(i) for i in range(len(opened.bank))])
    chains = np.stack([probs[chain == c].mean(0) for c in np.unique(chain)])
    kept = chains if probs.shape[2] <= 50 else chains.mean(0, keepdims=True)
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


def run_all(rows: list[tuple[str, str]], options: argparse.Namespace) -> None:
    table, began = options.out / "table.json", time.monotonic()
    found: list[dict[str, Any]] = json.loads(table.read_text()) if table.exists() else []
    order = [f"{name}-{kind}" for name, kind in ROWS]
    for name, kind in rows:
        left = options.time_budget - (time.monotonic() - began)
        if any(row["row"] == f"{name}-{kind}" for row in found):
            continue
        if left < options.spare:
            print(f"no time for {name}-{kind}")
            continue
        row = measure(name, kind, options, left - options.spare / 2)
        row |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
        row |= {"torch": torch.__version__}
        print(f"{time.monotonic() - began:5.0f} s  {line(row)}", flush=True)
        if row["status"] == "done" or row["status"].startswith("stopped"):
            found.append(row)
            found.sort(key=lambda each: order.index(each["row"]))
            table.write_text(json.dumps(found, indent=1) + "\n")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/imagenet"), help="run directories, to resume from")
    parser.add_argument("--out", type=Path, default=Path("results/imagenet"))
    parser.add_argument("--rows", nargs="*", default=["*"], help="which rows, as patterns of names")
    parser.add_argument("--time-budget", type=float, default=480.0, help="seconds for all rows together")
    parser.add_argument("--spare", type=float, default=20.0, help="seconds that a row is not begun with")
    parser.add_argument("--data", nargs="*", default=[], metavar="SET=NAME", help="other names of the data sets")
    parser.add_argument("--note", help="what the images are, where they are not those of the named sets")
    parser.add_argument("--root", help="folder of the data sets")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE)
    for name in ("epochs", "crop", "depth", "width"):
        parser.add_argument(f"--{name}", type=int, help="instead of each row's own")
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    options = parser.parse_args(words)
    options.data = dict(pair.split("=", 1) for pair in options.data)
    return options


def main(words: list[str] | None = None) -> None:
    options = parse(words)
    rows = [(n, k) for n, k in ROWS if any(fnmatch.fnmatch(f"{n}-{k}", pattern) for pattern in options.rows)]
    if options.list or not rows:
        print("\n".join(f"{name}-{kind}" for name, kind in ROWS))
        return
    for folder in (options.runs, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    run_all(rows, options)


if __name__ == "__main__":
    main()
