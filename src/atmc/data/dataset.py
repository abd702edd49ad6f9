"""What a data set is once it is in memory, and where data sets live on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from atmc.data.checked_files import Expected, Progress
from atmc.data.dataset_names import Name


@dataclass(frozen=True)
class ImageData:
    """Examples and labels of one split, with all that turns them into a network's input.

    `images` is uint8 [N, C, H, W] for the named data sets; a user's own tensors may be floating and of any shape
    [N, …], with `mean` and `std` empty when they are to be taken as they are. `mean` and `std` are per channel, in
    units of [0, 1] (pixel / 255), and always come from the *training* split, whichever split this is.
    """

    name: str
    split: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str

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
        """The examples at `index`, in that order, as a data set of its own (with its own digest)."""
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
        """A user's own tensors. Integer labels name their classes 0, 1, … unless `classes` says otherwise.

        uint8 images without `mean` and `std` are scaled to zero mean and unit deviation per channel; floating ones are
        taken as they are.
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
    """Where fetched data sets live: the environment's ATMC_DATA, or ~/.cache/atmc."""
    named = os.environ.get("ATMC_DATA")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "atmc"


def digest_of(images: Tensor, labels: Tensor) -> str:
    """SHA-256 over the bytes of the images, then of the labels: what a run's manifest remembers of its data."""
    seal = hashlib.sha256()
    for tensor in (images, labels):
        # A copy if need be: one row of a matrix counts as contiguous whatever its stride.
        flat = tensor.detach().cpu().reshape(-1).contiguous()
        flat = flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)
        seal.update(flat.view(torch.uint8).numpy().data)
    return seal.hexdigest()


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per-channel mean and standard deviation of uint8 images [N, C, …] in units of [0, 1], exact and order-free.

    Counted from a histogram, so that the result does not depend on the order or the number of threads of a sum. Data
    of one flat axis [N, D] count as one channel. A constant channel gets deviation 1: it carries nothing to scale.
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
