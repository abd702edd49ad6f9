"""The sampler's own random numbers: a pure function of (seed, shard, step, element).

A counter-based generator (Philox) makes the noise of a step independent of everything else that draws random numbers
in the process, of how the work is split into pieces, and of what came before: a restart needs the seed and the step.

The sampler's key is a hash of its seed under a name of our own, and the generator is not the one behind
`torch.manual_seed` on a CPU. Equal seeds in the two places therefore cannot produce the same stream. (They once did:
the added noise was then the mini-batch noise of a step later, and the thermostat settled at the wrong value while the
parameters' variances still looked right.)
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

_TWO_PI_OVER_2_32 = math.pi * 2.0**-31


def stream_key(seed: int, purpose: str = "step") -> int:
    """The 64-bit key of one of a sampler's streams, never equal to the seed itself."""
    digest = hashlib.blake2b(f"atmc:{purpose}:{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def init_generator(seed: int) -> np.random.Generator:
    """The generator for what is drawn once, before the first step (momenta from their law)."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, "init")))


def fill_normal(out: Tensor, key: int, shard: int, step: int, piece: int) -> None:
    """Fill a contiguous CPU tensor by standard normals of (key, shard, step, piece).

    Box–Muller on raw Philox words, in vectorised tensor operations: two thirds of the time of `torch.randn`. In float32
    the radius has 31 random bits, which ends the tails at 6.7 standard deviations (a normal goes there once in 10¹⁰).
    """
    n = out.numel()
    half = (n + 1) // 2
    bits = np.random.Philox(key=key, counter=[0, piece, step, shard])
    if out.dtype == torch.float64:
        uniform = (bits.random_raw(2 * half) >> np.uint64(11)).astype(np.float64)
        radius = torch.from_numpy(uniform[:half]).add_(0.5).mul_(2.0**-53).log_().mul_(-2.0).sqrt_()
        angle = torch.from_numpy(uniform[half:]).mul_(2.0**-52 * math.pi)
    else:
        words = torch.from_numpy(bits.random_raw(half).view(np.int32))
        radius = words[:half].bitwise_and(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31)
        radius.log_().mul_(-2.0).sqrt_()
        angle = words[half:].to(torch.float32).mul_(_TWO_PI_OVER_2_32)
    torch.mul(radius, angle.cos(), out=out[:half])
    torch.mul(radius[: n - half], angle.sin_()[: n - half], out=out[half:])
