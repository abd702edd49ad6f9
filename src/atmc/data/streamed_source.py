"""Data sets whose examples are read when needed, for `StreamBatches`."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.data import epoch_order
from atmc.data.augment import crop_flip, parse_augment
from atmc.data.dataset import ImageData, channel_statistics, digest_of
from atmc.data.decoded_cache import DecodedCache
from atmc.data.image_decoding import LEAST_AREA, View, Words, decode, naming, recut

IN_MEMORY = 8 << 30  # bytes above which a data set is to be streamed
# ImageNet's statistics, for sets too large to be read first.
PHOTO_MEAN, PHOTO_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STREAM_AUGMENTS = ("none", "crop", "flip", "crop-flip", "resized-crop-flip")


@dataclass(frozen=True)
class Cut:
    """The augmentation of a stream: pad-crop and flip, or a random resized crop of some side and least area."""

    pad: int
    flip: bool
    resized: bool
    side: int | None = None  # not set: the size of the examples
    least: float = LEAST_AREA

    @classmethod
    def parse(cls, augment: str, pad: int, side: int | None = None, least: float = LEAST_AREA) -> Cut:
        if augment not in STREAM_AUGMENTS:
            raise InputError(f"augment = {augment!r} is unknown: choose one of {', '.join(STREAM_AUGMENTS)}")
        if augment == "resized-crop-flip":
            return cls(0, False, True, side, least)
        return cls(*parse_augment(augment, pad), False)


class Source(ABC):
    """A data set whose labels are known and whose images are read one at a time, from any process.

    `groups` says which shard each example lies in, where that matters for the speed of reading.
    """

    name: str
    split: str
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, ...]
    digest: str
    groups: npt.NDArray[np.int64] | None = None
    window: int = 8

    def __len__(self) -> int:
        return len(self.labels)

    def order(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """The order in which an epoch visits the examples, each once."""
        if self.groups is None:
            return epoch_order.order(seed, epoch, len(self))
        return epoch_order.grouped_order(seed, epoch, self.groups, self.window)

    @abstractmethod
    def read(self, index: int, words: Words | None = None, cut: Cut | None = None) -> npt.NDArray[np.uint8]:
        """Example `index` as [H, W, C]; with `words`, the random resized crop they stand for, as `cut` says."""

    def example(self, index: int, cut: Cut, words: Words | None) -> npt.NDArray[np.uint8]:
        """Example `index` augmented as `cut` and its random words say (no words: as it is)."""
        if words is None or cut.resized:
            return self.read(index, words, cut)
        drawn = np.array([words], dtype=np.uint64)
        dx, dy = epoch_order.crop_offsets(drawn, cut.pad)
        mirrored = cut.flip and bool(epoch_order.flips(drawn)[0])
        return crop_flip(self.read(index), cut.pad, int(dx[0]), int(dy[0]), mirrored)

    def subset(self, index: Tensor, split: str) -> Source:
        """The examples at `index` as a source."""
        return Subset(self, index, split)

    def in_memory(self, statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None) -> ImageData:
        """All of it, decoded, with the given statistics or its own."""
        size = len(self) * int(np.prod(self.shape))
        if size > IN_MEMORY:
            raise InputError(f"{self.name} takes {size:,} bytes of memory: add stream=1, or choose a smaller size")
        channels, height, width = self.shape
        images = torch.empty(len(self), channels, height, width, dtype=torch.uint8)

        def fill(index: int) -> None:
            images[index] = torch.from_numpy(self.read(index)).permute(2, 0, 1)

        with ThreadPoolExecutor() as pool:  # decoding releases the interpreter's lock
            for _ in pool.map(fill, range(len(self))):
                pass
        mean, std = statistics or channel_statistics(images)
        digest = digest_of(images, self.labels)
        return ImageData(self.name, self.split, images, self.labels, self.classes, mean, std, digest)

    def _take_after(self, other: Source | ImageData) -> None:
        self.name, self.split, self.labels, self.classes = other.name, other.split, other.labels, other.classes
        self.mean, self.std, self.shape, self.digest = other.mean, other.std, other.shape, other.digest


class Encoded(Source):
    """A source of image files: `raw` finds the bytes, this decodes them.

    With `keep`, images are decoded to squares of that side, kept in host memory as bytes, and everything else is cut
    out of those. So an image is decoded once by all workers together, and what is read does not depend on whether it
    was kept already.
    """

    view: View
    keep: View | None = None
    _cache: DecodedCache | None = None

    def _dress(self, view: View, keep: int = 0) -> None:
        self.view, self.shape = view, view.shape
        if keep:
            if keep < min(view.height, view.width):
                raise InputError(f"{self.name}: cache = {keep} is smaller than the examples: choose their size or more")
            self.keep = View(keep, keep, view.channels)
            self._cache = DecodedCache(self.name, len(self.labels), (keep, keep, view.channels))
        self.mean, self.std = (PHOTO_MEAN, PHOTO_STD) if view.channels == 3 else ((0.45,), (0.225,))

    @abstractmethod
    def raw(self, index: int) -> tuple[bytes, str]:
        """The bytes of example `index`, and its name for messages."""

    def read(self, index: int, words: Words | None = None, cut: Cut | None = None) -> npt.NDArray[np.uint8]:
        view, least = _view(self.view, words, cut)
        if self.keep is None:
            data, where = self.raw(index)
            with naming(where):
                return decode(data, view, words, least=least)
        pixels = None if self._cache is None else self._cache.get(index)
        if pixels is None:
            data, where = self.raw(index)
            with naming(where):
                pixels = decode(data, self.keep)
            if self._cache is not None:
                self._cache.put(index, pixels)
        return recut(pixels, view, words, least)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}  # shared with forked workers alone


def _view(view: View, words: Words | None, cut: Cut | None) -> tuple[View, float]:
    """What a crop is brought to, and its least area."""
    if words is None or cut is None:
        return view, LEAST_AREA
    side = cut.side
    return (view if side is None else replace(view, height=side, width=side)), cut.least


class ArraySource(Source):
    """A data set in host memory as a source."""

    def __init__(self, data: ImageData) -> None:
        if data.images.dtype != torch.uint8 or data.images.ndim != 4:
            raise InputError(f"{data.name}: only uint8 images [N, C, H, W] can be streamed")
        self._take_after(data)
        self._images = data.images

    def read(self, index: int, words: Words | None = None, cut: Cut | None = None) -> npt.NDArray[np.uint8]:
        pixels = np.ascontiguousarray(self._images[index].permute(1, 2, 0).numpy())
        if words is None:
            return pixels
        if self.shape[0] not in (1, 3):
            raise InputError(f"{self.name}: resized-crop-flip is for images with 1 or 3 channels, not {self.shape[0]}")
        view, least = _view(View.of(self.shape), words, cut)
        return recut(pixels, view, words, least)


class Subset(Source):
    """Some examples of another source."""

    def __init__(self, whole: Source, index: Tensor, split: str) -> None:
        self._take_after(whole)
        self._whole, self._index = whole, index.numpy()
        self.split, self.labels = split, whole.labels[index]
        self.digest = hashlib.sha256(f"{whole.digest} {digest_of(index, self.labels)}".encode()).hexdigest()
        self.groups = None if whole.groups is None else whole.groups[self._index]
        self.window = whole.window

    def read(self, index: int, words: Words | None = None, cut: Cut | None = None) -> npt.NDArray[np.uint8]:
        return self._whole.read(int(self._index[index]), words, cut)
