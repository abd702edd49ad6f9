"""`temperature="auto"`: short pilots on a held-out part of the training data choose T and, for classes, the likelihood.

A fifth of the examples is held out. Each pilot samples the rest for a `SHARE`th of the run's epochs, and is scored by the
NLL of its predictive on the held-out part. First come T = 1, 0.1 and 0.01 (for classes also the noisy Dirichlet
likelihood), then the two neighbours of the best at √10 times and a √10th of its T. There are at most seven, so that all
together cost less than the run itself. The run then uses all examples. Short pilots mix less than the run will, which
favours low temperatures a little.
"""

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from atmc.api_likelihoods import with_likelihood
from atmc.common.errors import InputError, RunError
from atmc.data import ImageData
from atmc.engine.guessing import guess
from atmc.engine.progress import Progress
from atmc.recipe.settings import TargetSection
from atmc.target.likelihoods import build

if TYPE_CHECKING:
    from atmc.posterior import Posterior

HELD_OUT, MOST_HELD_OUT = 5, 2000  # a fifth, and at most so many
SHARE = 7  # pilots at most, and so the part of the run's epochs that each may have
FIRST = (1.0, 0.1, 0.01)
CLASS_LIKELIHOODS = {"categorical": FIRST, "noisy-dirichlet": (1.0, 0.1)}
LEAST = 10  # held-out examples


@dataclass(frozen=True)
class Pilot:
    """One row of the table: what was tried, its held-out NLL (None where the chain diverged), and what it took."""

    likelihood: str
    temperature: float
    nll: float | None
    samples: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As a run's manifest keeps it."""
        return asdict(self)


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
    likelihood: Any,
    batch_size: int | None,
    teller: Progress,
) -> list[Pilot]:
    """All pilots, the best first. `draw(data, epochs=, batch_size=, likelihood=, temperature=)` samples.

    Says what it costs before it begins, and what it found. A likelihood that was given is kept.
    """
    held, rest = parts(train)
    length = max(1, epochs // SHARE)
    draw = partial(draw, epochs=length, batch_size=None if batch_size is None else min(batch_size, len(rest)))
    teller.note(
        f'temperature="auto": at most {SHARE} pilots of {length} of the {epochs} epochs each, on {len(rest)} of the '
        f"{len(train)} examples, come before the run"
    )
    names = CLASS_LIKELIHOODS
    if likelihood is not None or train.labels.is_floating_point():
        names = {with_likelihood(TargetSection(), likelihood, train.labels).likelihood: FIRST}
    tried: dict[tuple[str, float], Pilot] = {}

    def fly(name: str, temperature: float) -> None:
        temperature = float(f"{temperature:.2g}")
        if (name, temperature) not in tried and len(tried) < SHARE:
            law = name if likelihood is None else likelihood
            tried[name, temperature] = _pilot(draw, rest, held, name, law, temperature)

    for name, temperatures in names.items():
        for temperature in temperatures:
            fly(name, temperature)
    best = ranked(tried)[0]
    for factor in (math.sqrt(10), 1 / math.sqrt(10)):
        if best.temperature * factor <= 1:
            fly(best.likelihood, best.temperature * factor)
    found = ranked(tried)
    if found[0].nll is None:
        raise RunError('every pilot of temperature="auto" diverged: standardise the inputs, or give a temperature')
    known = guessing(train, found[0].likelihood)
    teller.note(table(found, known))
    if known is not None and found[0].nll >= known:
        warnings.warn(
            f'no pilot of temperature="auto" is better than guessing on held-out examples ({found[0].nll:.3f} against '
            f"{known:.3f} nats): give more epochs, a narrower network, or a smaller prior scale",
            stacklevel=3,
        )
    return found


def ranked(tried: dict[tuple[str, float], Pilot]) -> list[Pilot]:
    """The lowest NLL first, those that diverged last."""
    return sorted(tried.values(), key=lambda pilot: math.inf if pilot.nll is None else pilot.nll)


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


def _pilot(
    draw: Callable[..., "Posterior"],
    rest: ImageData,
    held: ImageData,
    name: str,
    likelihood: Any,
    temperature: float,
) -> Pilot:
    began = time.monotonic()
    nll, samples = None, 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few samples and short chains, which pilots are meant to be
            posterior = draw(rest, likelihood=likelihood, temperature=temperature)
        samples = len(posterior)
        found = float(posterior.evaluate(held, held.labels)["predictive"]["nll"])
        nll = found if math.isfinite(found) else None
    except (RunError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    return Pilot(name, temperature, nll, samples, time.monotonic() - began)


def guessing(train: ImageData, likelihood: str) -> float | None:
    """The NLL of guessing, where there are classes."""
    law = build(likelihood)
    return guess(law, train.labels, len(train.classes)).cost if law.task == "classification" else None


def table(pilots: list[Pilot], known: float | None) -> str:
    """The pilots as people see them, the best first."""
    wide = max(len("likelihood"), *(len(pilot.likelihood) for pilot in pilots))
    lines = [f"{'likelihood':{wide}s}  {'T':>6s}  {'held-out NLL':>12s}  {'samples':>7s}  {'seconds':>7s}"]
    for pilot in pilots:
        nll = "diverged" if pilot.nll is None else f"{pilot.nll:.3f}"
        lines.append(
            f"{pilot.likelihood:{wide}s}  {pilot.temperature:6g}  {nll:>12s}  {pilot.samples:7d}  {pilot.seconds:7.1f}"
        )
    best = pilots[0]
    lines.append(f"The run uses T = {best.temperature:g} with the {best.likelihood} likelihood.")
    if known is not None:
        lines[-1] += f" Guessing has an NLL of {known:.3f}."
    return "\n".join(lines)
