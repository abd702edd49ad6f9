"""Friction along the gradient noise on CUDA: two launches before the fused step.

The formulas are those of `noise_friction.py`. The first launch makes the step without that friction, only to multiply
its velocities with B, and keeps the difference of the gradients; the second turns the sums into the friction along each
row; the fused step adds it. Sums are taken in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atmc.samplers.flat_state import Shard
from atmc.samplers.noise_friction import strengths
from atmc.samplers.noise_kronecker import KroneckerNoise
from atmc.samplers.noise_rows import EVERY, buffer, rows_of, scale_of

try:
    from atmc.samplers import noise_kernels as kernels
except ImportError:  # no Triton on this machine: PyTorch's operations serve
    kernels = None  # type: ignore[assignment]

GROUP = 8  # rows of B that a block multiplies at once


def along(
    shard: Shard, state: tuple[Any, ...], noise: tuple[int, int, int], **options: Any
) -> tuple[Tensor, Tensor, int]:
    """Rows, how much of each the fused step is to take off the momentum, and their number.

    `state` and `options` are those of the step's own kernel, and `noise` its key, shard and number of blocks. The rows
    are those of B.
    """
    rank, count = options["RANK"], noise[2]
    if "noise sums" not in shard.scratch:
        sums = torch.zeros(rank, count, device=shard.device, dtype=shard.dtype)
        shard.scratch["noise sums"] = sums, sums.new_zeros(-(-rank // 4) * 4)
    sums, found = shard.scratch["noise sums"]
    rows = rows_of(shard, rank)
    places = rows, sums, sums, *noise, shard.total
    kernels.moving_kernel[(count,)](*state, *places, EVERY=EVERY, GROUP=GROUP, KEEP=False, **options)
    scale = scale_of(shard, rank)
    kernels.along_kernel[(rank,)](*state[1:3], sums, scale, found, COUNT=count, STATE=options["STATE"], WIDE=1024)
    return rows, found, rank


def friction(
    kronecker: KroneckerNoise, group: dict[str, Any], shard: Shard, state: tuple[Any, ...], noise: Any, **options: Any
) -> tuple[Tensor, Tensor, int]:
    """The same with `noise_kronecker`: all of the friction is one row, made of K'(p) + K'(p₀) by PyTorch."""
    velocity = buffer(shard, "noise velocity")
    rows = rows_of(shard, options["RANK"])
    places = rows, velocity, velocity, *noise, shard.total
    kernels.moving_kernel[(noise[2],)](*state, *places, EVERY=EVERY, GROUP=GROUP, KEEP=True, **options)
    if "noise row" not in shard.scratch:  # the step reads four rows at once, and multiplies the last three with 0
        four = torch.zeros(4, shard.total, device=shard.device, dtype=shard.dtype)
        shard.scratch["noise row"] = four, torch.tensor([1.0, 0.0, 0.0, 0.0], device="cpu").to(four)
    row, one = shard.scratch["noise row"]
    row[0].copy_(kronecker.friction(shard, velocity, *strengths(group)))
    return row, one, 1
