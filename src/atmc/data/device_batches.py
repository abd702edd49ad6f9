"""Batches of a data set that is on the device, capturable in a CUDA graph.

A run is one stream: the permutations of epoch 0, 1, 2, … one after the other, cut into batches of constant size, which
may straddle two epochs. `batch(step)` is a pure function of (data, seed, step), so resuming needs only the step.

The device holds the examples (`DeviceStore`) and a ring with the plans of two epochs. `batch` reads the step from a
device tensor, finds its slots in the ring, and gathers; all addresses stay constant. On the host, `ensure(step)` copies
the plan of the next epoch into the half of the ring that is no longer read, asynchronously in stream order.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.data.augment import parse_augment
from atmc.data.dataset import ImageData
from atmc.data.device_store import DeviceStore
from atmc.data.epoch_order import augment_words, plan
from atmc.data.image_decoding import LEAST_AREA
from atmc.data.training_batches import Batches

Kernel = Literal["auto", "plain", "triton"]


class DeviceBatches(Batches):
    """Shuffled, augmented, normalised batches of an in-memory data set, capturable in a CUDA graph.

    Args:
        batch_size: of the whole step; each of `world` processes gets an equal share of every batch.
        augment: "none", "crop", "flip", "crop-flip" (see `atmc.data.augment`) or "resized-crop-flip".
        side, least: of a resized crop its size (not set: that of the images) and the least share of the area.
        kernel: "triton", "plain" torch, or "auto", Triton if it works; all give the same bits.
        independent: draw every example from all data; an "epoch" is then as many draws as there are examples.
    """

    capturable = True

    def __init__(
        self,
        data: ImageData,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        augment: str = "none",
        seed: int = 0,
        *,
        pad: int = 4,
        rank: int = 0,
        world: int = 1,
        kernel: Kernel = "auto",
        independent: bool = False,
        side: int | None = None,
        least: float = LEAST_AREA,
    ) -> None:
        self._arrange(data.name, len(data), batch_size, seed, rank, world)
        self._resized = augment == "resized-crop-flip"
        self._side, self._least = side, least
        self._pad, self._flip = parse_augment("none" if self._resized else augment, pad)
        self._independent = independent
        augmented = self._pad or self._flip or self._resized
        if augmented and data.images.ndim != 4:
            raise InputError(
                f"augment = {augment!r} is for images [C, H, W]; an example of {data.name} is {data.shape}"
            )
        if self._resized and data.images.dtype != torch.uint8:
            raise InputError(f"augment = {augment!r} is for images in bytes; {data.name} is {data.images.dtype}")
        self.store = DeviceStore(data, device, dtype, self._pad)
        self.device, self.dtype = self.store.device, dtype
        self._share = batch_size // world
        self._lane = torch.arange(self._share, device=self.device) + rank * self._share
        # A batch of all examples is the same in any order: it is taken once, and no order is made.
        everything = batch_size == len(data) and world == 1 and not augmented
        self._all = self.store.examples(torch.arange(len(data), device=self.device)) if everything else None
        self._allocate_ring()
        fits = _triton_serves(self.store) and not self._resized
        if kernel == "triton" and not fits:
            raise InputError("kernel = 'triton' needs Triton, a CUDA device and uint8 images; choose 'auto' or 'plain'")
        self._triton = fits and kernel != "plain"

    def _allocate_ring(self) -> None:
        self._ring = torch.zeros(2 * self.num_data, 3, dtype=torch.int64, device=self.device)
        self._resident: list[int | None] = [None, None]
        self._step = torch.zeros((), dtype=torch.int64, device=self.device)

    @property
    def most_ahead(self) -> int | None:
        """Steps that `ensure` takes at once; None for any number, where every batch is all of the data."""
        return None if self._all is not None else self.num_data // self.batch_size

    def with_seed(self, seed: int) -> DeviceBatches:
        """The same data in another order, for another chain; the store is shared."""
        other = copy.copy(self)
        other.seed = seed
        other._allocate_ring()
        return other

    def start(self, step: int = 0) -> None:
        self._resident = [None, None]
        self.ensure(step)

    def ensure(self, step: int, count: int = 1) -> None:
        """Make the plans of the `count` steps from `step` on resident. Call it before submitting them.

        Once an epoch the next plan is made (a few milliseconds for 50,000 examples) and copied in the order of the
        current stream: call it on the stream that runs, or replays, the steps.
        """
        if step < 0 or count < 1:
            raise ValueError(f"there are no {count} steps from {step} on")
        if self._all is not None:
            return
        if count * self.batch_size > self.num_data:
            raise ValueError(f"{count} steps of {self.batch_size} are more than one epoch of {self.num_data} examples")
        epoch = self.epoch_at(step)
        for wanted in (epoch, epoch + 1):
            if self._resident[wanted % 2] != wanted:
                self._upload(wanted)

    def _upload(self, epoch: int) -> None:
        rows = self._addresses(epoch)
        half = self._ring[epoch % 2 * self.num_data :][: self.num_data]
        # Pinned, or the copy would wait for the device; torch keeps the pinned memory until the copy is done.
        half.copy_(rows.pin_memory() if self.device.type == "cuda" else rows, non_blocking=True)
        self._resident[epoch % 2] = epoch

    def _addresses(self, epoch: int) -> Tensor:
        if self._resized:
            shown = plan(self.seed, epoch, self.num_data, independent=self._independent).order
            drawn = torch.from_numpy(augment_words(self.seed, epoch, self.num_data).view(np.int64))
            return torch.cat([drawn, shown[:, None]], 1)
        return self.store.addresses(plan(self.seed, epoch, self.num_data, self._pad, self._flip, self._independent))

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """The examples of global step `step`: inputs in `dtype` (images channels-last) and labels.

        With a device tensor the call can be captured, and `ensure` must have been called for that step; with a number
        that is done here.
        """
        if self._all is not None:
            return self._all
        if isinstance(step, Tensor) and step.device.type == "cpu":
            step = int(step)
        if isinstance(step, int):
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise ValueError("a captured step needs its number as a device tensor, or it would repeat one batch")
            self.ensure(step)
        if self._triton:
            from atmc.data import augment_triton

            counter = step if isinstance(step, Tensor) else self._step.fill_(step)
            first = self.rank * self._share
            return augment_triton.gather(self.store, self._ring, counter, self.batch_size, first, self._share)
        slot = torch.remainder(torch.add(self._lane, step, alpha=self.batch_size), 2 * self.num_data)
        return self._take(self._ring[slot])

    def _take(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        if self._resized:
            return self.store.resized(slots, self._side, self._least)
        return self.store.windows(slots) if self._pad or self._flip else self.store.examples(slots[:, 2])

    def epoch_batches(self, epoch: int, start: int = 0, drop_last: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch for plain loops, from batch `start` on; does not disturb a captured run."""
        rows = self._addresses(epoch).to(self.device)
        for at in range(start * self.batch_size, self.num_data, self.batch_size):
            whole = rows[at : at + self.batch_size]
            if drop_last and len(whole) < self.batch_size:
                return
            yield self._take(whole.tensor_split(self.world)[self.rank])

    def close(self) -> None:
        """Nothing to close."""


def _triton_serves(store: DeviceStore) -> bool:
    """Whether the Triton kernel works for this data and device."""
    bytes_and_classes = store.table is not None and store.labels.ndim == 1
    return store.device.type == "cuda" and bytes_and_classes and importlib.util.find_spec("triton") is not None
