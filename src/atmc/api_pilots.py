"""`temperature="auto"`: short pilots on a held-out part of the training data choose T, and for classes the likelihood.

A fifth of the examples is held out. Each pilot samples the rest for a sixth of the run's epochs, and is scored by the
NLL of its predictive on the held-out part.

    1. T = 1, 0.1 and 0.01
    2. for classes, the noisy Dirichlet likelihood at the best of these
    3. √10 times the best T, and a √10th of it

There are at most six, so all together cost less than the run itself, which then uses all examples. Few held-out
examples cannot tell neighbouring temperatures apart: of those within one standard error of the best (of the paired
difference) the middle one is taken.
"""

import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atmc.common.errors import InputError, RunError
from atmc.data import ImageData
from atmc.engine.guessing import SMALLEST, guess
from atmc.engine.progress import Progress
from atmc.posterior.regression import nll_each
from atmc.target.likelihoods import build

if TYPE_CHECKING:
    from atmc.posterior import Posterior

HELD_OUT, MOST_HELD_OUT = 5, 2000  # a fifth, and at most so many
SHARE = 6  # pilots at most, and so the part of the run's epochs that each may have
FIRST = (1.0, 0.1, 0.01)
NOISY = "noisy-dirichlet"
LEAST = 10  # held-out examples


@dataclass(frozen=True)
class Pilot:
    """One row of the table: what was tried, its held-out NLL (None where the chain diverged), and what it took."""

    likelihood: str
    temperature: float
    nll: float | None = None
    behind: float | None = None  # standard errors of the paired difference by which it is behind the best
    samples: int = 0
    seconds: float = 0.0

    @property
    def rank(self) -> float:
        return math.inf if self.nll is None else self.nll

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
    likelihood: str,
    fixed: bool,
    batch_size: int | None,
    teller: Progress,
) -> list[Pilot]:
    """All pilots, the chosen one first. `draw(data, epochs=, batch_size=, temperature=, likelihood=)` samples.

    Says what it costs before it begins, and what it found. `likelihood` names the first one tried, and if `fixed` the
    only one.
    """
    held, rest = parts(train)
    length = max(1, epochs // SHARE)
    draw = partial(draw, epochs=length, batch_size=None if batch_size is None else min(batch_size, len(rest)))
    teller.note(
        f'temperature="auto": at most {SHARE} pilots of {length} of the {epochs} epochs each, on {len(rest)} of the '
        f"{len(train)} examples, come before the run"
    )
    tried: list[Pilot] = []
    costs: dict[tuple[str, float], Tensor] = {}  # NLL of each held-out example

    def fly(name: str, temperature: float) -> None:
        new = Pilot(name, float(f"{temperature:.2g}"))
        if len(tried) < SHARE and (new.likelihood, new.temperature) not in {
            (p.likelihood, p.temperature) for p in tried
        }:
            how = {} if fixed else {"likelihood": name}
            found, cost = _flown(partial(draw, rest, temperature=new.temperature, **how), held, new)
            tried.append(found)
            if cost is not None:
                costs[new.likelihood, new.temperature] = cost
        tried.sort(key=lambda pilot: pilot.rank)

    for temperature in FIRST:
        fly(likelihood, temperature)
    if train.classes and not fixed:
        fly(NOISY, tried[0].temperature)
    best = tried[0]
    for factor in (math.sqrt(10), 1 / math.sqrt(10)):
        if best.temperature * factor <= 1:
            fly(best.likelihood, best.temperature * factor)
    best = tried[0]
    if best.nll is None:
        raise RunError('every pilot of temperature="auto" diverged: standardise the inputs, or give a temperature')
    tried = middle_first([_behind(pilot, best, costs) for pilot in tried])
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
        cost = nll_of_each(posterior, held)
    except InputError:
        raise
    except (RunError, RuntimeError, ValueError):
        pass  # diverged, or its predictions are not finite
    if cost is None or not bool(torch.isfinite(cost).all()):
        return replace(pilot, samples=samples, seconds=time.monotonic() - began), None
    return replace(pilot, nll=float(cost.mean()), samples=samples, seconds=time.monotonic() - began), cost


def nll_of_each(posterior: "Posterior", held: ImageData) -> Tensor:
    """−log of the predictive probability (or density) of each example's label."""
    if posterior.is_regression:
        mixture = posterior.regress(held.images).mixture
        assert mixture is not None
        known = held.labels.double().reshape(mixture.outputs.shape[1:])
        return nll_each(mixture._replace(targets=known))
    probs = posterior.predict(held.images).probs.double()
    return -probs.gather(1, held.labels[:, None].long()).clamp_min(SMALLEST).log()[:, 0]


def _behind(pilot: Pilot, best: Pilot, costs: dict[tuple[str, float], Tensor]) -> Pilot:
    """The pilot with how clearly it is behind the best."""
    mine, theirs = (costs.get((p.likelihood, p.temperature)) for p in (pilot, best))
    if mine is None or theirs is None or pilot == best:
        return replace(pilot, behind=0.0 if pilot == best else None)
    error = float((mine - theirs).std()) / math.sqrt(len(mine))
    return replace(pilot, behind=float((mine - theirs).mean()) / max(error, 1e-12))


def middle_first(pilots: list[Pilot]) -> list[Pilot]:
    """Of those as good as the best, with its likelihood, the one with the middle T comes first; the rest stay."""
    best = pilots[0]
    level = [p for p in pilots if p.behind is not None and p.behind <= 1 and p.likelihood == best.likelihood]
    level.sort(key=lambda p: p.temperature)
    chosen = level[(len(level) - 1) // 2]
    return [chosen, *(p for p in pilots if p is not chosen)]


def guessing(train: ImageData, likelihood: str) -> float | None:
    """The NLL of guessing, where there are classes."""
    law = build(likelihood)
    return guess(law, train.labels, len(train.classes)).cost if law.task == "classification" else None


def table(pilots: list[Pilot], known: float | None) -> str:
    """The pilots as people see them, the best first."""
    wide = max(len("likelihood"), *(len(p.likelihood) for p in pilots))
    lines = [f"{'likelihood':{wide}s}       T  held-out NLL  behind [s.e.]  samples  seconds"]
    for p in sorted(pilots, key=lambda p: p.rank):
        nll = "diverged" if p.nll is None else f"{p.nll:.3f}"
        behind = "" if p.behind is None else f"{p.behind:.1f}"
        start = f"{p.likelihood:{wide}s}  {p.temperature:6g}  {nll:>12s}  {behind:>13s}"
        lines.append(f"{start}  {p.samples:7d}  {p.seconds:7.1f}")
    best = pilots[0]
    lines.append(f"The run uses T = {best.temperature:g} and the {best.likelihood} likelihood.")
    if known is not None:
        lines[-1] += f" Guessing has an NLL of {known:.3f}."
    return "\n".join(lines)
