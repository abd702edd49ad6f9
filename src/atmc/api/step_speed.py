"""How fast a run of `atmc.sample` goes: the threads of a step, and the step size that network and data allow."""

import dataclasses
import os
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atmc.api.arguments import work
from atmc.api.defaults import RATE
from atmc.common.errors import InputError
from atmc.data import ImageData
from atmc.engine import first_fit
from atmc.engine.processes import pick_device
from atmc.engine.progress import Progress
from atmc.engine.step_size_search import StepSize, find_step_size
from atmc.engine.torch_settings import numerics
from atmc.recipe.build import build_prior
from atmc.recipe.settings import (
    Recipe,
    sampler_class,
)
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir
from atmc.target.likelihoods import LocationScale

# Operations of a batch's forward pass up to which one thread is used. Measured on two cores that had other work too, on
# dense and convolutional networks with batches of 16 and 64; the best step with one thread and with two: 1.6 and
# 2.1 ms at 8e6, 3.7 and 5.9 at 3.3e7, 6.7 and 6.2 at 4.8e7, 25 and 26 at 1.4e8. The median step took 3 to 200 times as
# long with two, which wait for each other at every operation.
SMALL = 3e7
PATIENCE = 3.0  # seconds of the search for the speed after which it is spoken of


def threads_for(
    settings: Recipe, model: nn.Module, train: ImageData, batch: int, place: str, out: str | Path | None
) -> int | None:
    """One thread on a CPU where a step is so little work that several would wait for each other, unless set.

    A run that is there goes on with as many as it has, which its bits depend on.
    """
    if settings.run.threads is not None or pick_device(place).type != "cpu":
        return settings.run.threads
    if out is not None and Manifest.exists(Path(out)):
        with suppress(InputError):  # no run yet: its folder is just about to become one
            return RunDir.open(out).recipe.run.threads
    return 1 if work(model, train) * batch <= SMALL else None


def step_size_for(
    model: nn.Module,
    train: ImageData,
    settings: Recipe,
    rule: Any,
    batch: int,
    device: torch.device,
    teller: Progress,
    likelihood: Any,
    largest: int,
) -> StepSize:
    """How fast this network may be sampled on these data, searched for as the run will go: with its threads.

    And with batches of which size, where they may grow to `largest`. Not where noise is learned: the
    regression of benchmarks/batch_growth.py predicts as well with the bound on the step then, from more samples.
    """
    from atmc.target import Potential

    began, said = time.monotonic(), False

    def potential(copy: nn.Module) -> Any:
        inner = Potential(copy, len(train), build_prior(settings, copy, rule), likelihood, improper_ok=True)

        def patient(x: Tensor, y: Tensor) -> Tensor:
            nonlocal said
            if not said and time.monotonic() - began > PATIENCE and os.environ.get("RANK", "0") == "0":
                teller.note("searching for the speed of the sampler: a short walk of SGD comes before the run")
                said = True
            return inner(x, y)

        return patient

    # Of `numerics` the threads alone: on a GPU the fastest convolutions are not always the same; the speed should be.
    with numerics(settings, device) if device.type == "cpu" else nullcontext():
        section = settings.sampler
        noise = section.noise_rank, section.temperature or 1.0
        if not isinstance(likelihood, LocationScale):
            grow = largest, sampler_class(section.name)
            return find_step_size(model, train, potential, batch, RATE, device, *noise, *grow)
        near = first_fit.fitted(model, train, potential, batch, device)
        found = find_step_size(near, train, potential, batch, RATE, device, *noise)
        faster = first_fit.FASTER if batch < len(train) else 1.0  # with all data it is curvature that limits it
        return dataclasses.replace(found, rate=min(RATE, faster * found.rate))
