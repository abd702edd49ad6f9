"""A layer of ResNet-FRN in one kernel each way, a program for each image (Triton, channels-last).

The layer: c = conv(x), y = act(max(gain · (c + pre) · r + bias, threshold) [+ res]), r = 1/√(mean square of a channel).
With 16 to 64 channels and small images a convolution does little work for each byte, and a launch costs as much as the
layer. FRN's statistics are of one image and one channel, and a program owns one image, so it has all that the layer
needs: the convolution as products of shifted pixels with a matrix of channels, the statistics of its own result, and
backward the gradient of c, then, through the first-level cache, the gradient of x. Sums are float32.

    forward_kernel    c, y and r from x
    backward_kernel   gradients of c, of res, of x [+ add], and each image's share of the parameters' gradients
                      (`frn_backward_triton`)
    weight_kernel     each program's share of the weight's gradient (`frn_weights_triton`)

The last layer has the mean over pixels in place of y (POOL), since the head reads nothing else. Weights lie in memory
as (O, taps, C). A row of three taps at a pixel is 3 C numbers in a row of memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atmc.nn.kernels.norm_act_triton import _affine, _finish


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _window(  # type: ignore[no-untyped-def]
    x, row, column, place, HI: tl.constexpr, WI: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr
):
    """Pixels × the numbers of one row of taps around (row, column) of the input; 0 outside the image."""
    WIDE: tl.constexpr = 3 if TAPS == 9 else 1
    left = column - WIDE // 2
    across = left[:, None] + (place // C)[None, :]
    inside = ((row >= 0) & (row < HI))[:, None] & (across >= 0) & (across < WI) & (place < WIDE * C)[None, :]
    return tl.load(x + (row * WI + left)[:, None] * C + place[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _convolve(  # type: ignore[no-untyped-def]
    x, weight, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr, TAPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The convolution of one image, tap by tap."""
    HI: tl.constexpr = H * STRIDE
    WI: tl.constexpr = W * STRIDE
    pixel = tl.arange(0, H * W)
    channel = tl.arange(0, O)
    inner = tl.arange(0, BLOCK_C)
    row = pixel // W * STRIDE
    column = pixel % W * STRIDE
    total = tl.zeros((H * W, O), dtype=tl.float32)
    if C < 16:  # a row of taps at a time, since a product needs 16 numbers
        for down in tl.static_range(3):
            tile = _window(x, row + down - 1, column, inner, HI, WI, C, TAPS)
            at = channel[None, :] * (TAPS * C) + (down * 3 * C + inner)[:, None]
            total = tl.dot(tile, tl.load(weight + at, mask=(inner < 3 * C)[:, None], other=0.0), total)
    else:
        for tap in tl.range(0, TAPS, num_stages=STAGES):
            r = row + (tap // 3 - 1 if TAPS == 9 else 0)
            s = column + (tap % 3 - 1 if TAPS == 9 else 0)
            inside = (r >= 0) & (r < HI) & (s >= 0) & (s < WI)
            tile = tl.load(x + (r * WI + s)[:, None] * C + inner[None, :], mask=inside[:, None], other=0.0)
            total = tl.dot(tile, tl.load(weight + channel[None, :] * (TAPS * C) + (tap * C + inner)[:, None]), total)
    return total


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _convolve_pairs(  # type: ignore[no-untyped-def]
    x, weight, conv, pre_at, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, BLOCK_P: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The same for 3×3 and stride 1, two neighbours at a time, as below. Writes c; returns the sums of its squares."""
    place = tl.arange(0, 4 * C)
    double = tl.arange(0, 2 * O)
    tap = (place // C)[:, None] - (double // O)[None, :]
    of = (double % O)[None, :] * (9 * C) + tap * C + (place % C)[:, None]
    pre = tl.load(pre_at + double % O)[None, :]
    square = tl.zeros((2 * O,), dtype=tl.float32)
    for start in tl.range(0, H * W, BLOCK_P, num_stages=1):
        pixel = start + 2 * tl.arange(0, BLOCK_P // 2)
        left = pixel % W - 1
        across = left[:, None] + (place // C)[None, :]
        total = tl.zeros((BLOCK_P // 2, 2 * O), dtype=tl.float32)
        for down in tl.range(0, 3, num_stages=STAGES):
            r = pixel // W + down - 1
            inside = ((r >= 0) & (r < H))[:, None] & (across >= 0) & (across < W)
            tile = tl.load(x + (r * W + left)[:, None] * C + place[None, :], mask=inside, other=0.0)
            part = tl.load(weight + of + down * 3 * C, mask=(tap >= 0) & (tap < 3), other=0.0)
            total = tl.dot(tile, part, total)
        rounded = total.to(conv.dtype.element_ty)
        tl.store(conv + pixel[:, None] * O + double[None, :], rounded)
        value = rounded.to(tl.float32) + pre
        square += tl.sum(value * value, 0)
    return tl.sum(tl.reshape(square, (2, O)), 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _output(  # type: ignore[no-untyped-def]
    value, scale, gain, bias, extra, res, y, at, ACT: tl.constexpr, HAS_RES: tl.constexpr, POOL: tl.constexpr
):
    """Write a tile of y; or return its sums over pixels, which is all that the head of the network reads."""
    if POOL:
        _, z = _affine(value, 0.0, scale[None, :], gain, bias, extra, 2)
        z = tl.maximum(z, extra[None, :])
        if HAS_RES:
            z += tl.load(res + at).to(tl.float32)
        if ACT == 2:
            z = z * tl.sigmoid(z)
        return tl.sum(z, 0)
    else:
        _finish(value, 0.0, scale[None, :], gain, bias, extra, res, y, y, at, at,
                2, ACT, False, HAS_RES, True, False)  # fmt: skip
        return scale  # never looked at


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def forward_kernel(  # type: ignore[no-untyped-def]
    x, weight, res, pre_at, gain_at, bias_at, extra_at, conv, y, stats, eps,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, O: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr, TAPS: tl.constexpr, ACT: tl.constexpr, HAS_RES: tl.constexpr, POOL: tl.constexpr,
    BLOCK_P: tl.constexpr, PAIRS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    PIXELS: tl.constexpr = H * W
    image = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, O)
    x += image * (PIXELS * STRIDE * STRIDE * C)
    base = image * (PIXELS * O)
    if PAIRS:
        square = _convolve_pairs(x, weight, conv + base, pre_at, H, W, C, O, BLOCK_P, STAGES)
        scale = 1.0 / tl.sqrt_rn(square / PIXELS + eps)
        pre = tl.load(pre_at + channel)[None, :]
        gain = tl.load(gain_at + channel)
        bias = tl.load(bias_at + channel)
        extra = tl.load(extra_at + channel)
        tl.debug_barrier()  # the image's c is complete, for all threads of this program
        pooled = tl.zeros((O,), dtype=tl.float32)
        for start in tl.range(0, PIXELS, BLOCK_P, num_stages=1):
            at = base + (start + tl.arange(0, BLOCK_P))[:, None] * O + channel[None, :]
            value = tl.load(conv + at).to(tl.float32) + pre
            part = _output(value, scale, gain, bias, extra, res, y, at, ACT, HAS_RES, POOL)
            if POOL:
                pooled += part
    else:
        total = _convolve(x, weight, H, W, C, O, BLOCK_C, STRIDE, TAPS, STAGES)
        at = base + tl.arange(0, PIXELS)[:, None] * O + channel[None, :]
        rounded = total.to(conv.dtype.element_ty)  # the backward pass must see the same numbers
        tl.store(conv + at, rounded)
        value = rounded.to(tl.float32) + tl.load(pre_at + channel)[None, :]
        scale = 1.0 / tl.sqrt_rn(tl.sum(value * value, 0) / PIXELS + eps)
        gain = tl.load(gain_at + channel)
        bias = tl.load(bias_at + channel)
        extra = tl.load(extra_at + channel)
        pooled = _output(value, scale, gain, bias, extra, res, y, at, ACT, HAS_RES, POOL)
    tl.store(stats + image * O + channel, scale)
    if POOL:
        tl.store(y + image * O + channel, pooled / PIXELS)
