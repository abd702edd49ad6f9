"""Friction along the gradient noise on CUDA: two launches before the fused step, three for each update of B.

The formulas are those of `noise_friction.py`. The first launch makes the step without that friction, only to multiply
its velocities with B, and keeps the difference of the gradients; the second turns the sums into the friction along each
row; the fused step adds it. Nothing waits for the host, and sums are taken in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atmc.samplers.flat_state import Shard
from atmc.samplers.noise_rows import EVERY, rows_of, scale_of

try:
    from atmc.samplers import noise_kernels as kernels
except ImportError:  # no Triton on this machine: PyTorch's operations serve
    kernels = None  # type: ignore[assignment]

GROUP = 8  # rows of B that a block multiplies at once
TILE, TILES = 64, 32  # columns of a matrix product, and how many of these a program of the Gram matrix adds up
LARGEST = 64  # rows that one program can diagonalise
SWEEPS = 6


def along(shard: Shard, state: tuple[Any, ...], noise: tuple[int, int, int], **options: Any) -> tuple[Tensor, Tensor]:
    """B, and how much of each of its rows the fused step is to take off the momentum.

    `state` and `options` are those of the step's own kernel, and `noise` its key, shard and number of blocks.
    """
    rank, count = options["RANK"], noise[2]
    if "noise sums" not in shard.scratch:
        sums = torch.zeros(rank, count, device=shard.device, dtype=shard.dtype)
        shard.scratch["noise sums"] = sums, sums.new_zeros(-(-rank // 4) * 4)
    sums, found = shard.scratch["noise sums"]
    rows = rows_of(shard, rank)
    kernels.moving_kernel[(count,)](*state, rows, sums, *noise, shard.total, EVERY=EVERY, GROUP=GROUP, **options)
    scale = scale_of(shard, rank)
    kernels.along_kernel[(rank,)](*state[1:3], sums, scale, found, COUNT=count, STATE=options["STATE"], WIDE=1024)
    return rows, found


def update(shard: Shard, rows: Tensor, mass: Any, rank: int, share: float) -> None:
    """Take the differences of the last steps into B, with the weight `share`, without waiting for the device."""
    n = rank + EVERY
    size = 1 << (n - 1).bit_length()
    vector = isinstance(mass, Tensor)
    programs = -(-shard.total // (TILE * TILES))
    sums = torch.empty(programs, size, size, device=shard.device)
    kernels.gram_kernel[(programs,)](
        rows, mass if vector else rows, sums, 1.0 if vector else float(mass), shard.total, n,
        HAS_MASS=vector, N=size, TILE=TILE, TILES=TILES,
    )  # fmt: skip
    gram = sums.sum(0, dtype=torch.float64)
    weights = torch.empty(rank + 1, size, device=shard.device)
    old, new = (1.0 - share) ** 0.5, (share / EVERY) ** 0.5
    kernels.eigen_kernel[(1,)](gram, weights, n, rank, old, new, N=size, SWEEPS=SWEEPS)
    kernels.combine_kernel[(-(-shard.total // TILE),)](
        rows, weights, shard.total, n, rank, N=size, R=max(16, 1 << (rank - 1).bit_length()), TILE=TILE
    )
