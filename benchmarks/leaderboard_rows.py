"""The training runs of `leaderboard.py`: which network is trained how, for how long, and the recipe of each.

    sgd       Nesterov momentum, cosine; `chains` networks side by side are a deep ensemble, the first has a last-layer
              Laplace approximation
    swa       a cosine down to a fifth of the rate, iterates of the last quarter: their mean (SWA), a Gaussian (SWAG)
    dropout   sgd with dropout 0.1 before every convolution and linear layer but the first: MC dropout
    cycles    T = 0: SGD with momentum in cycles, three samples at the end of each. The ablation of all samplers
    atmc, sgnht, sghmc    one chain from each mode of a `cycles` run: it begins where the step size has become small,
              and stays at T as long as `cycles` stays at 0. Equal modes and equal epochs: the comparison is paired
    dirichlet a run of its own, at T = 1 with the noisy Dirichlet likelihood

`way` is another way to sample a mode, at T or, as `cycles`, at T = 0:

    mean      begin at the mean of three iterates
    long      stay four times as long, with a mass for each weight, from its gradient

A sampler tries several temperatures, and held-out images choose; only the chosen one meets the test set. WRN-16-4
holds out 5,000 images, and learns from 1,000, 5,000 and 20,000 as well. WRN-28-10 learns from all 50,000, at CHOSEN.
Weight decay is 5e-4 on weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from atmc.comparison.swag import AVERAGED, COLUMNS, LEVEL
from atmc.recipe.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)
from network_rows import BATCH, RATE

IMAGES, HELD_OUT, TEST = 50_000, 5_000, 10_000
MOST_OOD = 2000  # images of each OOD set
CORRUPTED = 35  # copies of an image that is corrupted
MOST = IMAGES - HELD_OUT
KEPT = 3  # samples of a mode, and iterates before them whose mean is the start of `mean`
PARTS = 40  # of a cycle: a sample is taken after each of the last KEPT, by `cycles` of the last 2 · KEPT
LONGER = 4  # `long`
FLOOR = 0.05  # of the rate, in these parts
TEMPERATURES = (0.01, 0.05, 0.2)
CHOSEN = 0.01  # of WRN-28-10, which holds nothing out: a guess, until WRN-16-4 has chosen at 160 epochs
WARM = 1.0  # tried as well where there are few images
ONE = (0.1, {"alpha_eps": 0.01})  # of the rate, since its gradients are large; the α of the temperature page
SAMPLERS = ("atmc", "sgnht", "sghmc")
FEW = {1000: 900, 5000: 180, 20_000: 45}  # images → epochs of a cycle: half the steps of one with all images

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "wrn16": ("WRN-16-4, GroupNorm + WS", {"name": "wide-resnet", "depth": 16, "width": 4, "norm": "gn-ws"}),
    "wrn28": ("WRN-28-10, GroupNorm + WS", {"name": "wide-resnet", "depth": 28, "width": 10, "norm": "gn-ws"}),
    "wrn28bn": ("WRN-28-10, BatchNorm", {"name": "wide-resnet", "depth": 28, "width": 10, "norm": "bn"}),
    "small": ("WRN-10-1, to try the script", {"name": "wide-resnet", "depth": 10, "width": 1, "norm": "gn-ws"}),
}
# Images a second on one H200 with nothing beside them: training (measured: results/networks), and prediction in float32
# (an estimate).
SPEED = {"wrn16": (77_000, 30_000), "wrn28": (11_700, 2_800), "wrn28bn": (10_500, 2_800), "small": (77_000, 30_000)}
DROPOUT = 1.5  # times as long as sgd, an estimate
START, CAPTURE = 10.0, 4.0  # seconds of a process, and of each temperature, in which the GPU is idle


@dataclass(frozen=True)
class Training:
    """One run: how, of which network, so many chains of so many epochs, from how many images."""

    kind: str
    network: str
    epochs: int  # of each chain; where chains begin at modes, of the run that found these
    seed: int = 0
    chains: int = 1
    cycle: int = 40  # epochs
    images: int = MOST
    way: str = ""
    temperatures: tuple[float, ...] = (0.0,)  # to choose from, where chains begin at modes

    @property
    def name(self) -> str:
        few = f"-{self.images}" if self.images < MOST else ""
        many = f"{self.chains}x" if self.chains > 1 else ""
        way = f"-{self.way}" if self.way else ""
        return f"{self.network}{few}-{self.kind}{way}-{many}{self.epochs}-s{self.seed}"

    @property
    def cyclic(self) -> bool:
        return self.kind in ("cycles", "dirichlet", *SAMPLERS)

    @property
    def before(self) -> Training | None:
        """The `cycles` run at whose modes the chains begin; it must be done first."""
        if self.kind not in SAMPLERS and not self.way:
            return None
        return replace(self, kind="cycles", way="", temperatures=(0.0,))

    @property
    def modes(self) -> int:
        return self.epochs // self.cycle

    @property
    def gap(self) -> int:
        """Epochs between samples of a mode."""
        return max(1, self.cycle // PARTS) * (LONGER if self.way == "long" else 1)

    @property
    def mode_epochs(self) -> int:
        """Epochs that a mode costs, with those of the cycle that led to it."""
        return self.cycle + (KEPT * (self.gap - self.before.gap) if self.before else 0)

    @property
    def total(self) -> int:
        """Epochs of all chains or modes together, at one temperature."""
        return self.modes * self.mode_epochs if self.cyclic else self.epochs * self.chains

    @property
    def seconds(self) -> float:
        """About how long it takes on an H200 by itself."""
        train, tried = SPEED[self.network][0], len(self.temperatures)
        epochs = tried * self.modes * KEPT * self.gap if self.before else self.total
        slower = DROPOUT if self.kind == "dropout" else 1.0
        return slower * epochs * self.images / train + self.prediction_seconds() + START + CAPTURE * tried

    def prediction_seconds(self, more: int = 0) -> float:
        """Of these, those after training; `more` are images beside the test and the held-out ones."""
        networks = {"swa": 17, "dropout": 16, "sgd": self.chains}.get(self.kind, (KEPT + 1) * self.modes)
        asked = networks * (TEST + HELD_OUT + more)
        asked += len(self.temperatures) * KEPT * self.modes * HELD_OUT if self.before else 0
        return asked / SPEED[self.network][1]


def sampled(cycles: Training, temperatures: tuple[float, ...] = TEMPERATURES) -> list[Training]:
    """What samples from the modes of a `cycles` run."""
    return [replace(cycles, kind=kind, temperatures=temperatures) for kind in SAMPLERS]


def other_ways(cycles: Training) -> list[Training]:
    """ATMC in other ways, each beside T = 0 in the same way."""
    return [
        replace(cycles, kind=kind, way=way, temperatures=temperatures)
        for way in ("mean", "long")
        for kind, temperatures in (("cycles", (0.0,)), ("atmc", TEMPERATURES))
    ]


def frontier(seed: int) -> tuple[list[Training], list[Training], list[Training]]:
    """Runs of WRN-16-4: those that answer the question at 160 epochs, those that complete it, and the long ones."""
    cycles, longer = (Training("cycles", "wrn16", epochs, seed) for epochs in (160, 640))
    first = [
        cycles,
        *sampled(cycles),
        Training("sgd", "wrn16", 40, seed, chains=4),
        Training("swa", "wrn16", 160, seed),
        Training("sgd", "wrn16", 160, seed),
    ]
    second = [
        Training("dropout", "wrn16", 160, seed),
        Training("sgd", "wrn16", 80, seed, chains=2),
        Training("dirichlet", "wrn16", 160, seed, temperatures=(1.0,)),
        Training("swa", "wrn16", 80, seed),
        Training("swa", "wrn16", 40, seed),
    ]
    long = [
        longer,
        *sampled(longer),
        Training("sgd", "wrn16", 40, seed, chains=16),
        Training("swa", "wrn16", 640, seed),
        Training("swa", "wrn16", 320, seed),
        *(Training("sgd", "wrn16", epochs, seed, chains=640 // epochs) for epochs in (160, 320, 640)),
    ]
    return first, second, long


def few_images(seed: int) -> Iterator[Training]:
    """Two modes of WRN-16-4 from few images, and an ensemble of as many epochs."""
    for images, cycle in FEW.items():
        cycles = Training("cycles", "wrn16", 2 * cycle, seed, cycle=cycle, images=images)
        yield cycles
        yield sampled(cycles, (*TEMPERATURES, WARM))[0]
        yield Training("sgd", "wrn16", cycle, seed, chains=2, images=images)


def large(seed: int) -> list[Training]:
    """Runs of WRN-28-10: 200 epochs each; four seeds are joined to 800 epochs."""
    cycles = Training("cycles", "wrn28", 200, seed, cycle=50, images=IMAGES)
    found = [
        cycles,
        sampled(cycles, (CHOSEN,))[0],
        Training("sgd", "wrn28", 200, seed, images=IMAGES),
        Training("sgd", "wrn28bn", 200, seed, images=IMAGES),
    ]
    if seed == 0:
        found += [
            Training("swa", "wrn28", 200, images=IMAGES),
            Training("dropout", "wrn28", 200, images=IMAGES),
            Training("dirichlet", "wrn28", 200, cycle=50, images=IMAGES, temperatures=(1.0,)),
        ]
    return found


def _all() -> Iterator[Training]:
    seeds = [frontier(seed) for seed in range(3)]
    yield from seeds[0][0]
    yield from other_ways(seeds[0][0][0])
    yield from few_images(0)
    for first, _, _ in seeds[1:]:
        yield from first
    for _, second, _ in seeds:
        yield from second
    for seed in range(1, 3):
        yield from few_images(seed)
    for seed in range(4):
        yield from large(seed)
    for _, _, long in seeds:
        yield from long


TRAININGS = list(_all())  # in the order of how much each is wanted


def tiny() -> list[Training]:
    """One of each kind, of a small network on few images, to try the script on a CPU."""
    cycles = Training("cycles", "small", 16, cycle=8, images=256)
    plain = [
        Training("sgd", "small", 2, chains=2, images=256),
        Training("swa", "small", 8, images=256),
        Training("dropout", "small", 1, images=256),
        Training("dirichlet", "small", 8, cycle=8, images=256, temperatures=(1.0,)),
    ]
    return [cycles, *sampled(cycles, TEMPERATURES[1:]), *other_ways(cycles), *plain]


def recipe_of(training: Training, temperature: float = 0.0, data: str = "cifar10", examples: int = IMAGES) -> Recipe:
    """A training run as a recipe; `examples` is the number of training images before some are held out."""
    own = training.kind == "dropout" or training.before is not None
    target = TargetSection(prior="custom")
    if training.kind == "dirichlet":
        target = TargetSection(prior="custom", likelihood="noisy-dirichlet", likelihood_options=ONE[1])
    return Recipe(
        name=training.name if not temperature else f"{training.name}-T{temperature:g}",
        seed=training.seed,
        chains=training.modes if training.before else training.chains,
        data=DataSection(name=data, batch_size=BATCH, augment="crop-flip", validation=examples - training.images),
        model=ModelSection(name="custom") if own else ModelSection(**NETWORKS[training.network][1]),
        target=target,
        sampler=_sampler(training, temperature),
        schedule=_schedule(training),
        run=RunSection(
            precision="bf16" if data == "cifar10" or torch.cuda.is_available() else "float32",  # a CPU is slow in bf16
            compile=training.network.endswith("bn"),  # the kernels of the others are fused as they are
            evaluate=[],  # predictions are made once, by `leaderboard_networks`
            checkpoint_minutes=2.0,
        ),
    )


def _sampler(training: Training, temperature: float) -> SamplerSection:
    if not training.cyclic:
        return SamplerSection(name="sgd", lr=RATE, momentum=0.9, nesterov=True)
    speed = math.sqrt(RATE * (ONE[0] if training.kind == "dirichlet" else 1.0) / training.images)
    name: Any = training.kind if training.kind in SAMPLERS else "atmc"
    return SamplerSection(
        name=name,
        lr=1e-3,
        speed=speed,
        max_speed=speed / 0.3 if name == "atmc" else None,
        momentum=0.9,
        temperature=temperature,
        momentum_init="law" if training.before and temperature else "zero",
        mass_from="element" if training.way == "long" else "none",
    )


def _schedule(training: Training) -> ScheduleSection:
    epochs, examples = training.epochs, training.images
    if training.kind == "swa":
        after = round((1 - AVERAGED) * epochs)
        every = math.floor((epochs - after) * examples / BATCH / COLUMNS)
        return ScheduleSection(
            epochs=epochs,
            kind="cosine",
            warmup_epochs=min(2, epochs - 1),
            lr_floor=LEVEL,
            burn_in_epochs=after,
            sample_every_steps=max(every, math.floor(examples / BATCH)),  # at most one an epoch
        )
    if training.before:
        stay = KEPT * training.gap
        every = math.floor(stay * examples / BATCH / KEPT)
        return ScheduleSection(epochs=stay, kind="step", milestones=[0], gamma=FLOOR, sample_every_steps=every)
    if not training.cyclic:
        return ScheduleSection(epochs=epochs, kind="cosine", warmup_epochs=min(2, epochs - 1))
    at_one: dict[str, Any] = {"samples_per_cycle": 2 * KEPT}  # the first ones for chains to begin at
    if training.kind == "dirichlet":
        explore = 1 - KEPT * training.gap / training.cycle
        at_one = {"samples_per_cycle": KEPT, "temperature_schedule": "explore", "explore_fraction": explore}
    return ScheduleSection(
        epochs=epochs,
        kind="cyclic",
        cycle_epochs=training.cycle,
        cycle_warmup_epochs=min(1, training.cycle // 8),
        hold_fraction=0.4,
        lr_floor=FLOOR,
        sample_gap_epochs=training.gap,
        **at_one,
    )
