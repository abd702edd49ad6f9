"""Triton kernels of `noise_friction.py`: B K'(p) in one pass over the state, and the update of B without the host."""

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
    CHECKED: tl.constexpr,
    DTYPE: tl.constexpr,
    STATE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each block's part of B (K'(p) + K'(p₀)) in `sums` [RANK, count]; keeps the difference of the gradients.

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


@triton.jit
def gram_kernel(
    rows,
    masses,
    sums,
    mass,
    length,
    n,
    HAS_MASS: tl.constexpr,
    N: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """This program's part of the scalar products of the first `n` rows, in the metric of 1/m, in `sums` [·, N, N]."""
    program = tl.program_id(0)
    row = tl.arange(0, N)
    long = length.to(tl.int64)
    total = tl.zeros((N, N), dtype=tl.float32)
    for tile in range(0, TILES):
        at = (program.to(tl.int64) * TILES + tile) * TILE + tl.arange(0, TILE)
        inside = (row < n)[:, None] & (at < length)[None, :]
        x = tl.load(rows + row.to(tl.int64)[:, None] * long + at[None, :], mask=inside, other=0.0)
        y = x / mass
        if HAS_MASS:
            y = x / tl.load(masses + at, mask=at < length, other=1.0)[None, :]
        total = tl.dot(x, tl.trans(y), total, input_precision="tf32x3")
    place = row[:, None] * N + row[None, :]
    tl.store(sums + program.to(tl.int64) * N * N + place, total)


@triton.jit
def eigen_kernel(gram, weights, n, rank, old, new, N: tl.constexpr, SWEEPS: tl.constexpr):
    """The `rank` strongest eigenvectors of the scaled Gram matrix in `weights` [rank + 1, N], by Jacobi's rotations.

    Rows of B are scaled by `old`, the others by `new`; so are the elements of the eigenvectors, to be multiplied with
    the rows as they are. In round k each row i is turned with row i xor k: N − 1 rounds meet every pair once. A matrix
    that is not finite (the chain diverges, which is told elsewhere) has a 0 in the last row, and leaves B as it is.
    """
    index = tl.arange(0, N)
    i = index[:, None] + 0 * index[None, :]
    j = index[None, :] + 0 * index[:, None]
    factor = tl.where(index < rank, old, tl.where(index < n, new, 0.0)).to(tl.float64)
    a = tl.load(gram + i * N + j) * factor[:, None] * factor[None, :]
    finite = tl.sum(tl.sum((a - a != 0.0).to(tl.int32), 1), 0) == 0
    a = tl.where(finite, a, 0.0)
    vectors = tl.where(i == j, 1.0, 0.0).to(tl.float64)
    for turn in range(0, SWEEPS * (N - 1)):
        k = turn % (N - 1) + 1
        partner = (i ^ k) == j
        own = tl.sum(tl.where(i == j, a, 0.0), 1)
        across = tl.sum(tl.where(i == j, a, 0.0), 0)
        others = tl.sum(tl.where(partner, across[None, :], 0.0), 1)
        off = tl.sum(tl.where(partner, a, 0.0), 1)
        none = off == 0.0
        slope = (others - own) / tl.where(none, 1.0, 2.0 * off)
        first = index < (index ^ k)
        sign = tl.where(slope > 0.0, 1.0, tl.where(slope < 0.0, -1.0, tl.where(first, 1.0, -1.0)))
        tangent = tl.where(none, 0.0, sign / (tl.abs(slope) + tl.sqrt(slope * slope + 1.0)))
        c = 1.0 / tl.sqrt(tangent * tangent + 1.0)
        s = -tangent * c
        # The same angles, laid out along columns.
        c_across = tl.sum(tl.where(i == j, c[:, None], 0.0), 0)
        s_across = tl.sum(tl.where(i == j, s[:, None], 0.0), 0)
        a = a * c[:, None] + tl.gather(a, i ^ k, 0) * s[:, None]
        a = a * c_across[None, :] + tl.gather(a, j ^ k, 1) * s_across[None, :]
        vectors = vectors * c[:, None] + tl.gather(vectors, i ^ k, 0) * s[:, None]
    own = tl.sum(tl.where(i == j, a, 0.0), 1)
    across = tl.sum(tl.where(i == j, a, 0.0), 0)
    above = (across[None, :] > own[:, None]) | ((across[None, :] == own[:, None]) & (j < i))
    order = tl.sum(above.to(tl.int32), 1)
    best = (vectors * factor[None, :]).to(tl.float32)
    tl.store(weights + order[:, None] * N + j, best, mask=(order < rank)[:, None])
    tl.store(weights + rank * N, tl.where(finite, 1.0, 0.0))


@triton.jit
def combine_kernel(rows, weights, length, n, rank, N: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr):
    """B ← W [B; differences], in place: a program owns its columns."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = tl.arange(0, N)
    new = tl.arange(0, R)
    long = length.to(tl.int64)
    inside = (row < n)[:, None] & (at < length)[None, :]
    x = tl.load(rows + row.to(tl.int64)[:, None] * long + at[None, :], mask=inside, other=0.0)
    w = tl.load(weights + new[:, None] * N + row[None, :], mask=(new < rank)[:, None], other=0.0)
    best = tl.dot(w, x, input_precision="ieee")
    finite = tl.load(weights + rank * N + new * 0) > 0.0
    kept = ((new < rank) & finite)[:, None] & (at < length)[None, :]
    tl.store(rows + new.to(tl.int64)[:, None] * long + at[None, :], best, mask=kept)
