"""Training batches of a data set whose own transform draws at random: read anew, by its workers, in every epoch.

The order is that of every other data set, and the random numbers of an example are its own, so that the batch of a step
does not depend on the workers or on where a run was resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from atmc.common.errors import RunError
from atmc.data import epoch_order
from atmc.data.own_data import OwnData, drawing, reseed, split_batch
from atmc.data.stream_batches import Request, StreamBatches, begin_worker


class _Reader(Dataset[object]):
    """Answers requests, in a worker or in this process; an error comes back as text."""

    def __init__(self, data: OwnData) -> None:
        self._data = data

    def __getitem__(self, request: Request) -> object:
        assert request.words is not None
        items = []
        try:
            with drawing(0):
                for index, word in zip(request.index, request.words, strict=True):
                    reseed(int(word[0]))
                    items.append(self._data.dataset[int(index)])
                return split_batch(self._data.collate(items))
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            return f"{type(self._data.dataset).__name__} failed ({type(error).__name__}: {said})"


class _Pipe:
    """From requests to finished batches on the device."""

    def __init__(self, data: OwnData, device: torch.device, dtype: torch.dtype) -> None:
        self._reader, self._device, self._dtype, self._workers = _Reader(data), device, dtype, data.workers
        self._mean, self._std = (torch.tensor(values, device=device) for values in (data.mean, data.std))
        self._shape = data.shape

    def run(self, requests: Iterator[Request]) -> Iterator[tuple[Tensor, Tensor]]:
        loader: DataLoader[Any] = DataLoader(
            self._reader,
            batch_size=None,
            sampler=requests,
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            worker_init_fn=begin_worker,
            generator=torch.Generator(),
        )
        for answer in loader:
            if isinstance(answer, str):
                raise RunError(answer)
            x, y = answer
            if tuple(x.shape[1:]) != self._shape:
                raise RunError(f"examples of shape {list(x.shape[1:])}, where the first had {list(self._shape)}")
            yield self._finish(x), y.to(self._device, non_blocking=True)

    def _finish(self, x: Tensor) -> Tensor:
        x = x.to(self._device, non_blocking=True)
        if x.dtype == torch.uint8:
            x = x.float() / 255
            if len(self._mean):
                shape = (1, -1, *[1] * (x.ndim - 2))
                x = (x - self._mean.view(shape)) / self._std.view(shape)
        return x.to(self._dtype) if x.is_floating_point() else x


class OwnBatches(StreamBatches):
    """Shuffled batches of an `OwnData`, drawn anew by its transform."""

    def __init__(
        self,
        data: OwnData,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._arrange(data.name, len(data), batch_size, seed, rank, world)
        self.device, self.dtype = torch.device(device), dtype
        self._pipe = _Pipe(data, self.device, dtype)  # type: ignore[assignment]
        self._queue: Iterator[tuple[Tensor, Tensor]] | None = None
        self._next = -1

    def _epoch(self, epoch: int) -> Request:
        order = epoch_order.order(self.seed, epoch, self.num_data)
        return Request(order, epoch_order.augment_words(self.seed, epoch, self.num_data))
