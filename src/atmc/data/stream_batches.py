"""Batches of a data set that does not fit on the device: read by worker processes and copied while the device works.

Order and augmentation come from `epoch_order`, a pure function of (seed, epoch), and are sent with each request. So the
batch of a step does not depend on the number of workers or on where the run was resumed.
"""

from __future__ import annotations

import copy
import gc
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from atmc.common.errors import InputError, RunError
from atmc.data import epoch_order
from atmc.data.augment import lookup_table, normalise, table_offsets
from atmc.data.dataset import ImageData
from atmc.data.image_decoding import LEAST_AREA
from atmc.data.streamed_source import ArraySource, Cut, Source
from atmc.data.training_batches import Batches

MOST_SKIPPED = 64  # images of one batch; a set with more is broken, not dusty
RESTARTS = 2  # of workers that died, at one step
PATIENCE = 600.0  # seconds without a batch from workers that are alive


@dataclass(frozen=True)
class Request:
    """One batch: which examples, and the random words of their augmentation (None: as they are)."""

    index: npt.NDArray[np.int64]
    words: epoch_order.Words | None


class _Reader(Dataset[object]):
    """Answers requests, in a worker or in this process; an error comes back as text.

    With `skip`, an image that cannot be read is replaced by the next one of the set that can, with its own label: so
    batches keep their size, and a resumed run sees the same. What was skipped comes back with the batch.
    """

    def __init__(self, source: Source, cut: Cut, skip: bool = False) -> None:
        self._source, self._cut, self._skip, self.name = source, cut, skip, source.name

    def __getitem__(self, request: Request) -> object:
        words = [None] * len(request.index) if request.words is None else [(int(a), int(b)) for a, b in request.words]
        index, images = request.index.copy(), []
        skipped: list[str] = []
        try:
            for at, drawn in enumerate(words):
                while True:
                    try:
                        images.append(self._source.example(int(index[at]), self._cut, drawn))
                        break
                    except InputError as error:
                        if not self._skip or len(skipped) >= MOST_SKIPPED:
                            raise
                        skipped.append(str(error))
                        index[at] = (index[at] + 1) % len(self._source)
        except (InputError, OSError, MemoryError) as error:
            return f"{self._source.name}: {error}"
        return torch.from_numpy(np.stack(images)), self._source.labels[torch.from_numpy(index)], skipped


