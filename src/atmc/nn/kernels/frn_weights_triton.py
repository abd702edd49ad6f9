"""The weight gradient of a layer of ResNet-FRN (Triton, channels-last): w'[o, t, i] = Σ_p c'[p, o] x[p + t, i].

`weight_kernel` writes each program's share, a row of a matrix that has the layers of one width side by side.
`add_kernel` adds the rows in a fixed order, so that two runs give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atmc.nn.kernels.frn_triton import _window


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def weight_kernel(  # type: ignore[no-untyped-def]
    x, dc, partial, images, columns,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """One program's share: of the images number, number + programs, …, and of one row of taps."""
    WIDE: tl.constexpr = 3 if TAPS == 9 else 1
    number = tl.program_id(0)
    down = tl.program_id(1)
    place = tl.arange(0, BLOCK_K)
    channel = tl.arange(0, O)
    total = tl.zeros((BLOCK_K, O), dtype=tl.float32)
    for turn in range(SHARE * (H * W // BLOCK_P)):
        image = (number + turn // (H * W // BLOCK_P) * tl.num_programs(0)).to(tl.int64)
        pixel = turn % (H * W // BLOCK_P) * BLOCK_P + tl.arange(0, BLOCK_P)
        row = tl.where(image < images, pixel // W * STRIDE + down - WIDE // 2, -1)  # none of an image that is not there
        tile = _window(
            x + image * (H * W * STRIDE * STRIDE * C), row, pixel % W * STRIDE, place, H * STRIDE, W * STRIDE, C, TAPS
        )
        at = image * (H * W * O) + pixel[:, None] * O + channel[None, :]
        slope = tl.load(dc + at, mask=(pixel < H * W)[:, None] & (image < images), other=0.0)
        total = tl.dot(tl.trans(tile), slope, total)
    at = number.to(tl.int64) * columns + channel[None, :] * (TAPS * C) + (down * WIDE * C + place)[:, None]
    tl.store(partial + at, total, mask=(place < WIDE * C)[:, None])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add_kernel(partial, dw, columns, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of all programs' shares, in their order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, PROGRAMS, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < PROGRAMS)[:, None] & (at < columns)[None, :]
        total += tl.sum(tl.load(partial + row[:, None] * columns + at[None, :], mask=inside, other=0.0), 0)
    tl.store(dw + at, total.to(dw.dtype.element_ty), mask=at < columns)
