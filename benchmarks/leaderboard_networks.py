"""From a training run of `leaderboard.py` to what its networks say: probabilities by method, in one precision for all.

Labelled images are predicted in float32 from float32 weights, on CUDA without TF32; OOD and corrupted ones in bf16 on
CUDA, for speed. Probabilities are stored as `cifar10_store.rounded` does. Test predictions are stored and not scored
here: `leaderboard_table.py` scores the rows that held-out images have chosen.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
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
from cifar10_scores import entropy_of, scores
from cifar10_store import Array, rounded
from leaderboard_rows import HELD_OUT, KEPT, MOST_OOD, NETWORKS, Training

DRAWS = 16  # of SWAG, dropout and Laplace
FAR = "far"  # OOD and corrupted images together
LAPLACE = "last-layer Laplace"
ABLATION = "cycles, T = 0"
METHODS = {"sgd": "deep ensemble", "dropout": "MC dropout", "atmc": "ATMC", "sgnht": "SGNHT", "sghmc": "SGHMC"}
METHODS |= {"cycles": ABLATION, "dirichlet": "ATMC, noisy Dirichlet"}
WAYS = {"": "", "mean": " from the mean", "long": " for long"}
MEANS = ", means of modes"  # the weights of a mode's samples averaged: one network a mode


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
    if "validation" in splits:  # of all that training leaves out
        splits["validation"] = splits["validation"].subset(torch.arange(min(HELD_OUT, len(splits["validation"]))))
    return data, splits, far_images(splits["test"], ood, shift, recipe.data.root)


def far_images(test: ImageData, ood: list[str], shift: int, root: str | None = None) -> dict[str, ImageData]:
    """OOD images, at most MOST_OOD of each set, and the first `shift` test images in each corruption."""
    far = {}
    for name, _, source in (each.partition("=") for each in ood):
        images = ood_inputs.make(source or name, test.images, min(MOST_OOD, len(test)), root).images
        far[f"ood.{name}"] = replace(test, images=images, labels=torch.zeros(len(images), dtype=torch.long))
    few = test.subset(torch.arange(shift), "test")
    for kind, severity in itertools.product(CORRUPTIONS if shift else (), SEVERITIES):
        far[f"shift.{kind}.{severity}"] = replace(few, images=corrupt(few.images, kind, severity))
    return far


def predictions(
    training: Training, runs: Sequence[RunDir], recipe: Recipe, device: torch.device, ood: list[str], shift: int = 0
) -> tuple[dict[str, Networks], dict[str, Array], list[dict[str, float]]]:
    """Of each method that a training run serves; the labels by split; and held-out scores of each run in `runs`.

    Several runs differ in their temperature alone: only that of the lowest held-out NLL meets the test images.
    """
    data, splits, far = splits_of(recipe, ood, shift)
    model = network(training, data.classes, splits["test"].shape[0])
    together = {FAR: _together(list(far.values()))} if far else {}  # one set: weights are loaded once for all
    every = Evaluator(model, build_likelihood(recipe), {**splits, **together}, device, 500)
    torch.manual_seed(training.seed)  # of dropout
    tried = [_held_out(every, networks_of(training, run, model)) for run in runs] if len(runs) > 1 else []
    run = runs[int(np.argmin([each["nll"] for each in tried]))] if tried else runs[0]
    methods = networks_of(training, run, model)
    sizes = {name: len(part) for name, part in far.items()}
    found = {method: _ask(every, states, list(splits), sizes) for method, states in methods}
    if training.kind == "sgd" and model.head.weight.numel() < 6000:
        found[LAPLACE] = _laplace(run.bank[0], data, splits, every, training.seed)
    return found, {name: part.labels.numpy().astype(np.uint8) for name, part in splits.items()}, tried


Weights = Mapping[str, Tensor]
Taken = tuple[Weights, float, int]  # weights, epoch, chain


def _held_out(every: Evaluator, methods: Iterator[tuple[str, list[Taken]]]) -> dict[str, float]:
    """Held-out scores of the average of all samples."""
    _, states = next(methods)
    mean = sum(every.predict(weights, "validation").double().numpy() for weights, _, _ in states) / len(states)
    return scores(mean.astype(np.float32), every.labels["validation"].numpy())


def starts(training: Training, cycles: RunDir, channels: int, classes: int) -> list[nn.Module]:
    """The networks at which chains begin: one of each mode of a `cycles` run."""
    bank, found = cycles.bank, []
    for mode in range(training.modes):
        before = [bank[2 * KEPT * mode + k] for k in range(KEPT)]
        made = network(training, classes, channels)
        made.load_state_dict(dict(mean_of(before) if training.way == "mean" else before[-1]))
        found.append(made)
    return found


def mean_of(weights: Sequence[Weights]) -> Weights:
    return {name: torch.stack([each[name] for each in weights]).mean(0) for name in weights[0]}


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
    elif training.kind == "sgd":
        yield METHODS["sgd"], kept
    else:
        modes = _modes(training, kept)
        method = METHODS[training.kind] + WAYS[training.way]
        yield method, [one for mode in modes for one in mode]
        yield method + MEANS, [(mean_of([weights for weights, _, _ in mode]), *mode[-1][1:]) for mode in modes]


def _modes(training: Training, kept: Sequence[Taken]) -> list[list[Taken]]:
    """The last KEPT samples of each mode, with the epochs as if all modes were of one chain."""
    size = len(kept) // training.modes  # of a run that is one chain
    by: dict[int, list[Taken]] = {}
    for position, each in enumerate(kept):
        by.setdefault(each[2] if training.before else position // size, []).append(each)
    found = []
    for mode, own in sorted(by.items()):
        end = training.mode_epochs * (mode + 1)
        last = own[-KEPT:]
        found.append([(w, float(end - training.gap * (len(last) - 1 - k)), 0) for k, (w, _, _) in enumerate(last)])
    return found


def _together(parts: Sequence[ImageData]) -> ImageData:
    images, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    return replace(parts[0], images=images, labels=labels)


def _ask(every: Evaluator, states: list[Taken], splits: list[str], far: dict[str, int]) -> Networks:
    """What networks say about splits and, averaged, about the sets that FAR consists of (`far`: their sizes)."""
    probs: dict[str, list[Array]] = {name: [] for name in splits}
    total: Any = 0.0
    for weights, _, _ in states:
        for name in splits:
            probs[name].append(rounded(every.predict(weights, name).numpy()))
        if far:
            with torch.autocast("cuda", torch.bfloat16, enabled=every.device.type == "cuda"):
                total = total + every.predict(weights, FAR).double().numpy() / len(states)
    ends = np.cumsum(list(far.values()))
    mean = dict(zip(far, np.split(total, ends[:-1]), strict=True)) if far else {}
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
