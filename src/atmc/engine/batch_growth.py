"""The mini-batch that leaves the sampled law as it is: short pilots read T along the gradient noise, and batches grow.

The excess of the temperature along the noise goes with rate/batch. From a batch b at the rate that curvature allows, a
pilot of the sampler reads it. While it is above what is allowed, by more than its error, the batch becomes as many
times larger as the reading asks for, in powers of two. The number of epochs is the caller's and stays, so a larger
batch means fewer steps and no more gradients; LEAST_STEPS of them have to be left. Where the batch cannot grow further
the step size falls instead. b at rate r/2 and 2b at rate r have the same excess and mix alike in an epoch, but the
larger batch has half the steps (benchmarks/batch_growth.py).

Pilots go at the full step. In a cycle steps fall from it to 0, and the excess with them: its mean is half of what a
pilot reads. Friction along the noise (`sampler.noise_rank`) takes most of it out; this is for what it leaves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EXCESS = 0.1  # over T, along the noise, in the mean over a cycle
FULL = 2 * EXCESS  # at its full step
LEAST_STEPS = 4000  # of a run: 20 cycles of 200
PILOTS = 3  # at most: 1,100 gradients each, so 0.8 of the gradients of the shortest run that has them
LEAST_TIMES, MOST_TIMES = 1.4, 16.0  # by which a batch grows, or a rate falls, after one of them
SETTLE, STOPS, BETWEEN, GRADIENTS = 200, 100, 6, 3  # steps before the first reading; readings; steps; gradients at each


@dataclass(frozen=True)
class Choice:
    """A batch and rate, what the last pilot read there (over T), its error, and whether that is still too much."""

    batch: int
    rate: float
    reading: float
    error: float
    first: "Choice | None" = None  # what the first pilot had and read

    @property
    def off(self) -> bool:
        return above(self.reading, self.error)

    @property
    def said(self) -> str:
        """What was chosen and why, in one line."""
        now = f"{min(self.reading, 999):.2g} times T"
        if self.first is None:
            return f"batches of {self.batch}: along their gradient noise a pilot reads {now}"
        slower = (
            f" and {self.rate / self.first.rate:.2g} of the step size's rate" if self.rate < self.first.rate else ""
        )
        line = f"batches of {self.batch}{slower}: along the gradient noise a pilot reads {now}"
        line += f" ({min(self.first.reading, 999):.2g} with batches of {self.first.batch})"
        still = ", which is still too much: give more epochs, so that batches may grow, or pass batch_size="
        return line + (still if self.off else "")


def above(reading: float, error: float) -> bool:
    """Whether T along the noise is too high by more than chance."""
    return not reading - error <= 1.0 + FULL


def choose_batch(read: Callable[[int, float], tuple[float, float]], batch: int, most: int, rate: float) -> Choice:
    """The smallest batch up to `most` and the largest rate up to `rate` that pilots find right.

    `read(batch, rate)` is a pilot: T along the noise over T, and its error.
    """
    first = None
    for number in range(PILOTS):
        found = Choice(batch, rate, *read(batch, rate), first)
        first = first or found
        if not found.off or number == PILOTS - 1:
            break
        times = (found.reading - 1.0) / FULL if math.isfinite(found.reading) else MOST_TIMES
        times = min(max(times, LEAST_TIMES), MOST_TIMES)
        if batch < most:
            batch = min(most, batch * 2 ** max(1, round(math.log2(times))))
        else:
            rate = float(f"{rate / times:.2g}")
    return found


def pilot(
    params: list[Tensor],
    gradient: Callable[[], list[Tensor]],
    kind: type,
    num_data: int,
    rate: float,
    noise_rank: int,
    temperature: float,
    momentum: float,
) -> tuple[float, float]:
    """T along the noise over T, and its error, of a short chain of `kind` from where `params` are.

    It moves them on, unless it diverges.
    """
    before = [p.detach().clone() for p in params]
    speed = math.sqrt(rate / num_data)
    options = {"noise_rank": noise_rank, "temperature": temperature, "momentum_init": "law", "seed": 0}
    chain = kind.from_speeds(  # type: ignore[attr-defined]
        params, lr=1e-3, speed=speed, max_speed=speed / 0.3, momentum=momentum, nonfinite="ignore", **options
    )
    found = []
    for step in range(SETTLE + STOPS * BETWEEN):
        for p, g in zip(params, gradient(), strict=True):
            p.grad = g
        chain.step()
        if step >= SETTLE and step % BETWEEN == 0:
            found.append(chain.noise_temperature(*(gradient() for _ in range(GRADIENTS))).double())
    for p in params:
        p.grad = None
    values = torch.stack(found) / temperature
    if not bool(values.isfinite().all()):
        with torch.no_grad():
            torch._foreach_copy_(params, before)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
