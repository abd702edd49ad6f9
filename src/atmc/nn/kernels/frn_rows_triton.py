"""ResNet-FRN's plain layers (3×3, stride 1) with an image shared by several programs (Triton, channels-last).

FRN's statistics need the whole image, so a kernel that ends with them must own the image. These kernels begin with
them: each finishes the layer before and starts the next one, and between two kernels all programs have written their
sums. A program owns some rows of an image. It computes one more row above and below by itself; two programs then write
the same numbers to the same address.

    finish_kernel         y = act(max(gain · (c + pre) · r + bias, threshold) [+ res]) from c and the sums of (c + pre)²
    forward_rows_kernel   [the same for the layer before,] then c of this layer from it, and the sums of (c + pre)²
    begin_kernel          a = y' · act'(…), the gradient before the activation and of `res`, and sums over its pixels
    backward_rows_kernel  c' from a and its sums, then x' [+ add] from c' [, and from x' what `begin_kernel` makes for
                          the layer before]

Two neighbouring pixels may be taken together (JOIN = 2): a row of taps of both is four pixels, so a product has four
times the channels to add over, and a pixel is read six times instead of nine. A tile of pixels × channels is then
looked at as pairs × twice the channels, which is the same memory.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

FAST = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")  # the interpreter knows no assembler


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _around(  # type: ignore[no-untyped-def]
    x, weight, start, COUNT: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, JOIN: tl.constexpr,
    BACK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The 3×3 convolution of one image at COUNT pixels, or its transpose (BACK), from x in memory."""
    WIDE: tl.constexpr = JOIN * C
    SIGN: tl.constexpr = -1 if BACK else 1
    column = tl.arange(0, WIDE)
    pixel = start + JOIN * tl.arange(0, COUNT // JOIN)
    total = tl.zeros((COUNT // JOIN, WIDE), dtype=tl.float32)
    if JOIN == 2:
        place = tl.arange(0, 4 * C)
        left = pixel % W - 1
        across = left[:, None] + (place // C)[None, :]
        if BACK:
            tap = (column // C)[None, :] + 2 - (place // C)[:, None]
            of = (place % C)[:, None] * (9 * C) + tap * C + (column % C)[None, :]
        else:
            tap = (place // C)[:, None] - (column // C)[None, :]
            of = (column % C)[None, :] * (9 * C) + tap * C + (place % C)[:, None]
        for down in tl.range(0, 3, num_stages=STAGES):
            row = pixel // W + SIGN * (down - 1)
            inside = ((row >= 0) & (row < H))[:, None] & (across >= 0) & (across < W)
            tile = tl.load(x + (row * W + left)[:, None] * C + place[None, :], mask=inside, other=0.0)
            part = tl.load(weight + of + down * 3 * C, mask=(tap >= 0) & (tap < 3), other=0.0)
            total = tl.dot(tile, part, total)
    else:
        if BACK:
            of = column[:, None] * (9 * C) + column[None, :]
        else:
            of = column[None, :] * (9 * C) + column[:, None]
        for tap in tl.range(0, 9, num_stages=STAGES):
            row = pixel // W + SIGN * (tap // 3 - 1)
            across = pixel % W + SIGN * (tap % 3 - 1)
            inside = (row >= 0) & (row < H) & (across >= 0) & (across < W)
            tile = tl.load(x + (row * W + across)[:, None] * C + column[None, :], mask=inside[:, None], other=0.0)
            total = tl.dot(tile, tl.load(weight + of + tap * C), total)
    return total


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _beside(start, COUNT: tl.constexpr, W: tl.constexpr):  # type: ignore[no-untyped-def]
    """The pixels of the row above and of the row below."""
    near = tl.arange(0, 2 * W)
    return tl.where(near < W, start - W + near, start + COUNT - W + near)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _added(at, image, channel, C: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """An image's sums, of all programs that share it. One by one: the sum of a tile would have a layout of its own."""
    at += image * (PARTS * C) + channel
    total = tl.load(at)
    for part in tl.static_range(1, PARTS):
        total += tl.load(at + part * C)
    return total


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sigmoid(z):  # type: ignore[no-untyped-def]
    """In six instructions instead of twelve: of numbers that are too small for it, exp and the reciprocal give 0."""
    if FAST:
        return tl.inline_asm_elementwise(
            "{ .reg .f32 t; mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000;"
            " rcp.approx.ftz.f32 $0, t; }",
            "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.sigmoid(z)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _halves(sums, C: tl.constexpr, JOIN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of channels from those of a tile's columns."""
    if JOIN == 2:
        return tl.sum(tl.reshape(sums, (2, C)), 0)
    else:
        return sums


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _finish_tile(  # type: ignore[no-untyped-def]
    conv, res, y, at, inside, slope, offset, extra, ACT: tl.constexpr, HAS_RES: tl.constexpr
):
    """Write y of one tile."""
    z = tl.maximum(tl.load(conv + at, mask=inside).to(tl.float32) * slope + offset, extra)
    if HAS_RES:
        z += tl.load(res + at, mask=inside).to(tl.float32)
    if ACT == 2:
        z = z * _sigmoid(z)
    tl.store(y + at, z.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _finish_rows(  # type: ignore[no-untyped-def]
    conv, res, y, stats, pre_at, gain_at, bias_at, extra_at, eps, image, start,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, COUNT: tl.constexpr, BESIDE: tl.constexpr, PARTS: tl.constexpr,
    ACT: tl.constexpr, HAS_RES: tl.constexpr,
):  # fmt: skip
    """Write y of COUNT pixels and, if BESIDE, of a row above and a row below."""
    channel = tl.arange(0, C)
    slope = tl.load(gain_at + channel) * tl.rsqrt(_added(stats, image, channel, C, PARTS) / (H * W) + eps)
    offset = (tl.load(pre_at + channel) * slope + tl.load(bias_at + channel))[None, :]
    slope = slope[None, :]
    extra = tl.load(extra_at + channel)[None, :]
    base = image * (H * W * C)
    if BESIDE:
        near = _beside(start, COUNT, W)
        inside = ((near >= 0) & (near < H * W))[:, None]
        _finish_tile(conv, res, y, base + near[:, None] * C + channel[None, :], inside, slope, offset, extra,
                     ACT, HAS_RES)  # fmt: skip
    own = start + tl.arange(0, COUNT)
    _finish_tile(conv, res, y, base + own[:, None] * C + channel[None, :], None, slope, offset, extra,
                 ACT, HAS_RES)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def finish_kernel(  # type: ignore[no-untyped-def]
    conv, res, y, stats, pre_at, gain_at, bias_at, extra_at, eps,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SHARES: tl.constexpr, PARTS: tl.constexpr, ACT: tl.constexpr,
    HAS_RES: tl.constexpr,
):  # fmt: skip
    """SHARES: programs of this launch for one image; PARTS: of the launch that wrote its sums."""
    COUNT: tl.constexpr = H * W // SHARES
    image = tl.program_id(0).to(tl.int64)
    _finish_rows(conv, res, y, stats, pre_at, gain_at, bias_at, extra_at, eps, image, tl.program_id(1) * COUNT,
                 H, W, C, COUNT, False, PARTS, ACT, HAS_RES)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def forward_rows_kernel(  # type: ignore[no-untyped-def]
    before, res, x, before_stats, before_pre, before_gain, before_bias, before_extra, weight, pre_at, conv, stats, eps,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, ACT: tl.constexpr, FINISH: tl.constexpr,
    HAS_RES: tl.constexpr, JOIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """FINISH: x is written here, from `before`, the convolution of the layer before; else x is there already."""
    COUNT: tl.constexpr = H * W // PARTS
    image = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    start = part * COUNT
    base = image * (H * W * C)
    if FINISH:
        _finish_rows(before, res, x, before_stats, before_pre, before_gain, before_bias, before_extra, eps, image,
                     start, H, W, C, COUNT, PARTS > 1, PARTS, ACT, HAS_RES)  # fmt: skip
        tl.debug_barrier()  # what this program reads of x is complete
    total = _around(x + base, weight, start, COUNT, H, W, C, JOIN, False, STAGES)
    column = tl.arange(0, JOIN * C)
    at = base + start * C + tl.arange(0, COUNT // JOIN)[:, None] * (JOIN * C) + column[None, :]
    rounded = total.to(conv.dtype.element_ty)  # later passes must see the same numbers
    tl.store(conv + at, rounded)
    value = rounded.to(tl.float32) + tl.load(pre_at + column % C)[None, :]
    square = _halves(tl.sum(value * value, 0), C, JOIN)
    tl.store(stats + (image * PARTS + part) * C + tl.arange(0, C), square)
