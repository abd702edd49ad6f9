"""The order of an epoch and its augmentations, as a pure function of (seed, epoch).

Numbers come from Philox keyed by the seed, with epoch and purpose in the counter, so no two epochs, seeds or purposes
share a number, no global generator is used, and the result does not depend on the version of torch or numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]

# Purposes: the third word of the counter.
ORDER, AUGMENT, SPLIT, SYNTHETIC, GROUPS, UNIFORMS = range(6)
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class EpochPlan:
    """One epoch: position i shows example `order[i]`, its padded image cut at (dy[i], dx[i]), mirrored if `flip[i]`."""

    order: Tensor
    dx: Tensor
    dy: Tensor
    flip: Tensor


def words(seed: int, epoch: int, purpose: int, count: int) -> Words:
    """`count` independent uniform 64-bit words that belong to (seed, epoch, purpose) alone."""
    key = np.array([seed & _MASK, 0x61746D63], dtype=np.uint64)
    counter = np.array([0, epoch & _MASK, purpose, 0], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def permutation(keys: Words) -> npt.NDArray[np.int64]:
    """A permutation from random words: their rank, with the index in the low bits so that no two are equal.

    Sorting these is several times faster than an argsort and gives the same on every machine.
    """
    low = np.uint64(max(1, (len(keys) - 1).bit_length()))
    index = np.arange(len(keys), dtype=np.uint64)
    mask = (np.uint64(1) << low) - np.uint64(1)
    ranked = np.sort((keys & ~mask) | index)
    return (ranked & mask).astype(np.int64)


def order(seed: int, epoch: int, n: int) -> npt.NDArray[np.int64]:
    """The order in which epoch `epoch` visits its `n` examples, each once."""
    return permutation(words(seed, epoch, ORDER, n))


def augment_words(seed: int, epoch: int, n: int) -> Words:
    """Two random words [n, 2] for each position of an epoch, from which its augmentation follows."""
    return words(seed, epoch, AUGMENT, 2 * n).reshape(n, 2)


def crop_offsets(drawn: Words, pad: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """dx, dy in 0 … 2·pad from the first word of each pair (uniform to one part in 2³¹)."""
    span = np.uint64(2 * pad + 1)
    first = drawn[:, 0]
    dx = ((first >> np.uint64(1)) & np.uint64(0x7FFFFFFF)) * span >> np.uint64(31)
    dy = (first >> np.uint64(32)) * span >> np.uint64(32)
    return dx.astype(np.int64), dy.astype(np.int64)


def flips(drawn: Words) -> npt.NDArray[np.bool_]:
    """The lowest bit of the first word."""
    return (drawn[:, 0] & np.uint64(1)).astype(np.bool_)


def draws(seed: int, epoch: int, n: int) -> npt.NDArray[np.int64]:
    """`n` independent draws from `n` examples, in place of an order (uniform to one part in 2³²/n)."""
    return ((words(seed, epoch, ORDER, n) >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int64)


def uniforms(seed: int, epoch: int, n: int) -> npt.NDArray[np.float64]:
    """`n` numbers in [0, 1), uniform to 53 bits."""
    return (words(seed, epoch, UNIFORMS, n) >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def plan(seed: int, epoch: int, n: int, pad: int = 0, flip: bool = False, independent: bool = False) -> EpochPlan:
    """The plan of one epoch. Without `pad` the offsets are 0, without `flip` nothing is mirrored.

    The order does not depend on the augmentation, nor one augmentation on the other. With `independent` examples are
    drawn with replacement.
    """
    still = torch.zeros(n, dtype=torch.int64)
    dx, dy, mirrored = still, still, torch.zeros(n, dtype=torch.bool)
    if pad or flip:
        drawn = augment_words(seed, epoch, n)
        if pad:
            dx, dy = (torch.from_numpy(offset) for offset in crop_offsets(drawn, pad))
        if flip:
            mirrored = torch.from_numpy(flips(drawn))
    shown = draws(seed, epoch, n) if independent else order(seed, epoch, n)
    return EpochPlan(torch.from_numpy(shown), dx, dy, mirrored)


def grouped_order(seed: int, epoch: int, groups: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.int64]:
    """An epoch's order for examples in groups (shards) of which `window` are read at a time.

    The groups are shuffled and taken `window` at a time; all examples of a window are shuffled together.
    """
    count = int(groups.max()) + 1 if len(groups) else 0
    window_of = np.empty(count, dtype=np.uint64)
    window_of[permutation(words(seed, epoch, GROUPS, count))] = np.arange(count, dtype=np.uint64) // np.uint64(window)
    high = np.uint64(max(1, (count // window).bit_length()))
    keys = (words(seed, epoch, ORDER, len(groups)) >> high) | (window_of[groups] << (np.uint64(64) - high))
    return permutation(keys)
