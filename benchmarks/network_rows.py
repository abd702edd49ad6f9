"""The rows of `network_table.py`: which network is run how, and what one run says.

Every run holds out 5,000 training images of CIFAR-10 and is scored on them; the test set is not touched.

    sgd60, sgd200   SGD with Nesterov momentum and a cosine, weight decay 5e-4: accuracy and NLL
    sgd60w, sgd200w the same with weight decay on weights alone, not on gains and biases
    sgd30           the same for deep networks: is there a loss jump?
    atmc30          30 epochs of ATMC at T = 1 from fresh weights at a constant step, as fast as SGD at rate 0.1:
                    loss jumps, rollbacks, temperature
    drift           a long ATMC run, with the lengths of the filters in its samples
    convert         the trained BatchNorm network with GroupNorm and weight standardisation, after k epochs of SGD

A jump is a mean of 20 losses of more than twice the mean of the 200 before.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from atmc.common.errors import RunError
from atmc.data import EvalBatches
from atmc.engine import run
from atmc.engine.run_data import load_data
from atmc.engine.sample_predictions import Evaluator
from atmc.nn import build, convert
from atmc.posterior import metrics
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
from atmc.target import priors
from cifar10_store import packed, rounded

TRAIN, HELD_OUT, CLASSES, BATCH = 45_000, 5_000, 10, 128
WINDOW, BEFORE, JUMP = 20, 10, 2.0  # steps in a row of metrics; rows before it; the ratio that counts as a jump
DECAY = 5e-4  # of SGD's weights, on the mean loss
RATE = 0.1  # on the mean loss: SGD's learning rate, and the speed² N of ATMC
SAMPLES = 25  # of a drift row
TUNING = (1, 3, 10)  # epochs after a conversion

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bn": ("WRN-16-4, BatchNorm", {"name": "wide-resnet", "depth": 16, "width": 4, "norm": "bn"}),
    "gn-ws": ("WRN-16-4, GroupNorm + WS", {"name": "wide-resnet", "depth": 16, "width": 4, "norm": "gn-ws"}),
    "evonorm-s0": ("WRN-16-4, EvoNorm-S0", {"name": "wide-resnet", "depth": 16, "width": 4, "norm": "evonorm-s0"}),
    "frn": ("WRN-16-4, FRN", {"name": "wide-resnet", "depth": 16, "width": 4, "norm": "frn"}),
    "resnetpp": ("ResNet++-56×32", {"name": "resnetpp", "depth": 56, "width": 32}),
    "wrn28": ("WRN-28-10, GroupNorm + WS", {"name": "wide-resnet", "depth": 28, "width": 10, "norm": "gn-ws"}),
    "depth110": ("ResNet-110, GroupNorm + WS", {"name": "resnet-v2", "depth": 110, "norm": "gn-ws"}),
}
# Chosen by hand: FRN's rate in the probe that set these networks against each other, ResNet++'s in its recipe.
SLOWER = {"frn": 0.05, "resnetpp": 0.05}


@dataclasses.dataclass(frozen=True)
class Row:
    """One run: how, of which network, for how long, at which temperature (None: SGD)."""

    kind: str
    network: str
    epochs: int
    temperature: float | None = None

    @property
    def name(self) -> str:
        at = "" if self.kind != "drift" else f"-T{self.temperature:g}"
        return f"{self.kind}-{self.network}{at}"


# In the order of how much each is wanted.
ROWS = [
    *(Row("sgd60", network, 60) for network in ("bn", "gn-ws", "evonorm-s0", "frn", "resnetpp")),
    *(Row("atmc30", network, 30, 1.0) for network in ("gn-ws", "evonorm-s0", "frn", "resnetpp")),
    *(Row("sgd60w", network, 60) for network in ("gn-ws", "bn", "evonorm-s0", "frn", "resnetpp")),
    Row("convert", "bn", max(TUNING)),
    Row("drift", "gn-ws", 100, 1.0),
    Row("drift", "gn-ws", 100, 0.05),
    Row("atmc30", "depth110", 30, 1.0),
    Row("atmc30", "wrn28", 30, 1.0),
    Row("sgd30", "depth110", 30),
    Row("sgd30", "wrn28", 30),
    *(
        Row(kind, network, 200)
        for network in ("gn-ws", "bn", "evonorm-s0", "frn", "resnetpp")
        for kind in ("sgd200w", "sgd200")
    ),
]


def recipe_of(row: Row, data: str = "cifar10", held_out: int = HELD_OUT) -> Recipe:
    """The row as a recipe, which is kept beside the table."""
    sampled = row.temperature is not None
    rate = RATE if sampled else SLOWER.get(row.network, RATE)
    if row.temperature is not None:
        speed = math.sqrt(rate / TRAIN)
        sampler = SamplerSection(
            name="atmc", lr=1e-3, speed=speed, max_speed=speed / 0.3, momentum=0.9, temperature=row.temperature
        )
        target = TargetSection(prior="resnetpp" if row.network == "resnetpp" else "normalised")
        schedule = ScheduleSection(epochs=row.epochs, kind="constant", warmup_epochs=2)
    else:
        sampler = SamplerSection(name="sgd", lr=rate, momentum=0.9, nesterov=True, weight_decay=DECAY)
        target = TargetSection(prior="none")
        if row.kind.endswith("w"):  # the same decay as a prior, which can leave parameters out
            sampler, target = dataclasses.replace(sampler, weight_decay=0.0), TargetSection(prior="custom")
        schedule = ScheduleSection(epochs=row.epochs, kind="cosine", warmup_epochs=2)
    if row.kind == "drift":
        every = max(1, row.epochs * TRAIN // (BATCH * SAMPLES))
        schedule = dataclasses.replace(schedule, sample_every_steps=every)
    return Recipe(
        name=row.name,
        data=DataSection(name=data, batch_size=BATCH, augment="crop-flip", validation=held_out),
        model=ModelSection(**NETWORKS[row.network][1]),
        target=target,
        sampler=sampler,
        schedule=schedule,
        run=RunSection(
            precision="bf16",
            compile=row.network in ("bn", "resnetpp"),  # the kernels of the others are fused as they are
            log_steps=WINDOW,
            evaluate=["validation"],
            checkpoint_minutes=2.0,
        ),
    )


def measure(row: Row, recipe: Recipe, runs: Path, out: Path, budget: float | None) -> dict[str, Any]:
    """Run a row, or resume it, and say what came out. Its `status` is done unless the budget ended it."""
    if row.kind == "convert":
        return converted(row, recipe, runs, budget)
    folder = runs / row.name
    found = _about(row, recipe)
    try:
        rule = decay_on_weights() if recipe.target.prior == "custom" else None
        found["status"] = run(recipe, folder, budget, None, prior=rule).status
    except RunError as error:  # a chain that diverged for good is a result as well
        found["status"] = f"stopped: {error}"
    opened = RunDir.open(folder)
    found |= dynamics(opened)
    if len(opened.bank):
        found |= _scores(opened)
    if row.kind == "drift":
        found |= drift(opened)
    write(out / f"{row.name}.toml", recipe_to_toml(recipe).encode())
    found["recipe"] = f"{row.name}.toml"
    found["probabilities"] = []
    if row.temperature is None and len(opened.bank):
        labels = opened.labels("validation")
        assert labels is not None
        probs = rounded(opened.predictions("validation")[-1:].numpy())
        write(out / f"{row.name}-0.npz", packed(probs=probs, labels=labels.numpy().astype("int64")))
        found["probabilities"] = [f"{row.name}-0.npz"]
    return found


def decay_on_weights(examples: int = TRAIN) -> priors.PriorRule:
    """Weight decay w on the mean loss is the prior Normal(0, 1/(N w)); gains and biases have none."""
    weights = priors.on(priors.Normal(1 / math.sqrt(examples * DECAY)), min_ndim=2)
    return priors.PriorRule([weights, priors.on(priors.Flat())], name="weight decay", improper_ok=True)


def _about(row: Row, recipe: Recipe) -> dict[str, Any]:
    model = build(classes=CLASSES, **NETWORKS[row.network][1])
    return {
        "row": row.name,
        "network": NETWORKS[row.network][0],
        "kind": row.kind,
        "parameters": sum(p.numel() for p in model.parameters()),
        "temperature": row.temperature,
        "augment": recipe.data.augment,
        "split": "validation",
        "epochs": row.epochs,
        "seeds": [recipe.seed],
    }


def _scores(opened: RunDir, probs: torch.Tensor | None = None) -> dict[str, Any]:
    """Of the run's last sample alone, or of other predictions, on the held-out images."""
    labels = opened.labels("validation")
    assert labels is not None
    probs = opened.predictions("validation")[-1] if probs is None else probs
    found = metrics.scores(probs.numpy(), labels.numpy())
    return {score: float(found[score]) for score in ("accuracy", "nll", "ece")} | {"samples": 1}


