"""The interface of training batches: one stream of epochs, indexed by the global step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from atmc.common.errors import InputError


class Batches(ABC):
    """Epoch after epoch, each a permutation of the data, cut into batches of constant size.

    `batch(step)` depends on the data, the seed and the step alone.
    """

    capturable: bool
    num_data: int
    batch_size: int
    seed: int
    device: torch.device
    dtype: torch.dtype
    rank: int
    world: int
    #: Of the examples of the last `batch`, [b]: Σ weights · nll estimates the mean nll. None: all weigh 1/b.
    weights: Tensor | None = None
    #: What decides how often each example is drawn, changed in place by `note` alone; None where nothing does.
    scores: Tensor | None = None

    def _arrange(self, name: str, num_data: int, batch_size: int, seed: int, rank: int, world: int) -> None:
        if not 1 <= batch_size <= num_data:
            raise InputError(f"batch_size = {batch_size} does not fit {name}: choose 1 to {num_data}")
        if not 0 <= rank < world or batch_size % world:
            raise InputError(f"batch_size = {batch_size} does not split over {world} processes (this is {rank})")
        self.num_data, self.batch_size, self.seed, self.rank, self.world = num_data, batch_size, seed, rank, world

    @property
    def steps_per_epoch(self) -> float:
        """N / batch, rarely a whole number: epoch boundaries may fall inside a batch."""
        return self.num_data / self.batch_size

    def steps_for(self, epochs: float) -> int:
        """The number of steps after which `epochs` epochs have been seen in full."""
        return math.ceil(epochs * self.num_data / self.batch_size - 1e-9)

    def epoch_at(self, step: int) -> int:
        """The epoch that the first example of step `step` belongs to."""
        return step * self.batch_size // self.num_data

    @abstractmethod
    def start(self, step: int = 0) -> None:
        """Prepare for step `step`, after a resume or a rollback."""

    @abstractmethod
    def ensure(self, step: int, count: int = 1) -> None:
        """Prepare the `count` steps from `step` on. Call it before submitting them."""

    @abstractmethod
    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """The examples of global step `step`: inputs in `dtype` (images channels-last) and labels, on the device."""

    @abstractmethod
    def epoch_batches(self, epoch: int, start: int = 0, drop_last: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch for plain loops, from batch `start` on: every example once, the last batch smaller (or dropped)."""

    @abstractmethod
    def with_seed(self, seed: int) -> Batches:
        """The same data in another order, for another chain."""

    def for_readings(self, seed: int) -> Batches:
        """Other batches of the same law as this chain's next one, to look at between its steps."""
        return self.with_seed(seed)

    def note(self, sizes: Tensor) -> None:  # noqa: B027  # nothing to do where examples have no scores
        """Take in ‖∂nll/∂outputs‖ of each example of the last `batch`, where it has weights."""

    @abstractmethod
    def close(self) -> None:
        """Stop workers, if there are any."""
