"""Synthetic data of any shape, for benchmarks and tests: half a pattern of the class, half noise.

`synthetic:3x32x32?classes=10&train=50000&test=10000&seed=0` names one; every part may be left out. The bytes follow
from the name alone, on every machine.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from atmc.common.errors import InputError
from atmc.data.dataset import ImageData, digest_of
from atmc.data.epoch_order import SYNTHETIC, permutation, words

# Of the sum of two uniform numbers in 0 … 127, in units of 255.
MEAN, STD = 0.498, 0.2049
# Streams of one seed: the second word of the counter.
_PATTERNS, _NOISE, _LABELS = 0, 1, 3


def load(
    name: str,
    split: str,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    train: int = 2048,
    test: int = 512,
    seed: int = 0,
) -> ImageData:
    """`train` or `test` examples of `shape`, the classes equally frequent and in random order."""
    count = train if split == "train" else test
    if min(count, classes, *shape) < 1 or not shape:
        raise InputError(f"{name}: shape, classes, train and test must all be at least 1")
    part = 0 if split == "train" else 1
    size = math.prod(shape)
    patterns = _bytes(seed, _PATTERNS, classes * size).reshape(classes, size)
    labels = permutation(words(seed, _LABELS + part, SYNTHETIC, count)) % classes
    pixels = _bytes(seed, _NOISE + part, count * size).reshape(count, size)
    pixels = (pixels >> 1) + (patterns >> 1)[labels]
    images = torch.from_numpy(pixels.reshape(count, *shape))
    marks = torch.from_numpy(labels)
    channels = shape[0] if len(shape) > 1 else 1
    mean, std = (MEAN,) * channels, (STD,) * channels
    names = tuple(str(c) for c in range(classes))
    return ImageData(name, split, images, marks, names, mean, std, digest_of(images, marks))


def _bytes(seed: int, stream: int, count: int) -> npt.NDArray[np.uint8]:
    raw = words(seed, stream, SYNTHETIC, -(-count // 8))
    return raw.astype("<u8", copy=False).view(np.uint8)[:count].copy()