def jumps(losses: Sequence[float]) -> tuple[float | None, int]:
    """(largest ratio of a row's loss to the mean of the rows before it, how often it rose above JUMP)."""
    ratios = [losses[at] / (sum(losses[at - BEFORE : at]) / BEFORE) for at in range(BEFORE, len(losses))]
    above = [not ratio <= JUMP for ratio in ratios]
    rises = sum(now and not before for before, now in zip([False, *above], above, strict=False))
    return max(ratios, default=None), rises


def dynamics(opened: RunDir) -> dict[str, Any]:
    """How a run went: loss, jumps, rollbacks, temperature, speed."""
    rows = opened.metrics()
    logs = [row for row in rows if row["event"] == "log"]
    losses = [row["loss"] for row in logs]
    largest, count = jumps(losses)
    fast = sorted(row["images_per_second"] for row in logs if row.get("images_per_second"))
    late = [row["kinetic_temperature"] for row in logs[len(logs) // 2 :] if "kinetic_temperature" in row]
    tail = losses[-TRAIN // (BATCH * WINDOW) :]
    size = max(1, len(losses) // 40)
    parts = [losses[at : at + size] for at in range(0, len(losses), size)]
    return {
        "loss": sum(tail) / len(tail) if tail else None,
        "reached": round(logs[-1]["epoch"], 1) if logs else 0.0,
        "jump": largest,
        "jumps": count,
        "rollbacks": sum(row["event"] == "rollback" for row in rows),
        "kinetic_temperature": sum(late) / len(late) if late else None,
        "gpu_seconds": round(logs[-1]["seconds"], 1) if logs else 0.0,
        "images_per_second": fast[len(fast) // 2] if fast else None,
        "curve": [round(sum(part) / len(part), 4) for part in parts],
    }


def drift(opened: RunDir) -> dict[str, Any]:
    """Filters by sample: the mean squared length, about 2T by the prior, and the directions' effective step.

    A gradient goes with 1/length, and a move of the weights turns their direction by 1/length of itself, so the step
    goes with the mean of 1/length². Given over that of the first sample.
    """
    an_epoch = opened.manifest["data"]["examples"] / opened.recipe.data.batch_size
    curve: list[dict[str, float]] = []
    for entry, tensors in zip(opened.bank.entries, opened.bank, strict=True):
        filters = [tensors[name] for name in tensors if name.endswith(".weight") and f"{name[:-6]}gain" in tensors]
        squares = [w.flatten(1).double() for w in filters if w.ndim == 4]
        found = torch.cat([(w - w.mean(1, keepdim=True)).square().sum(1) for w in squares])
        low, high = found.quantile(torch.tensor([0.05, 0.95], dtype=found.dtype)).tolist()
        curve.append(
            {
                "epoch": round(entry.step / an_epoch, 1),
                "mean_square": float(found.mean()),
                "low": low,
                "high": high,
                "step": float((1 / found).mean()),
            }
        )
    first = curve[0]["step"] if curve else math.nan
    for point in curve:
        point["step"] /= first
    return {"expected_mean_square": 2 * opened.recipe.sampler.temperature, "lengths": curve}


def converted(row: Row, recipe: Recipe, runs: Path, budget: float | None) -> dict[str, Any]:
    """Scores of the BatchNorm network, of its conversion at once, and after k epochs of SGD at a tenth of the rate."""
    before = runs / needs(row)[0]
    found = _about(row, recipe) | {"network": "WRN-16-4, BatchNorm converted to GroupNorm + WS"}
    if not before.exists() or not len(RunDir.open(before).bank):
        return found | {"status": f"waits for {before.name} in the same --runs folder"}
    trained, data = RunDir.open(before), load_data(recipe)
    model = build_model(recipe, data.train.shape, data.classes)
    model.load_state_dict(dict(trained.bank[len(trained.bank) - 1]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    example = next(iter(EvalBatches(data.train, 256)))[0]
    swapped = convert(model.to(device), example.to(device), to="gn-ws").cpu()
    at_once = Evaluator(copy.deepcopy(swapped), build_likelihood(recipe), data.evaluate, device, 500)
    probs = at_once.predict(swapped.state_dict(), "validation")
    found |= {"status": "done", "before": _scores(trained), "tuned": [{"epochs": 0, **_scores(trained, probs)}]}
    for epochs in TUNING:
        tuning = dataclasses.replace(
            recipe,
            model=ModelSection(name="custom"),
            sampler=dataclasses.replace(recipe.sampler, lr=RATE / 10),
            schedule=ScheduleSection(epochs=epochs, kind="cosine"),
            run=dataclasses.replace(recipe.run, compile=False),
        )
        folder = runs / f"{row.name}-{epochs}"
        status = run(tuning, folder, budget, None, model=swapped, data=data).status
        if status != "done":
            return found | {"status": status}
        found["tuned"].append({"epochs": epochs, **_scores(RunDir.open(folder))})
    return found


def needs(row: Row) -> list[str]:
    """Rows that go first: whose runs this one starts from, or that say which weight decay is better."""
    if row.kind.startswith("sgd200"):
        return [f"sgd60-{row.network}", f"sgd60w-{row.network}"]
    return [f"sgd60-{row.network}"] if row.kind == "convert" else []


def is_worse(row: Row, table: list[dict[str, Any]]) -> bool:
    """Whether a row of 200 epochs has the weight decay that was less accurate after 60."""
    if not row.kind.startswith("sgd200"):
        return False
    accuracy = {each["row"]: each.get("accuracy", 0.0) for each in table}
    everything, weights = (accuracy.get(name, 0.0) for name in needs(row))
    return bool(weights < everything if row.kind == "sgd200w" else everything <= weights)
