"""The backward kernel of a layer of ResNet-FRN, a program for each image (Triton, channels-last); see `frn_triton`.

Where an image is too much for registers it is read in passes, and again for the gradient of c. Sums over an image are
kept as tiles of numbers until the last pass: a sum over threads in each pass costs more than the pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atmc.nn.kernels.norm_act_backward_triton import _into, _slopes


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _data_gradient(  # type: ignore[no-untyped-def]
    dc, weight, dx, add, base,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
    HAS_ADD: tl.constexpr, BLOCK_Q: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of one image x, tap by tap, from that of c, which this program has written."""
    channel = tl.arange(0, O)
    inner = tl.arange(0, C)
    for start in tl.range(0, H * W * STRIDE * STRIDE, BLOCK_Q, num_stages=1):
        target = start + tl.arange(0, BLOCK_Q)
        back = tl.zeros((BLOCK_Q, C), dtype=tl.float32)
        for tap in tl.range(0, TAPS, num_stages=STAGES):
            r = target // (W * STRIDE) - (tap // 3 - 1 if TAPS == 9 else 0)
            s = target % (W * STRIDE) - (tap % 3 - 1 if TAPS == 9 else 0)
            inside = (r >= 0) & (r < H * STRIDE) & (s >= 0) & (s < W * STRIDE)
            if STRIDE > 1:
                inside = inside & (r % STRIDE == 0) & (s % STRIDE == 0)
            source = (r // STRIDE * W + s // STRIDE)[:, None] * O + channel[None, :]
            tile = tl.load(dc + source, mask=inside[:, None], other=0.0)
            of = channel[:, None] * (TAPS * C) + (tap * C + inner)[None, :]
            back = tl.dot(tile, tl.load(weight + of), back)
        to = base + target[:, None] * C + inner[None, :]
        if HAS_ADD:
            back += tl.load(add + to).to(tl.float32)
        tl.store(dx + to, back.to(dx.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _data_gradient_of_pairs(  # type: ignore[no-untyped-def]
    dc, weight, dx, add, base,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, HAS_ADD: tl.constexpr, BLOCK_Q: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The same for 3×3 and stride 1, two neighbours at a time: a row of taps of both is four pixels of c'.

    Six readings of a pixel instead of nine, and three products instead of nine.
    """
    place = tl.arange(0, 4 * O)
    double = tl.arange(0, 2 * C)
    tap = (double // C)[None, :] + 2 - (place // O)[:, None]
    of = (place % O)[:, None] * (9 * C) + tap * C + (double % C)[None, :]
    for start in tl.range(0, H * W, BLOCK_Q, num_stages=1):
        target = start + 2 * tl.arange(0, BLOCK_Q // 2)
        left = target % W - 1
        across = left[:, None] + (place // O)[None, :]
        back = tl.zeros((BLOCK_Q // 2, 2 * C), dtype=tl.float32)
        for down in tl.range(0, 3, num_stages=STAGES):
            r = target // W + 1 - down
            inside = ((r >= 0) & (r < H))[:, None] & (across >= 0) & (across < W)
            tile = tl.load(dc + (r * W + left)[:, None] * O + place[None, :], mask=inside, other=0.0)
            part = tl.load(weight + of + down * 3 * C, mask=(tap >= 0) & (tap < 3), other=0.0)
            back = tl.dot(tile, part, back)
        to = base + target[:, None] * C + double[None, :]
        if HAS_ADD:
            back += tl.load(add + to).to(tl.float32)
        tl.store(dx + to, back.to(dx.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _slopes_at(  # type: ignore[no-untyped-def]
    value, dy, res, dres, rstd, gain, bias, extra, at, image, channel,
    O: tl.constexpr, ACT: tl.constexpr, HAS_RES: tl.constexpr, POOL: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    if POOL:  # one number for all pixels of a channel
        dy += image * O + channel[None, :] - at
    return _slopes(value, dy, res, dres, 0.0, rstd, gain, bias, extra, at, at,
                   2, ACT, HAS_RES, True, False, FIRST)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def backward_kernel(  # type: ignore[no-untyped-def]
    conv, res, dy, weight, pre_at, gain_at, bias_at, extra_at, stats, dc, dres, dx, add, partial, images, columns,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr,
    ACT: tl.constexpr, HAS_RES: tl.constexpr, HAS_DX: tl.constexpr, HAS_ADD: tl.constexpr,
    POOL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_Q: tl.constexpr, PAIRS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    PIXELS: tl.constexpr = H * W
    image = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, O)
    gain = tl.load(gain_at + channel)
    bias = tl.load(bias_at + channel)
    extra = tl.load(extra_at + channel)
    pre = tl.load(pre_at + channel)[None, :]
    rstd = tl.load(stats + image * O + channel)[None, :]
    at = image * (PIXELS * O) + tl.arange(0, BLOCK_N)[:, None] * O + channel[None, :]
    value = tl.load(conv + at).to(tl.float32) + pre
    slope, unit, after = _slopes_at(value, dy, res, dres, rstd, gain, bias, extra, at, image, channel,
                                    O, ACT, HAS_RES, POOL, True)  # fmt: skip
    scaled = slope * unit
    plain = slope
    third = after - slope
    length = unit
    if BLOCK_N < PIXELS:
        for start in range(BLOCK_N, PIXELS, BLOCK_N):
            there = at + start * O
            more = tl.load(conv + there).to(tl.float32) + pre
            slopes, units, afters = _slopes_at(more, dy, res, dres, rstd, gain, bias, extra, there, image, channel,
                                               O, ACT, HAS_RES, POOL, True)  # fmt: skip
            scaled += slopes * units
            plain += slopes
            third += afters - slopes
            length += units
    scaled = tl.sum(scaled, 0)
    plain = tl.sum(plain, 0)
    third = tl.sum(third, 0)
    second = gain * scaled / PIXELS
    if BLOCK_N < PIXELS:  # a second reading, from the cache
        total = tl.sum(rstd, 0) * (gain * plain - second * tl.sum(length, 0))  # the sum of what `_into` writes
        for start in range(0, PIXELS, BLOCK_N):
            there = at + start * O
            more = tl.load(conv + there).to(tl.float32) + pre
            slopes, units, afters = _slopes_at(more, dy, res, dres, rstd, gain, bias, extra, there, image, channel,
                                               O, ACT, HAS_RES, POOL, False)  # fmt: skip
            _into(more, slopes, units, 0.0, rstd, gain, extra, 0.0, second, dc, dc, there, there,
                  2, False, False, False)  # fmt: skip
    else:
        total = _into(value, slope, unit, 0.0, rstd, gain, extra, 0.0, second, dc, dc, at, at,
                      2, False, False, True)  # fmt: skip
    share = partial + image * columns + channel
    tl.store(share, scaled)
    tl.store(share + images * columns, plain)
    tl.store(share + 2 * images * columns, third)
    tl.store(share + 3 * images * columns, total)
    if HAS_DX:
        tl.debug_barrier()  # the image's gradient of c is complete, for all threads of this program
        base = image * (PIXELS * STRIDE * STRIDE * C)
        if PAIRS:
            _data_gradient_of_pairs(dc + image * (PIXELS * O), weight, dx, add, base,
                                    H, W, C, O, HAS_ADD, BLOCK_Q, STAGES)  # fmt: skip
        else:
            _data_gradient(dc + image * (PIXELS * O), weight, dx, add, base,
                           H, W, C, O, STRIDE, TAPS, HAS_ADD, BLOCK_Q, STAGES)  # fmt: skip
