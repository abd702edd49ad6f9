"""The backward kernels of `frn_rows_triton`: an image shared by several programs, sums between two kernels.

With a = y' · act'(…), the gradient before the activation, and m = 1 where the threshold lets a pass, else 0:
    c' = r · (gain · m a − u · gain · Σ(m a u) / pixels), u = (c + pre) · r, r = 1/√(mean square of c + pre)
Every program writes its sums over an image's pixels of m a c, m a, a and c. The next kernel adds them up for the image
and writes the image's gradients: Σ m a u of the gain, Σ m a of the bias, Σ (1 − m) a of the threshold, Σ c' of `pre`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atmc.nn.kernels.frn_rows_triton import _added, _around, _beside, _halves, _sigmoid


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _begin_tile(  # type: ignore[no-untyped-def]
    dy, conv, res, a, stats, pre_at, gain_at, bias_at, extra_at, partial, eps, images, image, part, start,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, COUNT: tl.constexpr, PARTS: tl.constexpr,
    SQUARES: tl.constexpr, ACT: tl.constexpr, HAS_RES: tl.constexpr, JOIN: tl.constexpr,
):  # fmt: skip
    """Write a of COUNT pixels and its sums, from a tile of dy. SQUARES: programs for an image in the forward pass."""
    column = tl.arange(0, JOIN * C)
    of = column % C
    gain = tl.load(gain_at + of) * tl.rsqrt(_added(stats, image, of, C, SQUARES) / (H * W) + eps)
    offset = tl.load(pre_at + of) * gain + tl.load(bias_at + of)
    at = image * (H * W * C) + start * C + tl.arange(0, COUNT // JOIN)[:, None] * (JOIN * C) + column[None, :]
    extra = tl.load(extra_at + of)[None, :]
    value = tl.load(conv + at).to(tl.float32)
    raw = value * gain[None, :] + offset[None, :]
    z = tl.maximum(raw, extra)
    if HAS_RES:
        z += tl.load(res + at).to(tl.float32)
    slope = dy
    if ACT == 2:
        soft = _sigmoid(z)
        slope = slope * (soft * (1.0 + (z - z * soft)))
    rounded = slope.to(a.dtype.element_ty)
    tl.store(a + at, rounded)
    after = rounded.to(tl.float32)
    slope = tl.where(raw > extra, after, 0.0)
    share = partial + (image * PARTS + part) * C + tl.arange(0, C)
    row = images * (PARTS * C)
    tl.store(share, _halves(tl.sum(slope * value, 0), C, JOIN))
    tl.store(share + row, _halves(tl.sum(slope, 0), C, JOIN))
    tl.store(share + 2 * row, _halves(tl.sum(after, 0), C, JOIN))
    tl.store(share + 3 * row, _halves(tl.sum(value, 0), C, JOIN))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def begin_kernel(  # type: ignore[no-untyped-def]
    dy, conv, res, a, stats, pre_at, gain_at, bias_at, extra_at, partial, eps, images,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, SQUARES: tl.constexpr, ACT: tl.constexpr,
    HAS_RES: tl.constexpr,
):  # fmt: skip
    COUNT: tl.constexpr = H * W // PARTS
    image = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    at = image * (H * W * C) + (part * COUNT + tl.arange(0, COUNT))[:, None] * C + tl.arange(0, C)[None, :]
    _begin_tile(tl.load(dy + at).to(tl.float32), conv, res, a, stats, pre_at, gain_at, bias_at, extra_at, partial, eps,
                images, image, part, part * COUNT, H, W, C, COUNT, PARTS, SQUARES, ACT, HAS_RES, 1)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _conv_gradient(conv, a, dc, at, inside, gain, offset, extra, across, along):  # type: ignore[no-untyped-def]
    """Write c' of one tile."""
    value = tl.load(conv + at, mask=inside).to(tl.float32)
    slope = tl.load(a + at, mask=inside).to(tl.float32)
    slope = tl.where(value * gain + offset > extra, slope, 0.0)
    tl.store(dc + at, (slope * gain + (value * across + along)).to(dc.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def backward_rows_kernel(  # type: ignore[no-untyped-def]
    conv, a, weight, pre_at, gain_at, bias_at, extra_at, stats, dc, partial, sums, add, dx,
    below, below_res, below_stats, below_pre, below_gain, below_bias, below_extra, below_partial, eps, images,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, SQUARES: tl.constexpr, ACT: tl.constexpr,
    HAS_ADD: tl.constexpr, BEGIN: tl.constexpr, HAS_RES: tl.constexpr, JOIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BEGIN: `dx` gets the gradient before the activation of the layer before, else that of its output."""
    COUNT: tl.constexpr = H * W // PARTS
    image = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    start = part * COUNT
    base = image * (H * W * C)
    channel = tl.arange(0, C)
    rstd = tl.rsqrt(_added(stats, image, channel, C, SQUARES) / (H * W) + eps)
    pre = tl.load(pre_at + channel)
    gain = tl.load(gain_at + channel) * rstd
    offset = pre * gain + tl.load(bias_at + channel)
    extra = tl.load(extra_at + channel)
    row = images * (PARTS * C)
    plain = _added(partial + row, image, channel, C, PARTS)
    scaled = rstd * (_added(partial, image, channel, C, PARTS) + pre * plain)  # Σ m a u
    across = -gain * rstd * scaled / (H * W)
    along = pre * across
    if PARTS > 1:
        near = _beside(start, COUNT, W)
        inside = ((near >= 0) & (near < H * W))[:, None]
        _conv_gradient(conv, a, dc, base + near[:, None] * C + channel[None, :], inside, gain[None, :],
                       offset[None, :], extra[None, :], across[None, :], along[None, :])  # fmt: skip
    own = start + tl.arange(0, COUNT)
    _conv_gradient(conv, a, dc, base + own[:, None] * C + channel[None, :], None, gain[None, :],
                   offset[None, :], extra[None, :], across[None, :], along[None, :])  # fmt: skip
    if part == 0:
        third = _added(partial + 2 * row, image, channel, C, PARTS) - plain
        length = _added(partial + 3 * row, image, channel, C, PARTS)
        share = sums + image * C + channel
        tl.store(share, scaled)
        tl.store(share + images * C, plain)
        tl.store(share + 2 * images * C, third)
        tl.store(share + 3 * images * C, gain * plain + across * length + along * (H * W))
    tl.debug_barrier()  # what this program reads of c' is complete
    back = _around(dc + base, weight, start, COUNT, H, W, C, JOIN, True, STAGES)
    at = base + start * C + tl.arange(0, COUNT // JOIN)[:, None] * (JOIN * C) + tl.arange(0, JOIN * C)[None, :]
    if HAS_ADD:
        back += tl.load(add + at).to(tl.float32)
    if BEGIN:
        _begin_tile(back, below, below_res, dx, below_stats, below_pre, below_gain, below_bias, below_extra,
                    below_partial, eps, images, image, part, start,
                    H, W, C, COUNT, PARTS, SQUARES, ACT, HAS_RES, JOIN)  # fmt: skip
    else:
        tl.store(dx + at, back.to(dx.dtype.element_ty))
