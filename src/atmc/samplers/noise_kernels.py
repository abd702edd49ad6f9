"""Triton kernels of `noise_friction.py`: B K'(p) in one pass over the state."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from atmc.samplers.triton_kernels import _coefficients, _momentum, _normals, _reciprocal, _settings, _slowing


@triton.jit
def _quarter(
    at,
    inside,
    eta,
    grad_ptr,
    momentum,
    thermostat,
    masses,
    fresh,
    last,
    begun,
    h,
    T,
    mass,
    scale,
    D,
    quiet_noise,
    weight,
    KIND: tl.constexpr,
    HYPERBOLIC: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_MASS: tl.constexpr,
    STATE: tl.constexpr,
):
    """K'(p) + K'(p₀) of some elements; the difference of their gradients is kept. Pointers begin at the parameter."""
    g = tl.load(grad_ptr + at, mask=inside, other=0.0).to(STATE)
    before = tl.load(last + at, mask=inside, other=0.0)
    tl.store(fresh + at, (g - before) * 0.7071067811865476 * begun, mask=inside)
    tl.store(last + at, g, mask=inside)
    p = tl.load(momentum + at, mask=inside, other=0.0)
    m = mass
    k = scale
    if HAS_MASS:
        each = tl.load(masses + at, mask=inside, other=1.0)
        m = mass * each
        if HYPERBOLIC:
            k = scale * _reciprocal(each * each)
    kept = 0.0
    if SHARED:
        kept = tl.load(thermostat)
    elif KIND != 2:
        kept = tl.load(thermostat + at, mask=inside, other=0.0)
    alpha, beta = _coefficients(kept, weight, D, quiet_noise, KIND)
    plain = _momentum(p, g, eta.to(STATE), alpha, beta, h, m, k, T, HYPERBOLIC, False, 0.0, True)
    moving = (p * _slowing(p, k, HYPERBOLIC) + plain * _slowing(plain, k, HYPERBOLIC)) * _reciprocal(m + p * 0.0)
    return tl.where(inside, moving, 0.0)


@triton.jit
def moving_kernel(
    chunks,
    table,
    hyper,
    momentum,
    thermostat,
    masses,
    step_ptr,
    bad_step,
    rows,
    sums,
    velocity,
    key,
    shard,
    count,
    length,
    KIND: tl.constexpr,
    HYPERBOLIC: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_MASS: tl.constexpr,
    RANK: tl.constexpr,
    EVERY: tl.constexpr,
    GROUP: tl.constexpr,
    KEEP: tl.constexpr,
    CHECKED: tl.constexpr,
    DTYPE: tl.constexpr,
    STATE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each block's part of B (K'(p) + K'(p₀)) in `sums` [RANK, count]; keeps the difference of the gradients.

    KEEP: K'(p) + K'(p₀) itself in `velocity` instead, laid out like the momenta.

    `rows` [RANK + EVERY + 1, length] are B, the differences not taken in yet, and the last gradient.
    """
    QUARTER: tl.constexpr = BLOCK // 4
    block = tl.program_id(0)
    tensor = tl.load(chunks + 2 * block)
    start = tl.load(chunks + 2 * block + 1)
    grad_address = tl.load(table + 16 * tensor + 1)
    numel = tl.load(table + 16 * tensor + 2)
    offset = tl.load(table + 16 * tensor + 3)
    h, T, mass, scale, D, quiet_noise, _inertia, weight = _settings(table, hyper, tensor, STATE)
    step = tl.load(step_ptr)
    taken = step >= 0
    if CHECKED:
        taken = tl.load(bad_step) != step
    live = taken & (grad_address != 0)
    begun = tl.where(step > 0, 1.0, 0.0).to(STATE)  # the first step has no difference
    lane = tl.arange(0, QUARTER)
    counter = (block * QUARTER + lane).to(tl.int32)
    n0, n1, n2, n3 = _normals(key, counter, step, 2 * shard)
    if ALIGN == 16:
        offset = tl.multiple_of(offset, 4)
    long = length.to(tl.int64)
    grad_ptr = tl.multiple_of(grad_address.to(tl.pointer_type(DTYPE)), ALIGN)
    fresh = rows + (step % EVERY + RANK) * long + offset
    last = rows + (RANK + EVERY) * long + offset
    p = momentum + offset
    xi = thermostat if SHARED else thermostat + offset
    each = masses + offset
    a0 = tl.multiple_of(start, 2048) + lane
    a1, a2, a3 = a0 + QUARTER, a0 + 2 * QUARTER, a0 + 3 * QUARTER
    i0, i1, i2, i3 = (a0 < numel) & live, (a1 < numel) & live, (a2 < numel) & live, (a3 < numel) & live
    # fmt: off
    v0 = _quarter(a0, i0, n0, grad_ptr, p, xi, each, fresh, last, begun, h, T, mass, scale, D, quiet_noise, weight,
                  KIND, HYPERBOLIC, SHARED, HAS_MASS, STATE)
    v1 = _quarter(a1, i1, n1, grad_ptr, p, xi, each, fresh, last, begun, h, T, mass, scale, D, quiet_noise, weight,
                  KIND, HYPERBOLIC, SHARED, HAS_MASS, STATE)
    v2 = _quarter(a2, i2, n2, grad_ptr, p, xi, each, fresh, last, begun, h, T, mass, scale, D, quiet_noise, weight,
                  KIND, HYPERBOLIC, SHARED, HAS_MASS, STATE)
    v3 = _quarter(a3, i3, n3, grad_ptr, p, xi, each, fresh, last, begun, h, T, mass, scale, D, quiet_noise, weight,
                  KIND, HYPERBOLIC, SHARED, HAS_MASS, STATE)
    # fmt: on
    if KEEP:
        kept = velocity + offset
        tl.store(kept + a0, v0, mask=a0 < numel)  # 0 without a gradient
        tl.store(kept + a1, v1, mask=a1 < numel)
        tl.store(kept + a2, v2, mask=a2 < numel)
        tl.store(kept + a3, v3, mask=a3 < numel)
    else:
        factor = rows + offset
        for first in range(0, RANK, GROUP):
            row = first + tl.arange(0, GROUP)
            known = (row < RANK)[:, None]
            at = factor + row.to(tl.int64)[:, None] * long
            total = tl.load(at + a0[None, :], mask=known & i0[None, :], other=0.0) * v0[None, :]
            total += tl.load(at + a1[None, :], mask=known & i1[None, :], other=0.0) * v1[None, :]
            total += tl.load(at + a2[None, :], mask=known & i2[None, :], other=0.0) * v2[None, :]
            total += tl.load(at + a3[None, :], mask=known & i3[None, :], other=0.0) * v3[None, :]
            tl.store(sums + row.to(tl.int64) * count + block, tl.sum(total, 1), mask=row < RANK)


