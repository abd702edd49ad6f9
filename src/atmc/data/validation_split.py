"""The validation split: a stratified part of the training set that depends on the data set's name only.

Every run, whatever its seed, holds out the same examples, so that choices made on them are comparable.
"""

from __future__ import annotations

import hashlib
from typing import overload

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.data.dataset import ImageData
from atmc.data.epoch_order import SPLIT, words
from atmc.data.streamed_source import Source


@overload
def hold_out(data: ImageData, size: int) -> tuple[ImageData, ImageData]: ...
@overload
def hold_out(data: Source, size: int) -> tuple[Source, Source]: ...
def hold_out(data: ImageData | Source, size: int) -> tuple[ImageData, ImageData] | tuple[Source, Source]:
    """(training rest, validation), each in the original order. `size` 0 gives an empty validation set.

    The rule uses the name before any colon: a folder of images may move without its split changing.
    """
    rest, held = held_out_index(data.labels, size, data.name.partition(":")[0])
    if isinstance(data, ImageData):
        return data.subset(rest, data.split), data.subset(held, "validation")
    return data.subset(rest, data.split), data.subset(held, "validation")


def held_out_index(labels: Tensor, size: int, name: str) -> tuple[Tensor, Tensor]:
    """The sorted indices (rest, held out) of the rule called `name`, for integer labels (others form one class)."""
    n = len(labels)
    if not 0 <= size < n:
        raise InputError(f"{name}: cannot hold out {size} of {n} examples; choose 0 to {n - 1}")
    classes = labels if labels.ndim == 1 and not labels.is_floating_point() else torch.zeros(n, dtype=torch.int64)
    seed = int.from_bytes(hashlib.sha256(f"atmc hold-out {name}".encode()).digest()[:8], "little")
    keys = words(seed, 0, SPLIT, n)
    # Rank within the class: example k of a class of m sits at (k + ½)/m, and the `size` smallest positions are held
    # out, which takes an equal share of every class; ties between classes fall to the random key.
    marks = classes.numpy()
    rank = np.empty(n, dtype=np.float64)
    for mark in np.unique(marks):
        members = np.flatnonzero(marks == mark)
        ranked = members[np.argsort(keys[members], kind="stable")]
        rank[ranked] = (np.arange(len(ranked)) + 0.5) / len(ranked)
    chosen = np.zeros(n, dtype=np.bool_)
    chosen[np.lexsort((np.arange(n), keys, rank))[:size]] = True
    return torch.from_numpy(np.flatnonzero(~chosen)), torch.from_numpy(np.flatnonzero(chosen))
