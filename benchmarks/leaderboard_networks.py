"""From a training run of `leaderboard.py` to what its networks say: probabilities by method, in one precision for all.

Every network predicts in float32 from float32 weights, on CUDA without TF32, and its probabilities are stored as
`cifar10_store.rounded` does. Test predictions are stored and not scored here: `leaderboard_table.py` scores the rows
that held-out images have chosen.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atmc.comparison.dropout import Dropout
from atmc.comparison.last_layer import LastLayer, laplace_samples, softmax_hessian
from atmc.comparison.swag import Swag
from atmc.data import ImageData
from atmc.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from atmc.engine.run_data import RunData, load_data
from atmc.engine.sample_predictions import Evaluator
from atmc.recipe.build import build_likelihood
from atmc.recipe.settings import Recipe
from atmc.report import ood_inputs
from atmc.storage.run_directory import RunDir
from cifar10_scores import entropy_of
from cifar10_store import Array, rounded
from leaderboard_rows import NETWORKS, Training

DRAWS = 16  # of SWAG, dropout and Laplace
LAPLACE = "last-layer Laplace"
METHODS = {"sgd": "deep ensemble", "dropout": "MC dropout", "atmc": "ATMC", "sgnht": "SGNHT", "sghmc": "SGHMC"}
METHODS |= {"dirichlet": "ATMC, noisy Dirichlet"}
ABLATION = "cycles, T = 0"


@dataclass
class Networks:
    """What the networks of one method say: probabilities [networks, examples, classes] by split."""

    probs: dict[str, Array]
    epoch: list[float]  # at which each was taken, in its chain
    chain: list[int]
    entropy: dict[str, Array]  # of the average on OOD images
    shift: dict[str, Array]  # probabilities of the average on corrupted test images, by corruption and severity


def network(training: Training, classes: int, channels: int) -> nn.Module:
    """A network of the training's kind with fresh weights; with dropout where it is trained so."""
    from atmc.nn import build

    made = build(classes=classes, in_channels=channels, **NETWORKS[training.network][1])
    if training.kind == "dropout":
        Dropout(made, convolutions=True)
    return made


def splits_of(recipe: Recipe, ood: list[str], shift: int) -> tuple[RunData, dict[str, ImageData], dict[str, ImageData]]:
    """The data of a run, its evaluation splits, and others: OOD images, and `shift` test images corrupted."""
    names = ["test", *(["validation"] if recipe.data.validation else [])]
    data = load_data(replace(recipe, run=replace(recipe.run, evaluate=names)))
    splits = {name: found for name, found in data.evaluate.items() if isinstance(found, ImageData)}
    test = splits["test"]
    far = {}
    for name in ood:
        images = ood_inputs.make(name, test.images, len(test), recipe.data.root).images
        far[f"ood.{name}"] = replace(test, images=images, labels=torch.zeros(len(images), dtype=torch.long))
    few = test.subset(torch.arange(shift), "test")
    for kind, severity in itertools.product(CORRUPTIONS if shift else (), SEVERITIES):
        far[f"shift.{kind}.{severity}"] = replace(few, images=corrupt(few.images, kind, severity))
    return data, splits, far


def predictions(
    training: Training, run: RunDir, recipe: Recipe, device: torch.device, ood: list[str], shift: int = 0
) -> tuple[dict[str, Networks], dict[str, Array]]:
    """Of each method that a training run serves, and the labels by split."""
    data, splits, far = splits_of(recipe, ood, shift)
    model = network(training, data.classes, splits["test"].shape[0])
    every = Evaluator(model, build_likelihood(recipe), {**splits, **far}, device, 500)
    torch.manual_seed(training.seed)  # of dropout
    found = {}
    for method, states in networks_of(training, run, model):
        found[method] = _ask(every, states, list(splits), list(far))
    if training.kind == "sgd" and model.head.weight.numel() < 6000:
        found[LAPLACE] = _laplace(run.bank[0], data, splits, every, training.seed)
    return found, {name: part.labels.numpy().astype(np.uint8) for name, part in splits.items()}


Taken = tuple[Mapping[str, Tensor], float, int]  # weights, epoch, chain


def networks_of(training: Training, run: RunDir, model: nn.Module) -> Iterator[tuple[str, list[Taken]]]:
    """The weights of every network of each method."""
    bank = run.bank
    kept: list[Taken] = [(bank[i], float(bank.meta(i)["epoch"]), bank.chain_of(i)) for i in range(len(bank))]
    if training.kind == "swa":
        moments = Swag(copy.deepcopy(model).cpu())
        for weights, _, _ in kept:
            moments.net.load_state_dict(dict(weights))
            moments.collect()
        generator = torch.Generator().manual_seed(training.seed)
        yield "SWA", [(moments.average().state_dict(), training.epochs, 0)]
        yield "SWAG", [(moments.sample(generator).state_dict(), training.epochs, 0) for _ in range(DRAWS)]
    elif training.kind == "dropout":
        yield METHODS["dropout"], kept[-1:] * DRAWS
    else:
        yield ABLATION if training.temperature == 0 else METHODS[training.kind], kept


def _ask(every: Evaluator, states: list[Taken], splits: list[str], far: list[str]) -> Networks:
    probs: dict[str, list[Array]] = {name: [] for name in splits}
    total = dict.fromkeys(far, 0.0)
    for weights, _, _ in states:
        for name in splits:
            probs[name].append(rounded(every.predict(weights, name).numpy()))
        for name in far:
            total[name] = total[name] + every.predict(weights, name).double().numpy() / len(states)
    mean = {name: np.asarray(found) for name, found in total.items()}
    entropy = {name.removeprefix("ood."): entropy_of(found) for name, found in mean.items() if name.startswith("ood.")}
    shift = {name.removeprefix("shift."): rounded(mean[name]) for name in mean if name.startswith("shift.")}
    stacked = {name: np.stack(each) for name, each in probs.items()}
    return Networks(stacked, [epoch for _, epoch, _ in states], [chain for *_, chain in states], entropy, shift)


@torch.no_grad()
def _laplace(
    weights: Mapping[str, Tensor], data: RunData, splits: dict[str, ImageData], every: Evaluator, seed: int
) -> Networks:
    """Last layers drawn around that of the first network."""
    model: Any = every.model
    model.load_state_dict(dict(weights))
    layer = LastLayer(model.head, model.head.weight, model.head.bias)

    def features(examples: ImageData) -> Tensor:
        own = Evaluator(model, every.likelihood, {"own": examples}, every.device, 500)
        seen = layer.features(lambda: own.predict(weights, "own"))
        assert len(seen) == len(examples), "the head was not called: its batch is too small"
        return seen

    assert isinstance(data.train, ImageData)
    asked = torch.cat([features(part) for part in splits.values()])
    learned = features(data.train)
    hessian = softmax_hessian(model.head(learned))
    logits = laplace_samples(layer, learned, hessian, asked, DRAWS, seed)
    parts = torch.split(torch.softmax(logits, -1).cpu(), [len(part) for part in splits.values()], dim=1)
    probs = {name: rounded(part.numpy()) for name, part in zip(splits, parts, strict=True)}
    return Networks(probs, [0.0] * DRAWS, [0] * DRAWS, {}, {})
