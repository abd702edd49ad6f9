"""Normalisation and activation of one example at a time, in one kernel each way (Triton, channels-last).

A program owns one image and one group of channels (GroupNorm, EvoNorm-S0), or one image and a block of channels (FRN,
whose statistics are per channel). A group that fits in registers is read from memory once; a larger one twice, the
second time mostly from the cache. Statistics are float32 and merged by chunks: a large mean costs no digits.

What is computed, with s = x [+ pre_bias] [+ h]:
    gn       z = gain · (s − mean) · r + bias          r = 1/√(variance of the group + eps)
    frn      z = max(gain · s · r + bias, extra)       r = 1/√(mean square of the channel + eps); extra may be missing
    evonorm  z = gain · s · σ(extra · s) · r + bias    r as for gn
    y = act(z [+ res])
The backward pass is in `norm_act_backward_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl

GN, EVONORM, FRN = 0, 1, 2
IDENTITY, RELU, SILU = 0, 1, 2
RESIDENT_ELEMENTS = 16384  # of a group: what eight warps hold in registers in the backward pass
LOOP_ELEMENTS = 8192  # of a chunk, where a group is larger than that
WARP_ELEMENTS = 2048  # of a tile: eight loads of sixteen bytes for each thread and tensor


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _where(start, channel, base, channels, PIXELS: tl.constexpr, BLOCK_P: tl.constexpr, MASKED: tl.constexpr, last):  # type: ignore[no-untyped-def]
    """(offsets, mask) of a tile of pixels × channels; no mask where the tile always fits."""
    p = start + tl.arange(0, BLOCK_P)
    at = base + p[:, None] * channels + channel[None, :]
    if MASKED:
        inside = (p < PIXELS)[:, None] & (channel < last)[None, :]
    else:
        inside = at  # never looked at
    return at, inside


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _read(pointer, at, inside, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    if MASKED:
        value = tl.load(pointer + at, mask=inside, other=0.0)
    else:
        value = tl.load(pointer + at)
    return value.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _write(pointer, at, inside, value, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    if MASKED:
        tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=inside)
    else:
        tl.store(pointer + at, value.to(pointer.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _source(  # type: ignore[no-untyped-def]
    x, h, pre, at, inside, HAS_H: tl.constexpr, HAS_PRE: tl.constexpr, MASKED: tl.constexpr
):
    """s, rounded as it will be stored where it is stored: the backward pass must see the same numbers."""
    value = _read(x, at, inside, MASKED)
    if HAS_PRE:
        value += pre[None, :]
    if HAS_H:
        value = (value + _read(h, at, inside, MASKED)).to(x.dtype.element_ty).to(tl.float32)
    if MASKED and HAS_PRE:
        value = tl.where(inside, value, 0.0)
    return value


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _moments(value, inside, count, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean and sum of squared differences of one tile of `count` numbers."""
    mean = tl.sum(tl.sum(value, 0), 0) / count
    apart = value - mean
    if MASKED:
        apart = tl.where(inside, apart, 0.0)
    return mean, tl.sum(tl.sum(apart * apart, 0), 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _affine(value, mean, rstd, gain, bias, extra, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """(what the gain multiplies, z before the threshold). `mean` and `rstd` broadcast against a tile."""
    if KIND == 0:
        unit = (value - mean) * rstd
    elif KIND == 1:
        unit = value * tl.sigmoid(extra[None, :] * value) * rstd
    else:
        unit = value * rstd
    return unit, unit * gain[None, :] + bias[None, :]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _finish(  # type: ignore[no-untyped-def]
    value, mean, rstd, gain, bias, extra, res, y, s, at, inside,
    KIND: tl.constexpr, ACT: tl.constexpr, HAS_H: tl.constexpr, HAS_RES: tl.constexpr, THRESHOLD: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    if HAS_H:
        _write(s, at, inside, value, MASKED)
    _, z = _affine(value, mean, rstd, gain, bias, extra, KIND)
    if THRESHOLD:
        z = tl.maximum(z, extra[None, :])
    if HAS_RES:
        z += _read(res, at, inside, MASKED)
    if ACT == 1:
        z = tl.maximum(z, 0.0)
    elif ACT == 2:
        z = z * tl.sigmoid(z)
    _write(y, at, inside, z, MASKED)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def forward_kernel(  # type: ignore[no-untyped-def]
    x, h, res, pre_bias, gain_at, bias_at, extra_at, y, s, stats, channels, groups, images, eps,
    PIXELS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, ACT: tl.constexpr,
    HAS_H: tl.constexpr, HAS_RES: tl.constexpr, HAS_PRE: tl.constexpr, THRESHOLD: tl.constexpr,
    MASKED: tl.constexpr, RESIDENT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    image = program // groups
    group = program % groups
    channel = group * GROUP + tl.arange(0, BLOCK_C)
    last = tl.minimum((group + 1) * GROUP, channels)
    base = image.to(tl.int64) * PIXELS * channels
    owned = channel < last
    gain = tl.load(gain_at + channel, mask=owned, other=0.0).to(tl.float32)
    bias = tl.load(bias_at + channel, mask=owned, other=0.0).to(tl.float32)
    extra = gain
    if THRESHOLD or KIND == 1:
        extra = tl.load(extra_at + channel, mask=owned, other=0.0).to(tl.float32)
    pre = gain
    if HAS_PRE:
        pre = tl.load(pre_bias + channel, mask=owned, other=0.0).to(tl.float32)
    width = (last - group * GROUP).to(tl.float32)

    at, inside = _where(0, channel, base, channels, PIXELS, BLOCK_P, MASKED, last)
    value = _source(x, h, pre, at, inside, HAS_H, HAS_PRE, MASKED)
    if KIND == 2:
        square = tl.sum(value * value, 0)
        if not RESIDENT:
            for start in range(BLOCK_P, PIXELS, BLOCK_P):
                there, within = _where(start, channel, base, channels, PIXELS, BLOCK_P, MASKED, last)
                more = _source(x, h, pre, there, within, HAS_H, HAS_PRE, MASKED)
                square += tl.sum(more * more, 0)
        scale = 1.0 / tl.sqrt_rn(square / PIXELS + eps)
        tl.store(stats + image * channels + channel, scale, mask=owned)
        mean = 0.0
        rstd = scale[None, :]
    else:
        count = tl.minimum(BLOCK_P, PIXELS) * width
        mean, apart = _moments(value, inside, count, MASKED)
        if not RESIDENT:
            for start in range(BLOCK_P, PIXELS, BLOCK_P):
                there, within = _where(start, channel, base, channels, PIXELS, BLOCK_P, MASKED, last)
                more = _source(x, h, pre, there, within, HAS_H, HAS_PRE, MASKED)
                extra_count = tl.minimum(BLOCK_P, PIXELS - start) * width
                its_mean, its_apart = _moments(more, within, extra_count, MASKED)
                total = count + extra_count
                step = its_mean - mean
                apart += its_apart + step * step * count * extra_count / total
                mean += step * extra_count / total
                count = total
        rstd = 1.0 / tl.sqrt_rn(apart / count + eps)
        tl.store(stats + program, mean)
        tl.store(stats + images * groups + program, rstd)

    if RESIDENT:
        _finish(value, mean, rstd, gain, bias, extra, res, y, s, at, inside,
                KIND, ACT, HAS_H, HAS_RES, THRESHOLD, MASKED)  # fmt: skip
    else:
        for start in range(0, PIXELS, BLOCK_P):
            there, within = _where(start, channel, base, channels, PIXELS, BLOCK_P, MASKED, last)
            more = _source(x, h, pre, there, within, HAS_H, HAS_PRE, MASKED)
            _finish(more, mean, rstd, gain, bias, extra, res, y, s, there, within,
                    KIND, ACT, HAS_H, HAS_RES, THRESHOLD, MASKED)  # fmt: skip
