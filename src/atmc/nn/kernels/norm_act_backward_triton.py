"""The gradients of `norm_act_triton`'s functions in one kernel, by the same programs and tiles.

The kernel returns the gradient of s (with that of the stream, `ds`, added), of `res`, and for every image the sums over
its pixels that make up the gradients of the parameters. A second kernel adds those over images, in a fixed order, so
results are the same in every run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atmc.nn.kernels.norm_act_triton import _affine, _read, _source, _where, _write


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _slopes(  # type: ignore[no-untyped-def]
    value, dy, res, dres, mean, rstd, gain, bias, extra, at, inside,
    KIND: tl.constexpr, ACT: tl.constexpr, HAS_RES: tl.constexpr, THRESHOLD: tl.constexpr, MASKED: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """(gradient of z before the threshold, what the gain multiplies, gradient after the threshold).

    The first pass writes the last one, which is the gradient of `res`: then no register need keep it.
    """
    unit, z = _affine(value, mean, rstd, gain, bias, extra, KIND)
    raw = z
    if THRESHOLD:
        z = tl.maximum(z, extra[None, :])
    if HAS_RES:
        z += _read(res, at, inside, MASKED)
    slope = _read(dy, at, inside, MASKED)
    if ACT == 1:
        slope = tl.where(z > 0.0, slope, 0.0)
    elif ACT == 2:
        soft = tl.sigmoid(z)
        slope = slope * soft * (1.0 + z * (1.0 - soft))
    after = slope
    if HAS_RES and FIRST:
        _write(dres, at, inside, after, MASKED)
    if THRESHOLD:
        slope = tl.where(raw > extra[None, :], slope, 0.0)
    return slope, unit, after


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _third(value, slope, after, rstd, gain, extra, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile's share of the gradient of `extra`: EvoNorm's v, or FRN's threshold."""
    if KIND == 1:
        soft = tl.sigmoid(extra[None, :] * value)
        return tl.sum(slope * gain[None, :] * rstd * value * value * soft * (1.0 - soft), 0)
    else:
        return tl.sum(after - slope, 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _into(  # type: ignore[no-untyped-def]
    value, slope, unit, mean, rstd, gain, extra, first, second, ds, dx, at, inside,
    KIND: tl.constexpr, HAS_DS: tl.constexpr, MASKED: tl.constexpr, PRE_GRAD: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one tile; returns its column sums if the bias of the convolution before wants them."""
    along = slope * gain[None, :]
    if KIND == 0:
        grad = rstd * (along - first - unit * second)
    elif KIND == 1:
        soft = tl.sigmoid(extra[None, :] * value)
        grad = along * rstd * soft * (1.0 + extra[None, :] * value * (1.0 - soft))
        grad -= rstd * rstd * (value - mean) * second
    else:
        grad = rstd * (along - unit * second[None, :])
    if HAS_DS:
        grad += _read(ds, at, inside, MASKED)
    _write(dx, at, inside, grad, MASKED)
    if PRE_GRAD:
        if MASKED:
            grad = tl.where(inside, grad, 0.0)
        return tl.sum(grad, 0)
    else:
        return gain  # never looked at


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def backward_kernel(  # type: ignore[no-untyped-def]
    x, res, dy, ds, pre_bias, gain_at, bias_at, extra_at, stats, dx, dres, partial,
    channels, groups, images,
    PIXELS: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, ACT: tl.constexpr,
    HAS_DS: tl.constexpr, HAS_RES: tl.constexpr, HAS_PRE: tl.constexpr, PRE_GRAD: tl.constexpr,
    THRESHOLD: tl.constexpr, MASKED: tl.constexpr, RESIDENT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
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
    if KIND == 2:
        mean = 0.0
        rstd = tl.load(stats + image * channels + channel, mask=owned, other=0.0)[None, :]
    else:
        mean = tl.load(stats + program)
        rstd = tl.load(stats + images * groups + program)

    at, inside = _where(0, channel, base, channels, PIXELS, BLOCK_P, MASKED, last)
    value = _source(x, x, pre, at, inside, False, HAS_PRE, MASKED)
    slope, unit, after = _slopes(value, dy, res, dres, mean, rstd, gain, bias, extra, at, inside,
                                 KIND, ACT, HAS_RES, THRESHOLD, MASKED, True)  # fmt: skip
    plain = tl.sum(slope, 0)
    scaled = tl.sum(slope * unit, 0)
    third = plain
    if THRESHOLD or KIND == 1:
        third = _third(value, slope, after, rstd, gain, extra, KIND)
    if not RESIDENT:
        for start in range(BLOCK_P, PIXELS, BLOCK_P):
            there, within = _where(start, channel, base, channels, PIXELS, BLOCK_P, MASKED, last)
            more = _source(x, x, pre, there, within, False, HAS_PRE, MASKED)
            slopes, units, afters = _slopes(more, dy, res, dres, mean, rstd, gain, bias, extra, there, within,
                                            KIND, ACT, HAS_RES, THRESHOLD, MASKED, True)  # fmt: skip
            plain += tl.sum(slopes, 0)
            scaled += tl.sum(slopes * units, 0)
            if THRESHOLD or KIND == 1:
                third += _third(more, slopes, afters, rstd, gain, extra, KIND)

    row = image * channels + channel
    tl.store(partial + row, scaled, mask=owned)
    tl.store(partial + images * channels + row, plain, mask=owned)
    if THRESHOLD or KIND == 1:
        tl.store(partial + 2 * images * channels + row, third, mask=owned)

    # Sums over the group of what its channels' gains multiply: all that couples its elements.
    if KIND == 2:
        first = 0.0
        second = gain * scaled / PIXELS
    else:
        count = (last - group * GROUP) * PIXELS
        first = tl.sum(gain * plain, 0) / count
        second = tl.sum(gain * scaled, 0) / count

    if RESIDENT:
        total = _into(value, slope, unit, mean, rstd, gain, extra, first, second, ds, dx, at, inside,
                      KIND, HAS_DS, MASKED, PRE_GRAD)  # fmt: skip
    else:
        total = tl.zeros([BLOCK_C], tl.float32)
        for start in range(0, PIXELS, BLOCK_P):
            there, within = _where(start, channel, base, channels, PIXELS, BLOCK_P, MASKED, last)
            more = _source(x, x, pre, there, within, False, HAS_PRE, MASKED)
            slopes, units, afters = _slopes(more, dy, res, dres, mean, rstd, gain, bias, extra, there, within,
                                            KIND, ACT, HAS_RES, THRESHOLD, MASKED, False)  # fmt: skip
            total += _into(more, slopes, units, mean, rstd, gain, extra, first, second, ds, dx,
                           there, within, KIND, HAS_DS, MASKED, PRE_GRAD)  # fmt: skip
    if PRE_GRAD:
        tl.store(partial + (2 + (THRESHOLD or KIND == 1)) * images * channels + row, total, mask=owned)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def sum_kernel(  # type: ignore[no-untyped-def]
    partial, out, channels, images, BLOCK_I: tl.constexpr, BLOCK_C: tl.constexpr
):
    """out[row, channel] = sum of partial[row, image, channel] over images, in a fixed order."""
    row = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_I, BLOCK_C], tl.float32)
    for start in range(0, images, BLOCK_I):
        image = start + tl.arange(0, BLOCK_I)
        at = (row * images + image)[:, None] * channels + channel[None, :]
        total += tl.load(partial + at, mask=(image < images)[:, None] & (channel < channels)[None, :], other=0.0)
    tl.store(out + row * channels + channel, tl.sum(total, 0), mask=channel < channels)