def begin_worker(worker: int) -> None:
    """What a worker does first, so that nothing of the process it was forked from can end it.

    Ctrl-C is for the run: a worker that died of it would turn a clean stop into an error. Garbage of the run may own
    CUDA memory, events or graphs, and to free those in a forked process is an error, so a worker collects only its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()


class WorkerDiedError(RunError):
    """A worker process ended, or answered nothing for a long time."""


class _Pipe:
    """From requests to finished batches on the device."""

    def __init__(
        self,
        source: Source,
        cut: Cut,
        device: torch.device,
        dtype: torch.dtype,
        workers: int,
        prefetch: int,
        skip: bool = False,
    ) -> None:
        self._reader, self._device = _Reader(source, cut, skip), device
        self._workers, self._prefetch = workers, prefetch
        self._told: set[str] = set()  # images that were skipped
        channels, _, width = source.shape
        width = cut.side or width
        self._table = lookup_table(source.mean, source.std, channels, dtype, device)
        self._offsets = table_offsets(channels, width, device)
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call, unused-ignore]

    def run(self, requests: Iterator[Request]) -> Iterator[tuple[Tensor, Tensor]]:
        loader: DataLoader[object] = DataLoader(
            self._reader,
            batch_size=None,
            sampler=requests,
            num_workers=self._workers,
            prefetch_factor=self._prefetch if self._workers else None,
            pin_memory=self._side is not None,
            worker_init_fn=begin_worker,
            timeout=PATIENCE if self._workers else 0.0,
            generator=torch.Generator(),  # the loader seeds its workers from this instead of moving the global one
        )
        answers = iter(loader)
        while True:
            try:
                answer: Any = next(answers, None)
            except RuntimeError as error:
                if "DataLoader" not in str(error):
                    raise
                raise WorkerDiedError(f"reading {self._reader.name}: {' '.join(str(error).split())[:300]}") from error
            if answer is None:
                return
            if isinstance(answer, str):
                raise RunError(answer)
            pixels, labels, skipped = answer
            for line in skipped:
                if line not in self._told:
                    self._told.add(line)
                    warnings.warn(f"skipped: {line}", RuntimeWarning, stacklevel=2)
            yield self._finish(pixels, labels)

    def _finish(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self._side is None:
            return normalise(pixels, self._table, self._offsets).permute(0, 3, 1, 2), labels
        # On a stream of its own the copy does not queue behind the step before, which is still running.
        with torch.cuda.stream(self._side):
            pixels = pixels.to(self._device, non_blocking=True)
            labels = labels.to(self._device, non_blocking=True)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._side)
        pixels.record_stream(current)
        labels.record_stream(current)
        return normalise(pixels, self._table, self._offsets).permute(0, 3, 1, 2), labels


class StreamBatches(Batches):
    """Shuffled, augmented, normalised batches of a `Source` (or of an ImageData left in host memory).

    For the same seed, and data without shards, the batches are those of `DeviceBatches`, bit for bit. `augment` may
    also be "resized-crop-flip". `workers` 0 reads in this process. A step out of order restarts the queue. Workers that
    die are started again, with a warning, `RESTARTS` times a step. `corrupt` "skip" leaves out what cannot be read.
    """

    capturable = False

    def __init__(
        self,
        source: Source | ImageData,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        augment: str = "none",
        seed: int = 0,
        *,
        pad: int = 4,
        rank: int = 0,
        world: int = 1,
        workers: int = 2,
        prefetch: int = 4,
        side: int | None = None,
        least: float = LEAST_AREA,
        corrupt: str = "refuse",
    ) -> None:
        self.source = ArraySource(source) if isinstance(source, ImageData) else source
        self._arrange(self.source.name, len(self.source), batch_size, seed, rank, world)
        self.device, self.dtype = torch.device(device), dtype
        self._cut = Cut.parse(augment, pad, side, least)
        self._pipe = _Pipe(self.source, self._cut, self.device, dtype, workers, prefetch, corrupt == "skip")
        self._queue: Iterator[tuple[Tensor, Tensor]] | None = None
        self._next = -1

    def _epoch(self, epoch: int) -> Request:
        augmented = self._cut.pad or self._cut.flip or self._cut.resized
        words = epoch_order.augment_words(self.seed, epoch, self.num_data) if augmented else None
        return Request(self.source.order(self.seed, epoch), words)

    def _requests(self, step: int) -> Iterator[Request]:
        """This process's share of every batch from `step` on, without end."""
        share = self.batch_size // self.world
        epochs: dict[int, Request] = {}
        while True:
            position = np.arange(share) + (step * self.batch_size + self.rank * share)
            first, last = int(position[0]) // self.num_data, int(position[-1]) // self.num_data
            epochs = {e: epochs.get(e) or self._epoch(e) for e in range(first, last + 1)}
            parts = [(epochs[e], position[position // self.num_data == e] - e * self.num_data) for e in epochs]
            index = np.concatenate([epoch.index[rows] for epoch, rows in parts])
            words = [epoch.words[rows] for epoch, rows in parts if epoch.words is not None]
            yield Request(index, np.concatenate(words) if words else None)
            step += 1

    def start(self, step: int = 0) -> None:
        """Start the workers at step `step`, whatever came before."""
        if step < 0:
            raise ValueError(f"there is no step {step}")
        self.close()
        self._queue, self._next = self._pipe.run(self._requests(step)), step

    def ensure(self, step: int, count: int = 1) -> None:
        """Start the workers at `step` unless that is what they are about to deliver."""
        if self._queue is None or step != self._next:
            self.start(step)

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """The examples of global step `step`, a number the host knows."""
        step = int(step)
        for left in reversed(range(RESTARTS + 1)):
            self.ensure(step)
            assert self._queue is not None
            try:
                found = next(self._queue)
            except WorkerDiedError as error:
                self._queue = None
                if not left:
                    raise
                warnings.warn(f"{error}; its workers are started again", RuntimeWarning, stacklevel=2)
            except BaseException:
                self._queue = None
                raise
            else:
                self._next = step + 1
                return found
        raise AssertionError("the last attempt returns or raises")

    def epoch_batches(self, epoch: int, start: int = 0, drop_last: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch by itself, beside the stream: every example once, the last batch smaller (or dropped)."""
        whole = self._epoch(epoch)
        end = self.num_data - self.num_data % self.batch_size if drop_last else self.num_data
        rows = (
            np.arange(at, min(at + self.batch_size, end)) for at in range(start * self.batch_size, end, self.batch_size)
        )
        mine = (np.array_split(row, self.world)[self.rank] for row in rows)
        return self._pipe.run(Request(whole.index[p], None if whole.words is None else whole.words[p]) for p in mine)

    def with_seed(self, seed: int) -> StreamBatches:
        """The same source in another order, with workers of its own."""
        other = copy.copy(self)
        other.seed, other._queue, other._next = seed, None, -1
        return other

    def close(self) -> None:
        """Stop the workers."""
        if self._queue is not None:
            getattr(self._queue, "close", lambda: None)()
        self._queue = None


class StreamEvalBatches:
    """A source in its own order, nothing augmented: every example once, the last batch smaller."""

    def __init__(
        self,
        source: Source | ImageData,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        workers: int = 2,
        prefetch: int = 4,
    ) -> None:
        source = ArraySource(source) if isinstance(source, ImageData) else source
        if batch_size < 1 or not len(source):
            raise InputError(f"batch_size = {batch_size} makes no batches of {len(source)} examples")
        self.data, self.batch_size, self.num_data = source, batch_size, len(source)
        self._pipe = _Pipe(source, Cut(0, False, False), torch.device(device), dtype, workers, prefetch)

    def __len__(self) -> int:
        return -(-self.num_data // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        every = np.arange(self.num_data)
        cuts = range(0, self.num_data, self.batch_size)
        return self._pipe.run(Request(every[at : at + self.batch_size], None) for at in cuts)
