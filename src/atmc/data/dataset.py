"""A data set in memory, and the folder for data sets on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atmc.data.checked_files import Expected, Progress
from atmc.data.dataset_names import Name


@dataclass(frozen=True)
class ImageData:
    """Examples and labels of one split.

    `images` is uint8 [N, C, H, W] for the named data sets; custom tensors may be floating and of any shape [N, …].
    `mean` and `std` are per channel, in units of [0, 1] (pixel / 255), from the training split; if empty, the images
    are not normalised.
    """

    name: str
    split: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    layout: Any = None  # where the images are several inputs of a network, packed (`atmc.common.packed_inputs`)

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(f"{self.name}: {len(self.images)} images but {len(self.labels)} labels")
        if len(self.mean) != len(self.std):
            raise ValueError(f"{self.name}: {len(self.mean)} means but {len(self.std)} standard deviations")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example, (C, H, W) for images."""
        return tuple(self.images.shape[1:])

    def subset(self, index: Tensor, split: str | None = None) -> ImageData:
        """The examples at `index`, in that order, as a data set."""
        images, labels = self.images[index], self.labels[index]
        return replace(self, split=split or self.split, images=images, labels=labels, digest=digest_of(images, labels))

    @classmethod
    def from_tensors(
        cls,
        images: Tensor,
        labels: Tensor,
        *,
        name: str = "tensors",
        split: str = "train",
        classes: tuple[str, ...] | None = None,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
    ) -> ImageData:
        """A data set from tensors. Classes of integer labels are named 0, 1, … by default.

        uint8 images without `mean` and `std` get their own; floating images are taken as they are.
        """
        images, labels = images.detach().cpu(), labels.detach().cpu()
        if classes is None:
            whole = not labels.is_floating_point() and labels.ndim == 1 and len(labels) > 0
            classes = tuple(str(c) for c in range(int(labels.max()) + 1)) if whole else ()
        if images.dtype == torch.uint8 and not mean:
            mean, std = channel_statistics(images)
        return cls(name, split, images, labels, classes, mean, std, digest_of(images, labels))


@dataclass(frozen=True)
class Named:
    """A data set that has a name: what it is, and how to load and fetch it. `catalogue.NAMED` lists them."""

    name: str
    summary: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    load: Callable[[Path, str, Name | None], ImageData]  # from the folder of all data sets; a split; a name's options
    fetch: Callable[[Path, Path | None, Progress], Path] | None = None  # into that folder, from a file or folder
    folder: str = ""  # its own, in that folder
    files: tuple[Expected, ...] = ()  # what must be there, with checksums
    source: str = ""  # where it comes from, if it needs no fetching
    state: Callable[[Path], tuple[str, str]] | None = None  # instead of checking `files`: the state, and the cure
    stream: Callable[[Path, str, Name | None], Any] | None = None  # a `Source`, where it can be streamed


@dataclass(frozen=True)
class DatasetInfo:
    """One line of `atmc data list`."""

    name: str
    summary: str
    train: int | None
    test: int | None
    shape: tuple[int, ...] | None
    classes: int | None
    state: str  # "ready", "absent", "damaged", or "pattern" for a family of names such as folder:PATH
    detail: str  # what is damaged or missing, or how to name one of the family
    path: Path | None


def default_root() -> Path:
    """The folder for data sets: ATMC_DATA, or ~/.cache/atmc."""
    named = os.environ.get("ATMC_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "atmc"


def digest_of(images: Tensor, labels: Tensor) -> str:
    """SHA-256 of the bytes of images and labels, as kept in a run's manifest."""
    seal = hashlib.sha256()
    for tensor in (images, labels):
        # A copy if need be: one row of a matrix counts as contiguous whatever its stride.
        flat = tensor.detach().cpu().reshape(-1).contiguous()
        flat = flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)
        seal.update(flat.view(torch.uint8).numpy().data)
    return seal.hexdigest()


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per-channel mean and standard deviation of uint8 images [N, C, …] in units of [0, 1].

    From a histogram, so that the result does not depend on the order or the number of threads of a sum. [N, D] counts
    as one channel. A constant channel gets deviation 1.
    """
    channels = images.shape[1] if images.ndim > 2 else 1
    flat = images.reshape(len(images), channels, -1)
    means, deviations = [], []
    for c in range(channels):
        counts = torch.bincount(flat[:, c].reshape(-1).int(), minlength=256).double()
        value = torch.arange(256, dtype=torch.float64) / 255
        mean = float((counts * value).sum() / counts.sum())
        deviation = float((counts * (value - mean).square()).sum() / counts.sum()) ** 0.5
        means.append(round(mean, 6))
        deviations.append(round(deviation, 6) or 1.0)
    return tuple(means), tuple(deviations)