@triton.jit
def along_kernel(table, hyper, sums, scale, along, COUNT: tl.constexpr, STATE: tl.constexpr, WIDE: tl.constexpr):
    """How much of each row of B is taken off the momentum: c [(1 + ρ) + c λ]⁻¹ B (K'(p) + K'(p₀)), c = h²/4T."""
    row = tl.program_id(0)
    lane = tl.arange(0, WIDE)
    total = tl.zeros((WIDE,), dtype=tl.float64)
    for start in range(0, COUNT, WIDE):
        at = start + lane
        total += tl.load(sums + row.to(tl.int64) * COUNT + at, mask=at < COUNT, other=0.0).to(tl.float64)
    h, T, _mass, _scale, D, _quiet, _inertia, _weight = _settings(table, hyper, 0, STATE)
    h = h.to(tl.float64)
    T = T.to(tl.float64)
    strength = tl.where(T > 0.0, h * h / (4.0 * tl.where(T > 0.0, T, 1.0)), 0.0)
    decay = tl.exp(-h * D.to(tl.float64))
    drag = (1.0 - decay) / (1.0 + decay)  # tanh(D h/2)
    value = tl.sum(total) * strength / (tl.load(scale + row) * strength + drag + 1.0)
    tl.store(along + row, value.to(STATE))
