"""`temperature="auto"`: short pilots on a held-out part of the training data choose T, and for classes the likelihood.

A fifth of the examples is held out. Each pilot samples the rest for a seventh of the run's epochs (or as `run_length`
has it), and is scored by the NLL of its predictive on the held-out part (`pilot_scores`).

    1. T = 1, 0.1 and 0.01; for classes and networks with more than 16 inputs to a unit with a narrower prior
    2. there, a wider prior at the best of these
    3. for classes, the noisy Dirichlet likelihood at the best of these
    4. √10 times the best T, and a √10th of it

There are at most seven, or five of the length of `run_length`, so all together cost about as much as the run itself,
which then uses all examples. Few held-out examples cannot tell neighbouring temperatures apart: of those within one
standard error of the best (of the paired difference) the middle one is taken, and the noisy Dirichlet likelihood only
where it is ahead by more than that.

The narrower prior is there because Normal(1) makes logits of about 40 in a last layer of 1,568 inputs. But T narrows
any Normal prior by √T more, and a cold chain may then underfit: at T = 0.03 one has an NLL of .098 on digits (a
validation part), and .083 with a prior three times as wide. So the wider one gives half of that back: it is T^(-1/4)
times as wide, up to Normal(1).
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atmc.api.defaults import NARROW, scale_at
from atmc.api.pilot_scores import Pilot, behind, middle_first, of_twice, table
from atmc.api.run_length import Length
from atmc.common.errors import InputError, RunError
from atmc.data import ImageData
from atmc.engine.guessing import guess
from atmc.engine.progress import Progress
from atmc.target.likelihoods import build
from atmc.target.priors.rules import LIMIT

if TYPE_CHECKING:
    from atmc.posterior import Posterior

HELD_OUT, MOST_HELD_OUT = 5, 2000  # a fifth, and at most so many
SHARE = 7  # pilots at most, and so the part of the run's epochs that each may have
PLANNED = 5  # at most, where the length is that of `run_length`
FIRST = (1.0, 0.1, 0.01)
NOISY = "noisy-dirichlet"
LEAST = 10  # held-out examples


def check_auto(temperature: str, source: Any) -> None:
    """That T can be chosen: by that word, and for a sampler that has one."""
    if temperature != "auto":
        raise InputError(f'temperature must be a number or "auto", not {temperature!r}')
    if not isinstance(source, str):
        raise InputError('temperature="auto" goes with sampler=: a recipe has its own, sampler.temperature')
    if source == "sgd":
        raise InputError('temperature="auto" needs a sampler: sgd has no temperature')
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError('temperature="auto" runs in one process: choose T there, and pass the number to torchrun')


def choose_temperature(
    draw: Callable[..., "Posterior"],
    train: ImageData,
    epochs: int,
    likelihood: str,
    fixed: bool,
    batch_size: int | None,
    teller: Progress,
    narrow: bool = False,
    plan: Length | None = None,
    overrides: Sequence[str] = (),
) -> list[Pilot]:
    """All pilots, the chosen one first. `draw(data, epochs=, batch_size=, temperature=, likelihood=, ...)` samples.

    Says what it costs before it begins, and what it found. `likelihood` names the first one tried, and if `fixed` the
    only one; `narrow` says whether a narrower prior may be tried; `plan` is the length where it is not the caller's.
    """
    held, rest = parts(train)
    length = max(1, epochs // SHARE)
    if plan is not None:
        overrides = [*plan.pilot.overrides, *overrides]
        draw = partial(draw, chains=plan.pilot.chains)
        batch_size, length, epochs = plan.batch, plan.pilot.epochs * plan.pilot.chains, plan.epochs * plan.chains
    each = length if plan is None else plan.pilot.epochs
    batch_size = None if batch_size is None else min(batch_size, len(rest))
    draw = partial(draw, epochs=each, batch_size=batch_size, overrides=overrides)
    most = SHARE if plan is None else PLANNED
    teller.note(
        f'temperature="auto": at most {most} pilots of {length} of the {epochs} epochs each, on {len(rest)} of the '
        f"{len(train)} examples, come before the run"
    )
    tried: list[Pilot] = []
    costs: dict[Any, Tensor] = {}  # NLL of each held-out example

    def fly(name: str, temperature: float, prior: str | None = None, wide: bool = False) -> None:
        temperature = float(f"{temperature:.2g}")
        scale = None if prior is None else scale_at(temperature, wide)
        new = Pilot(name, temperature, prior=prior, prior_scale=scale)
        if len(tried) < most and new.key not in {p.key for p in tried}:
            how: dict[str, Any] = {} if fixed else {"likelihood": name}
            if prior is not None:
                how |= {"prior": prior, "overrides": [*overrides, f"target.prior_scale={scale}"]}
            found, cost = _flown(partial(draw, rest, temperature=new.temperature, **how), held, new)
            tried.append(found)
            if cost is not None:
                costs[new.key] = cost
        tried.sort(key=lambda pilot: pilot.rank)

    prior = NARROW if train.classes and narrow else None
    for temperature in FIRST:
        if plan is None or not tried or temperature > 0.09 * tried[0].temperature:  # else T = 1 beats 0.1 already
            fly(likelihood, temperature, prior)
    if prior is not None:
        fly(likelihood, tried[0].temperature, prior, wide=True)
    if train.classes and not fixed:
        fly(NOISY, tried[0].temperature, tried[0].prior, tried[0].wide)
    best = tried[0]
    for factor in (math.sqrt(10), 1 / math.sqrt(10)):
        if best.temperature * factor <= 1:
            fly(best.likelihood, best.temperature * factor, best.prior, best.wide)
    best = tried[0]
    if best.nll is None:
        raise RunError('every pilot of temperature="auto" diverged: standardise the inputs, or give a temperature')
    tried = middle_first([behind(pilot, best, costs) for pilot in tried], likelihood)
    known = guessing(train, best.likelihood)
    teller.note(table(tried, known))
    if known is not None and best.nll >= known:
        warnings.warn(
            f'no pilot of temperature="auto" is better than guessing on held-out examples ({best.nll:.3f} against '
            f"{known:.3f} nats): give more epochs or a narrower network",
            stacklevel=3,
        )
    return tried


def parts(train: ImageData) -> tuple[ImageData, ImageData]:
    """What is held out, and the rest; the same for every call on the same data."""
    count = min(MOST_HELD_OUT, len(train) // HELD_OUT)
    if count < LEAST:
        raise InputError(
            f'temperature="auto" holds out a fifth of the examples, and a fifth of {len(train)} is too few to compare '
            "temperatures: give a number"
        )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return train.subset(order[:count], "validation"), train.subset(order[count:])


def _flown(draw: Callable[[], "Posterior"], held: ImageData, pilot: Pilot) -> tuple[Pilot, Tensor | None]:
    """The pilot with what it found, and the NLL of each held-out example."""
    began = time.monotonic()
    cost, samples = None, 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few samples and short chains, which pilots are meant to be
            posterior = draw()
        samples = len(posterior)
        cost = of_twice(posterior, held)
    except InputError:
        raise
    except (RunError, RuntimeError, ValueError):
        pass  # diverged, or its predictions are not finite
    if cost is None or not bool(torch.isfinite(cost).all()):
        return replace(pilot, samples=samples, seconds=time.monotonic() - began), None
    return replace(pilot, nll=float(cost.mean()), samples=samples, seconds=time.monotonic() - began), cost


def narrows(model: nn.Module) -> bool:
    """Whether the narrower prior differs from Normal(1) on this network."""
    if type(model).__name__ == "ResNetPP":  # has a prior of its own
        return False
    wide = (math.prod(p.shape[1:]) for p in model.parameters() if p.requires_grad and p.ndim >= 2)
    return any(fan_in > LIMIT**2 for fan_in in wide)


def guessing(train: ImageData, likelihood: str) -> float | None:
    """The NLL of guessing, where there are classes."""
    law = build(likelihood)
    return guess(law, train.labels, len(train.classes)).cost if law.task == "classification" else None
