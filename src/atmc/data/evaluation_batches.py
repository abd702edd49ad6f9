"""Batches for evaluation: in the data set's order, without augmentation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.data.dataset import ImageData
from atmc.data.device_store import DeviceStore


class EvalBatches:
    """Batches in the data set's order. Iterating gives every example once, the last batch smaller.

    `batch(i)` can be captured: i may be a device tensor, and every batch has `batch_size` rows; the last one is padded
    with the last example, and only its first `count(i)` rows count. A `DeviceStore` may be given instead of a data set.
    """

    def __init__(
        self,
        data: ImageData | DeviceStore,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.store = data if isinstance(data, DeviceStore) else DeviceStore(data, device, dtype)
        self.data, self.batch_size, self.num_data = self.store.data, batch_size, len(self.store.data)
        if batch_size < 1 or not self.num_data:
            raise InputError(f"batch_size = {batch_size} makes no batches of {self.num_data} examples")
        self._lane = torch.arange(batch_size, device=self.store.device)

    def __len__(self) -> int:
        return -(-self.num_data // self.batch_size)

    def count(self, i: int) -> int:
        """How many rows of batch `i` are examples and not filling."""
        return max(0, min(self.batch_size, self.num_data - i * self.batch_size))

    def batch(self, i: int | Tensor) -> tuple[Tensor, Tensor]:
        """Batch `i`, always of full size; capturable when `i` is a device tensor."""
        index = torch.add(self._lane, i, alpha=self.batch_size).clamp_(max=self.num_data - 1)
        return self.store.examples(index)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(len(self)):
            x, y = self.batch(i)
            yield x[: self.count(i)], y[: self.count(i)]
