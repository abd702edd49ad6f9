"""The Triton kernel of `noise_kronecker.py`: rotates all matrices of a shard in one launch, whatever their sizes.

A table has a line for every square tile of every result: where its matrix begins, the address of the square matrix that
belongs to it, the matrix' sizes, and where the tile lies.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

TILE = 32  # rows and columns of a tile of a rotated matrix


@triton.jit
def rotate_kernel(tiles, x, out, length, LEFT: tl.constexpr, BACK: tl.constexpr, TILE: tl.constexpr):
    """QᵀX from the left or XQ from the right; BACK: QX or XQᵀ. A copy where there is no Q. x, out [stack, length]."""
    line = tiles + 6 * tl.program_id(0)
    begin = tl.load(line) + tl.program_id(1).to(tl.int64) * length
    address = tl.load(line + 1)
    rows = tl.load(line + 2)
    columns = tl.load(line + 3)
    lane = tl.arange(0, TILE)
    i = tl.load(line + 4) + lane
    k = tl.load(line + 5) + lane
    inside = (i < rows)[:, None] & (k < columns)[None, :]
    at = i[:, None] * columns + k[None, :]
    if address == 0:
        found = tl.load(x + begin + at, mask=inside, other=0.0)
    else:
        basis = address.to(tl.pointer_type(tl.float32))
        found = tl.zeros((TILE, TILE), dtype=tl.float32)
        size = rows if LEFT else columns
        for start in range(0, size, TILE):
            j = start + lane
            if LEFT:
                turn = i[:, None] * size + j[None, :] if BACK else j[None, :] * size + i[:, None]
                a = tl.load(basis + turn, mask=(i < rows)[:, None] & (j < size)[None, :], other=0.0)
                b = tl.load(
                    x + begin + j[:, None] * columns + k[None, :],
                    mask=(j < size)[:, None] & (k < columns)[None, :],
                    other=0.0,
                )
            else:
                a = tl.load(
                    x + begin + i[:, None] * columns + j[None, :],
                    mask=(i < rows)[:, None] & (j < size)[None, :],
                    other=0.0,
                )
                turn = k[None, :] * size + j[:, None] if BACK else j[:, None] * size + k[None, :]
                b = tl.load(basis + turn, mask=(j < size)[:, None] & (k < columns)[None, :], other=0.0)
            found += tl.dot(a, b, input_precision="tf32x3")
    tl.store(out + begin + at, found, mask=inside)
