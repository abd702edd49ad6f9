"""What `atmc.sample` does where nobody says: batches, steps, and the settings of a sampler."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from atmc.api.arguments import work
from atmc.api.likelihood_choice import STANDARDISED
from atmc.data import ImageData, OwnData
from atmc.engine import first_fit
from atmc.engine.batch_growth import LEAST_STEPS
from atmc.engine.step_size_search import StepSize
from atmc.recipe.settings import (
    DataSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
    sampler_class,
)
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir
from atmc.target.likelihoods import LocationScale
from atmc.target.priors.rules import LIMIT

RATE = 0.1  # most, of the SGD with momentum 0.9 that a sampler would be without its noise; see `default_recipe`
WHOLE = 512  # examples up to which a batch is all of them: mini-batches of so few bend the law most, and save little
# Operations of a forward pass of all data up to which a batch is all of them, however many they are. A step costs less
# than a millisecond whatever its batch, and 2 ms at 7e6: kin8nm (50 hidden units, 5,899 examples, validation) had a
# log-likelihood of 1.09 after 10,000 steps of 1,000 examples with noise_rank = 16, 1.13 with all in a fifth more time.
CHEAP = 3e7
# Steps from which on that holds, with some room. Digits (64–50–10, 1,000 examples, a validation part, two seeds) have
# an NLL of .234 and .086 after 480 steps with all data, .208 and .151 with mini-batches of 64; after 2,240 steps .138
# and .101 against .191 and .111.
ENOUGH = 1500
STEPS = 16  # steps an epoch, at least
MINI = 64  # examples of a mini-batch, at most
MOST = 1024  # to which pilots may let it grow
# Operations of a forward pass of all data up to which the default is LONG steps, about 25 s on one core. With 32,000
# steps and 60 samples the spread of a network 1–50–1 was .76 of NUTS's in one region (benchmarks/minibatch_network.py).
QUICK = 3e6
LONG = 64_000
# Steps of a regression with learned noise at least, where nobody says: with all data (validation, log-likelihood with
# 9,200 and 23,000 steps: kin8nm 1.21 and 1.24, naval 6.24 and 6.39), and with mini-batches.
LEAST, LEAST_MINI = 20_000, 10_000
# Examples of its mini-batches. A step costs little more than with 64, and the fit before the chain gets much further:
# protein (100 hidden units, validation) has a log-likelihood of -2.84 with 64,000 steps of 64, and of -2.71 so.
WIDE = 1024
CYCLES = ("schedule.kind", "schedule.cycle_", "schedule.samples_per_cycle")  # overrides that ask for cycles
FIRST = 500  # steps of SGD first, where every step uses all data; of a shorter run as many as it has
NOISE_RANK = 16  # directions of the gradient noise along which friction balances it, for networks up to
SMALL_NETWORK = 200_000  # parameters: 33 more numbers for each of them
NARROW = "gaussian-limited"  # the prior for classes; benchmarks/default_prior.py


def default_recipe(
    sampler: str,
    num_data: int,
    epochs: int = 100,
    step_size: StepSize | None = None,
    noise_rank: int = 0,
    fit_steps: int = 0,
    batch: int | None = None,
) -> Recipe:
    """Settings for a network and data that nobody has tuned for: slow enough to be safe, at the Bayes posterior T = 1.

    A tenth as many epochs of SGD come first: thermostats started during the initial transient adapt slowly.
    Then there are 20 cycles, or as many of 200 steps as there is time for, up to 60; those after the first third give
    samples. Rates are those of `step_size`, or RATE. Where noise is learned, Adam takes the place of SGD, with at most
    `fit_steps` steps.
    """
    step_size = StepSize(RATE, RATE) if step_size is None else step_size
    if batch is None:
        batch = mini_batch(num_data) if sampler == "sgd" else default_batch(num_data)
    cycle = math.ceil(epochs / min(60, max(20, epochs * num_data // batch // 200)))
    schedule = ScheduleSection(
        epochs=epochs,
        cycle_epochs=cycle,
        burn_in_epochs=min(epochs - cycle, cycle * math.ceil(0.3 * epochs / cycle)),
        warm_start_epochs=math.ceil(epochs / 10),
        warm_start_lr=step_size.start,
    )
    if batch == num_data:  # no noise to be annealed away: constant steps; 60 samples after the first third, 180 of LONG
        kept = epochs - schedule.burn_in_epochs
        every = max(1, kept // min(180, max(60, kept // 250)))
        warm = max(schedule.warm_start_epochs, min(FIRST, epochs))  # so little friction takes long to end a fall
        schedule = dataclasses.replace(
            schedule, kind="constant", cycle_epochs=None, sample_every_steps=every, warm_start_epochs=warm
        )
    if fit_steps:
        schedule = dataclasses.replace(
            schedule,
            warm_start_optimizer="adam",
            warm_start_epochs=first_fit.warm_epochs(epochs, fit_steps, num_data // batch),
            warm_start_lr=first_fit.LR,
        )
    if sampler == "sgd":
        plain = ScheduleSection(epochs=epochs, kind="cosine")
        moves = SamplerSection(name="sgd", lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
        target = TargetSection(prior="none")
        return Recipe(
            name=sampler,
            data=DataSection(batch_size=batch),
            sampler=moves,
            schedule=plain,
            target=target,
            run=RunSection(compile=True),
        )
    kind = sampler_class(sampler)
    if kind is None or not kind.has_momentum:
        moves = SamplerSection(name=sampler, lr=2 * step_size.rate / num_data)
    else:
        # As an optimizer a sampler is SGD with rate speed² N on the mean loss: so the speed that makes it that rate.
        speed = math.sqrt(step_size.rate / num_data)
        # Friction takes noise out; where there is none, less of it lets soft directions mix in fewer steps.
        momentum = 0.99 if batch == num_data else 0.9
        # The paper's ratio of speeds. The limit also keeps a light thermostat from remembering a stormy start.
        moves = SamplerSection(
            name=sampler,
            lr=1e-3,
            speed=speed,
            max_speed=speed / 0.3,
            momentum=momentum,
            momentum_init="law" if batch == num_data else "zero",
            noise_rank=noise_rank,
        )
    return Recipe(
        name=sampler, data=DataSection(batch_size=batch), sampler=moves, schedule=schedule, run=RunSection(compile=True)
    )


def scale_at(temperature: float, wide: bool) -> float:
    """The scale of the narrower prior: LIMIT, or where half of what T narrows it by is given back, LIMIT/√√T."""
    return float(f"{LIMIT * temperature**-0.25:.2g}") if wide else LIMIT


def mini_batch(num_data: int) -> int:
    """At least 16 steps an epoch, and batches of 64 at most."""
    return max(1, min(MINI, num_data // STEPS))


def default_batch(num_data: int) -> int:
    """All data where they are few, for a sampler."""
    return num_data if num_data <= WHOLE else mini_batch(num_data)


def noise_rank_of(source: Any, model: nn.Module, train: ImageData, batch_size: int | None) -> int:
    """How many directions of the gradient noise the default settings balance: none where there is no such noise."""
    kind = sampler_class(source) if isinstance(source, str) else None
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    batch = default_batch(len(train)) if batch_size is None else batch_size
    right = kind is not None and kind.has_momentum and not isinstance(train, OwnData)
    return min(NOISE_RANK, size) if right and batch < len(train) and size <= SMALL_NETWORK else 0


def largest_batch(settings: Recipe, num_data: int, overrides: Sequence[str]) -> int:
    """The batch up to which pilots may go: the run keeps its epochs, and enough steps. 0 where there are no pilots."""
    section = settings.sampler
    if not section.noise_rank or not section.temperature or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return 0  # no friction along the noise, no temperature, or ranks that may differ in the last bit
    if any(word.startswith(("data.batch_size", "sampler.")) for word in overrides):
        return 0
    return min(MOST, num_data, settings.schedule.epochs * num_data // LEAST_STEPS)


def takes_all(
    model: nn.Module, train: ImageData, epochs: int | None, out: str | Path | None, overrides: Sequence[str]
) -> bool:
    """Whether a step uses all data where nobody says: they are few, or a step on them is cheap and many are made.

    Cycles are for mini-batches, and a run that was begun keeps what it has.
    """
    if any(word.startswith((*CYCLES, "data.batch_size")) for word in overrides):
        return False
    if out is not None and Manifest.exists(Path(out)):
        return RunDir.open(out).recipe.data.batch_size >= len(train)
    if len(train) <= WHOLE:
        return True
    many = steps_an_epoch(len(train)) * (100 if epochs is None else epochs) >= ENOUGH
    return many and not isinstance(train, OwnData) and work(model, train) * len(train) <= CHEAP


def learns_noise(likelihood: Any, train: ImageData) -> bool:
    """Whether it is a regression whose noise is learned with the weights."""
    if likelihood is None:
        return bool(train.labels.is_floating_point())
    return isinstance(likelihood, LocationScale) or (isinstance(likelihood, str) and likelihood in STANDARDISED)


def is_free(source: Any, train: ImageData, out: str | Path | None, overrides: Sequence[str]) -> bool:
    """Whether mini-batches may have any size: a new run by a sampler's name, and nothing said of batches or cycles."""
    begun = out is not None and Manifest.exists(Path(out))
    named = isinstance(source, str) and source != "sgd" and not isinstance(train, OwnData)
    return named and not begun and not any(word.startswith((*CYCLES, "data.batch_size")) for word in overrides)


def wide_batches(each: float, num_data: int, epochs: int | None) -> tuple[int, int]:
    """Batch and epochs of a regression with learned noise: large batches where they are cheap and steps are enough."""
    most = max(mini_batch(num_data), min(WIDE, num_data // STEPS, int(CHEAP / each)))
    if epochs is None:
        return most, max(100, math.ceil(LEAST_MINI * most / num_data)) if most == WIDE else 100
    return max(mini_batch(num_data), min(most, epochs * num_data // LEAST_MINI)), epochs


def steps_an_epoch(num_data: int) -> int:
    """Steps on all data that stand for an epoch: as many as there would be mini-batches."""
    return max(STEPS, num_data // MINI)
