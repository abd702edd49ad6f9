"""3×3 convolutions with few channels (Triton, channels-last, stride 1, padding 1): forward, and both gradients.

With 16 to 64 channels a convolution does so little work for each byte that libraries made for wide layers take several
times what memory needs. Here a program owns a stretch of one image's pixels and all channels. The nine taps are nine
products of shifted pixels with a matrix of channels; all but the first reading of a pixel come from the cache.

    forward         y[p, o] = Σ_t Σ_c x[p + t, c] w[o, t, c]
    data gradient   the same with y's gradient for x, taps in reverse, and w transposed
    weight gradient w'[o, t, c] = Σ_p y'[p, o] x[p + t, c]: a program adds up some images, a second kernel the programs,
                    in a fixed order, so that two runs give the same bits
Sums are float32. Weights lie in memory as (O, 3, 3, C).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _shifted(x, base, pixel, channel, TAP: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pixels × channels of one image, seen through one tap; 0 outside the image."""
    DOWN: tl.constexpr = TAP // 3 - 1
    RIGHT: tl.constexpr = TAP % 3 - 1
    row = pixel // W + DOWN
    column = pixel % W + RIGHT
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W) & (pixel < H * W)
    at = base + (pixel + DOWN * W + RIGHT)[:, None] * C + channel[None, :]
    return tl.load(x + at, mask=inside[:, None], other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def conv_kernel(  # type: ignore[no-untyped-def]
    x, weight, y,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, BLOCK_P: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """y from x; with TRANSPOSED the gradient of a convolution's input from that of its output."""
    PARTS: tl.constexpr = (H * W + BLOCK_P - 1) // BLOCK_P
    program = tl.program_id(0)
    image = (program // PARTS).to(tl.int64)
    pixel = (program % PARTS) * BLOCK_P + tl.arange(0, BLOCK_P)
    inner = tl.arange(0, C)
    outer = tl.arange(0, O)
    total = tl.zeros((BLOCK_P, O), dtype=tl.float32)
    for tap in tl.static_range(9):
        tile = _shifted(x, image * (H * W * C), pixel, inner, tap, H, W, C)
        if TRANSPOSED:  # the convolution went from O to C channels
            at = inner[:, None] * (9 * O) + (8 - tap) * O + outer[None, :]
        else:
            at = outer[None, :] * (9 * C) + tap * C + inner[:, None]
        total = tl.dot(tile, tl.load(weight + at), total)
    at = image * (H * W * O) + pixel[:, None] * O + outer[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=(pixel < H * W)[:, None])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def weight_kernel(  # type: ignore[no-untyped-def]
    x, dy, partial, images,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, BLOCK_P: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """One program's share of the weight gradient: of the images number, number + programs, …, and of a row of taps."""
    number = tl.program_id(0)
    taps = tl.program_id(1)  # 0, 1, 2: the rows of the filter
    inner = tl.arange(0, C)
    outer = tl.arange(0, O)
    left = tl.zeros((O, C), dtype=tl.float32)
    middle = tl.zeros((O, C), dtype=tl.float32)
    right = tl.zeros((O, C), dtype=tl.float32)
    for turn in range(SHARE):
        image = (number + turn * tl.num_programs(0)).to(tl.int64)
        for start in range(0, H * W, BLOCK_P):
            pixel = start + tl.arange(0, BLOCK_P)
            row = pixel // W + taps - 1
            present = (pixel < H * W) & (image < images)
            slope = tl.load(
                dy + image * (H * W * O) + pixel[:, None] * O + outer[None, :], mask=present[:, None], other=0.0
            )
            slope = tl.trans(slope)
            present = present & (row >= 0) & (row < H)
            at = image * (H * W * C) + (pixel + (taps - 1) * W)[:, None] * C + inner[None, :]
            column = pixel % W
            here = tl.load(x + at - C, mask=(present & (column > 0))[:, None], other=0.0)
            left = tl.dot(slope, here, left)
            here = tl.load(x + at, mask=present[:, None], other=0.0)
            middle = tl.dot(slope, here, middle)
            here = tl.load(x + at + C, mask=(present & (column < W - 1))[:, None], other=0.0)
            right = tl.dot(slope, here, right)
    at = number * (9 * O * C) + outer[:, None] * (9 * C) + taps * 3 * C + inner[None, :]
    tl.store(partial + at, left)
    tl.store(partial + at + C, middle)
    tl.store(partial + at + 2 * C, right)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add_kernel(partial, dw, size, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of all programs' shares, in their order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, PROGRAMS, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < PROGRAMS)[:, None] & (at < size)[None, :]
        total += tl.sum(tl.load(partial + row[:, None] * size + at[None, :], mask=inside, other=0.0), 0)
    tl.store(dw + at, total.to(dw.dtype.element_ty), mask=at < size)
