"""The rows of the ImageNet tables as recipes: which sets, which kinds of rows, and what each costs.

Rows of a set, in the order of how much each is wanted. All have the same epochs, in as many chains or members:

    atmc, zero, sgnht   ResNet-50-D with GroupNorm and weight standardisation; each chain anneals once and samples at T
                        in its last epochs, a sample each: three, or two of 12 or 16; zero is the same at T = 0
    ensemble-bn         a deep ensemble of ResNet-50-D with BatchNorm under SGD; its members are SGD + BatchNorm
    ensemble-gn         the same with GroupNorm and weight standardisation; its members alone are the row SGD
    atmc-pp, zero-pp    as atmc and zero, with ResNet++-50
    …-long              the same with twice the epochs

ResNet-D (He et al. 2019) has a stem of three 3 × 3 convolutions and pooled shortcuts: what fastai's networks have too.
Imagenette and Imagewoof are evaluated whole at 224 pixels and trained on crops of 176. A crop shows at least a quarter
of an image, 0.78 of its side on average, so things look 1.27 times as large as in the whole image at one size, and
176 · 1.27 = 224 makes up for that (Touvron et al. 2019). It also takes 0.62 of the time of crops of 224. Batches are of
64: 56 epochs of 9,469 images are then 8,300 steps. Rates are CIFAR-10's as they are, though its batches are twice as
large: a small network on held-out training images was about as good or better at a larger rate than at a smaller one
(results/imagenet/rates.json). Weight decay is 5e-4 (with BatchNorm on all parameters, else on weights alone, the better
choice of each on CIFAR-10); chains of GroupNorm networks have the prior that this decay stands for. Nothing else was
tuned, and nothing on validation images.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any

import torch

from atmc.nn.resnet_shapes import IMAGENET
from atmc.recipe.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)

DECAY = 5e-4
TEMPERATURE = 0.02  # of the CIFAR-10 row with the lowest NLL
TAIL = 3  # epochs at the end of a chain in which it samples, once in each
LONG = "-long"
# Images a second on an H200 at 224 pixels that the predictions below assume; ResNet++-50 alone was measured at 7,774
# and ResNet-50 with BatchNorm at 6,104 (results/networks/cuda.json). ResNet-18 without pooling, at 64 pixels: a guess.
SPEED = {50: 6_500.0, 18: 16_000.0 * (64 / 224) ** 2}
BATCHNORM = 0.85  # of that speed
# Seconds besides the steps, with blocks to compile and without: start, kernels, and evaluation in float32.
BESIDES = {True: 90.0, False: 70.0}


@dataclasses.dataclass(frozen=True)
class Set:
    """A data set: its name with the size to evaluate at, training images, crop in training, network, epochs."""

    data: str
    train: int
    crop: int
    depth: int
    epochs: int  # of a chain
    chains: int = 4
    batch: int = 64
    area: float = 0.25  # least share of an image in a crop
    other: str | None = None  # for out-of-distribution images
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


SETS = {
    "imagenette": Set("imagenette?size=224", 9_469, 176, 50, 56, other="imagewoof", options={"variant": "d"}),
    "imagewoof": Set("imagewoof?size=224", 9_025, 176, 50, 56, other="imagenette", options={"variant": "d"}),
    # A 3 × 3 stem without pooling, as is usual at 64 pixels.
    "tiny-imagenet": Set("tiny-imagenet", 100_000, 48, 18, 12, batch=128, options={"small_input": True}),
    "imagenet-mini": Set("imagenet-mini?size=128", 34_745, 112, 50, 16, 2, 128, options={"variant": "d"}),
}
KINDS = ("atmc", "ensemble-bn", "zero", "sgnht", "ensemble-gn", "atmc-pp", "zero-pp", "atmc-long", "ensemble-bn-long")
FEW = {"tiny-imagenet": KINDS[:5], "imagenet-mini": KINDS[:2]}
ROWS = [(name, kind) for kind in KINDS for name in SETS if kind in FEW.get(name, KINDS)]


def recipe_of(name: str, kind: str, options: argparse.Namespace) -> Recipe:
    """A row as a recipe, which is kept beside the table."""
    found = SETS[name]
    batch = options.batch or found.batch
    epochs = (options.epochs or found.epochs) * (2 if kind.endswith(LONG) else 1)
    plus, sgd, bn = "-pp" in kind, kind.startswith("ensemble"), kind.startswith("ensemble-bn")
    rate = options.rate or (0.05 if plus else 0.1)  # on the mean loss, as on CIFAR-10
    if sgd:
        decay = DECAY if bn else 0.0  # else as a prior, which can leave parameters out
        sampler = SamplerSection(name="sgd", lr=rate, momentum=0.9, nesterov=True, weight_decay=decay)
        schedule = ScheduleSection(epochs=epochs, kind="cosine", warmup_epochs=min(2, epochs - 1))
    else:
        # Rate over 1 − momentum is what a constant gradient moves the weights by in a step.
        speed = math.sqrt(rate * (1 - options.momentum) / 0.1 / found.train)
        tail = min(TAIL, max(1, epochs // 6))  # all of them at the least step size
        temperature = 0.0 if kind.startswith("zero") else options.temperature
        sampler = SamplerSection(
            name="sgnht" if kind == "sgnht" else "atmc",
            lr=1e-3,
            speed=speed,
            max_speed=None if kind == "sgnht" else speed / 0.3,
            momentum=options.momentum,
            temperature=temperature,
        )
        explores = temperature > 0 and tail < epochs  # at T = 0, up to the last epochs
        schedule = ScheduleSection(
            epochs=epochs,
            kind="cyclic",
            cycle_epochs=epochs,
            cycle_warmup_epochs=min(2, epochs - 1),
            hold_fraction=0.4,
            lr_floor=0.05,
            samples_per_cycle=tail,
            temperature_schedule="explore" if explores else "constant",
            explore_fraction=1 - tail / epochs if explores else 0.0,
        )
    # The paper's own baseline has BatchNorm. Its blocks are compiled one by one, which is soon done.
    network = {"name": "resnet", "norm": "bn"} if bn else {"name": "resnet-v2", "norm": "gn-ws"}
    depth = options.depth or found.depth
    own = {k: v for k, v in found.options.items() if k != "variant" or (depth in IMAGENET and not plus)}
    target = TargetSection(prior="gaussian-weights", prior_scale=1 / math.sqrt(found.train * DECAY))
    if plus or bn:
        target = TargetSection(prior="resnetpp" if plus else "none")
    return Recipe(
        name=f"{name}-{kind}",
        seed=options.seed,
        chains=options.chains or found.chains,
        data=DataSection(
            name=options.data.get(name, found.data),
            root=options.root,
            batch_size=batch,
            augment="resized-crop-flip",
            crop_size=options.crop or found.crop,
            crop_area=found.area,
            validation=options.validation,
        ),
        model=ModelSection(
            **({"name": "resnetpp"} if plus else network),
            depth=depth,
            width=options.width,
            options=own,
        ),
        target=target,
        sampler=sampler,
        schedule=schedule,
        run=RunSection(
            precision="bf16" if torch.cuda.is_available() else "float32",
            compile=plus or bn,  # the kernels of the others are fused as they are
            checkpoint_minutes=5.0,
            evaluate=["validation" if options.validation else "test"],
            evaluate_batch=250,
        ),
    )


def predicted(recipe: Recipe, train: int) -> float:
    """Seconds that a row should take on an H200: images over speed, which goes with the pixels of a crop."""
    side = recipe.data.crop_size or 224
    speed = SPEED.get(recipe.model.depth or 50, SPEED[50]) * (224 / side) ** 2
    speed *= BATCHNORM if recipe.model.name == "resnet" else 1.0
    return recipe.chains * recipe.schedule.epochs * train / speed + BESIDES[recipe.run.compile]
