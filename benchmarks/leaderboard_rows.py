"""The training runs of `leaderboard.py`: which network is trained how, for how long, and the recipe of each.

    sgd       Nesterov momentum, cosine; `chains` networks side by side are a deep ensemble, the first has a last-layer
              Laplace approximation
    swa       a cosine down to a fifth of the rate, iterates of the last quarter: their mean (SWA), a Gaussian (SWAG)
    dropout   sgd with dropout 0.1 before every convolution and linear layer but the first: MC dropout
    atmc, sgnht, sghmc    cycles; each explores at T = 0 and is sampled at T in its last three epochs. T = 0 is the
              ablation of all three
    dirichlet atmc at T = 1 with the noisy Dirichlet likelihood

The frontier (WRN-16-4) holds out 5,000 training images, which choose temperatures and the sizes of ensembles. The rows
of WRN-28-10 hold nothing out and take what was chosen there. Weight decay is 5e-4 on weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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

IMAGES, HELD_OUT = 50_000, 5_000
AT_T = 3  # epochs, and samples, at T in each cycle
FLOOR = 0.05  # of the rate, in these epochs
TEMPERATURES = (0.05, 0.01, 0.2)  # that held-out images choose from, the first guess first
ONE = (0.1, {"alpha_eps": 0.01})  # of the rate, since its gradients are large; the α of the temperature page

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "wrn16": ("WRN-16-4, GroupNorm + WS", {"name": "wide-resnet", "depth": 16, "width": 4, "norm": "gn-ws"}),
    "wrn28": ("WRN-28-10, GroupNorm + WS", {"name": "wide-resnet", "depth": 28, "width": 10, "norm": "gn-ws"}),
    "wrn28bn": ("WRN-28-10, BatchNorm", {"name": "wide-resnet", "depth": 28, "width": 10, "norm": "bn"}),
    "small": ("WRN-10-1, to try the script", {"name": "wide-resnet", "depth": 10, "width": 1, "norm": "gn-ws"}),
}


@dataclass(frozen=True)
class Training:
    """One run: how, of which network, so many chains of so many epochs, at which temperature."""

    kind: str
    network: str
    epochs: int  # of each chain
    seed: int = 0
    chains: int = 1
    temperature: float | None = None  # None: not sampled
    cycle: int = 40  # epochs
    held_out: int = HELD_OUT

    @property
    def name(self) -> str:
        at = "" if self.temperature is None else f"-T{self.temperature:g}"
        many = f"{self.chains}x" if self.chains > 1 else ""
        return f"{self.network}-{self.kind}{at}-{many}{self.epochs}-s{self.seed}"

    @property
    def total(self) -> int:
        """Epochs of all chains."""
        return self.epochs * self.chains


def frontier(seed: int) -> tuple[list[Training], list[Training], list[Training]]:
    """Runs of WRN-16-4: those that answer the question at 160 epochs, those that complete it, and the long ones."""
    first = [
        Training("atmc", "wrn16", 160, seed, temperature=0.0),
        Training("atmc", "wrn16", 160, seed, temperature=TEMPERATURES[0]),
        Training("sgd", "wrn16", 40, seed, chains=4),
        Training("sgd", "wrn16", 160, seed),
        Training("swa", "wrn16", 160, seed),
    ]
    second = [
        *(Training("atmc", "wrn16", 160, seed, temperature=t) for t in TEMPERATURES[1:]),
        *(Training(kind, "wrn16", 160, seed, temperature=t) for kind in ("sghmc", "sgnht") for t in TEMPERATURES),
        Training("sgd", "wrn16", 80, seed, chains=2),
        Training("swa", "wrn16", 80, seed),
        Training("swa", "wrn16", 40, seed),
        Training("dropout", "wrn16", 160, seed),
    ]
    long = [
        *(Training("atmc", "wrn16", 640, seed, temperature=t) for t in (0.0, TEMPERATURES[0])),
        Training("sgd", "wrn16", 40, seed, chains=16),
        *(Training("sgd", "wrn16", epochs, seed, chains=640 // epochs) for epochs in (160, 320, 640)),
        *(Training("swa", "wrn16", epochs, seed) for epochs in (320, 640)),
        *(Training(kind, "wrn16", 640, seed, temperature=TEMPERATURES[0]) for kind in ("sghmc", "sgnht")),
    ]
    return first, second, long


def large(seed: int) -> list[Training]:
    """Runs of WRN-28-10: 200 epochs each; four seeds are joined to 800 epochs."""
    more: dict[str, Any] = {"cycle": 50, "held_out": 0}
    found = [
        Training("atmc", "wrn28", 200, seed, temperature=0.0, **more),
        Training("sgd", "wrn28", 200, seed, **more),
        Training("atmc", "wrn28", 200, seed, temperature=TEMPERATURES[0], **more),
        Training("sgd", "wrn28bn", 200, seed, **more),
    ]
    if seed == 0:
        found += [
            Training("swa", "wrn28", 200, **more),
            Training("dropout", "wrn28", 200, **more),
            Training("dirichlet", "wrn28", 200, temperature=1.0, **more),
        ]
    return found


def _all() -> Iterator[Training]:
    parts = [frontier(seed) for seed in range(3)]
    yield from (*parts[0][0], *parts[0][1])
    for part in parts[1:]:
        yield from part[0]
    for part in parts[1:]:
        yield from part[1]
    for seed in range(4):
        yield from large(seed)
    for part in parts:
        yield from part[2]


TRAININGS = list(_all())  # in the order of how much each is wanted


def recipe_of(training: Training, data: str = "cifar10", examples: int = IMAGES) -> Recipe:
    """A training run as a recipe; `examples` is the number of training images before some are held out."""
    if training.kind in ("sgd", "swa", "dropout"):
        sampler = SamplerSection(name="sgd", lr=RATE, momentum=0.9, nesterov=True)
    else:
        sampler = _sampler(training, examples - training.held_out)
    own = training.kind == "dropout"
    target = TargetSection(prior="custom")
    if training.kind == "dirichlet":
        target = TargetSection(prior="custom", likelihood="noisy-dirichlet", likelihood_options=ONE[1])
    return Recipe(
        name=training.name,
        seed=training.seed,
        chains=training.chains,
        data=DataSection(name=data, batch_size=BATCH, augment="crop-flip", validation=training.held_out),
        model=ModelSection(name="custom") if own else ModelSection(**NETWORKS[training.network][1]),
        target=target,
        sampler=sampler,
        schedule=_schedule(training, examples - training.held_out),
        run=RunSection(
            precision="bf16" if data == "cifar10" else "float32",  # others: to try the script on a CPU
            compile=training.network.endswith("bn"),  # the kernels of the others are fused as they are
            evaluate=[],  # predictions are made once, by `leaderboard_networks`
            checkpoint_minutes=2.0,
        ),
    )


def _sampler(training: Training, examples: int) -> SamplerSection:
    rate = RATE * (ONE[0] if training.kind == "dirichlet" else 1.0)
    speed = math.sqrt(rate / examples)
    name: Any = "atmc" if training.kind == "dirichlet" else training.kind
    limit = speed / 0.3 if name == "atmc" else None
    assert training.temperature is not None
    return SamplerSection(
        name=name, lr=1e-3, speed=speed, max_speed=limit, momentum=0.9, temperature=training.temperature
    )


def _schedule(training: Training, examples: int) -> ScheduleSection:
    epochs = training.epochs
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
    if training.temperature is None:
        return ScheduleSection(epochs=epochs, kind="cosine", warmup_epochs=min(2, epochs - 1))
    explore: dict[str, Any] = {"temperature_schedule": "explore", "explore_fraction": 1 - AT_T / training.cycle}
    return ScheduleSection(
        epochs=epochs,
        kind="cyclic",
        cycle_epochs=training.cycle,
        cycle_warmup_epochs=min(1, training.cycle // 8),
        hold_fraction=0.4,
        lr_floor=FLOOR,
        samples_per_cycle=AT_T,
        **(explore if training.temperature else {}),
    )
