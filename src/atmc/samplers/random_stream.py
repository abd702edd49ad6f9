"""The noise of a sampler: a pure function of (seed, shard, step, element), the same on every device.

A counter-based generator (Philox-4x32, ten rounds) makes it independent of other random numbers in the process, of the
number of threads, and of earlier steps. This is the reference; `step.c` and `triton_kernels.py` draw the same bits.

The key is a hash of the seed, so that no seed of `torch.manual_seed` gives the same stream. (Once it did: the added
noise was then the mini-batch noise of a step later, and the thermostat converged to a wrong value while the variances
of the parameters still looked right.)
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK = 2048  # elements that share counters: element i of a block takes word pair i // 512 of counter i % 512
QUARTER = BLOCK // 4

_MASK = np.uint64(0xFFFFFFFF)


def stream_key(seed: int, purpose: str = "step") -> int:
    """The key of one of a sampler's streams: positive, 63 bits, and never equal to the seed itself."""
    digest = hashlib.blake2b(f"atmc:{purpose}:{seed}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") & (2**62 - 1)) | 2**62


def init_generator(seed: int, number: int | str) -> np.random.Generator:
    """The generator for what a sampler's `number`-th parameter draws once (its momenta from their law)."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, f"init {number}")))


def blocks(numel: int) -> int:
    """How many blocks a parameter takes; no two parameters share one."""
    return max(1, -(-numel // BLOCK))


def normals(count: int, first_block: int, key: int, step: int, stream: int, dtype: torch.dtype) -> Tensor:
    """`count` standard normals from a block on: Box–Muller, two from each pair of Philox words.

    The radius has 31 random bits, which ends the tails at 6.7 standard deviations (a normal goes there once in 10¹⁰).
    """
    total = -(-count // BLOCK)
    counter = np.uint64(first_block * QUARTER) + np.arange(total * QUARTER, dtype=np.uint64)
    words = philox(counter & _MASK, step & 0x7FFFFFFF, step >> 31, stream, key)
    real = np.float64 if dtype == torch.float64 else np.float32
    out = np.empty((total, 4, QUARTER), dtype=real)
    for pair in range(2):
        a, b = words[2 * pair], words[2 * pair + 1]
        u = ((a >> np.uint64(1)).astype(real) + real(0.5)) * real(2.0**-31)
        radius = np.sqrt(real(-2.0) * np.log(u))
        angle = b.astype(np.uint32).view(np.int32).astype(real) * real(np.pi * 2.0**-31)
        out[:, 2 * pair] = (radius * np.cos(angle)).reshape(total, QUARTER)
        out[:, 2 * pair + 1] = (radius * np.sin(angle)).reshape(total, QUARTER)
    return torch.from_numpy(out.reshape(-1)[:count])


def philox(c0: Any, c1: int, c2: int, c3: int, key: int) -> list[Any]:
    """Philox-4x32-10 (Salmon et al. 2011) on arrays of 32-bit words held in 64 bits."""
    words = [c0, *(np.full_like(c0, c) for c in (c1, c2, c3))]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (b >> np.uint64(32)) ^ words[1] ^ np.uint64(k0),
            b & _MASK,
            (a >> np.uint64(32)) ^ words[3] ^ np.uint64(k1),
            a & _MASK,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return words
