"""The samplers' Triton kernels. The formulas are those of `integrator.py`; a test holds the two together."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

PI_OVER_2_31 = tl.constexpr(1.4629180792671596e-09)


@triton.jit
def _normals(key, counter, step, stream):
    """Four independent standard normals per counter value: Box–Muller on one Philox call."""
    zero = counter * 0
    low = (step & 0x7FFFFFFF).to(tl.int32)
    high = (step >> 31).to(tl.int32)
    a, b, c, d = tl.philox(key, counter, zero + low, zero + high, zero + stream)
    r0 = tl.sqrt(-2.0 * tl.log(((a >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10))
    r1 = tl.sqrt(-2.0 * tl.log(((c >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10))
    t0 = b.to(tl.int32, bitcast=True).to(tl.float32) * PI_OVER_2_31
    t1 = d.to(tl.int32, bitcast=True).to(tl.float32) * PI_OVER_2_31
    return r0 * tl.cos(t0), r0 * tl.sin(t0), r1 * tl.cos(t1), r1 * tl.sin(t1)


@triton.jit
def _pick(n0, n1, n2, n3, q: tl.constexpr):
    if q < 2:
        return n0 if q == 0 else n1
    else:
        return n2 if q == 2 else n3


@triton.jit
def _slowing(p, k, HYPERBOLIC: tl.constexpr):
    if HYPERBOLIC:
        return tl.rsqrt(p * p * k + 1.0)
    else:
        return p * 0.0 + 1.0


@triton.jit
def _momentum(p, g, eta, alpha, beta, h, m, k, T, HYPERBOLIC: tl.constexpr, CORRECTED: tl.constexpr):
    r = _slowing(p, k, HYPERBOLIC)
    x = beta * r * h + 1e-30
    e = libdevice.expm1(-x)
    kick = -e / x * h
    variance = kick * (e + 2.0) * alpha * m * T
    new = p + p * e - g * kick + eta * tl.sqrt(variance)
    if HYPERBOLIC and CORRECTED:
        change = (_slowing(new, k, HYPERBOLIC) - r) * beta * h * 0.5
        new = new - new * (change / (tl.abs(change) + 1.0))
    return new


@triton.jit
def _virial(p, m, k, HYPERBOLIC: tl.constexpr):
    return p * p * _slowing(p, k, HYPERBOLIC) / m


@triton.jit
def _middle_virial(p, g, alpha, beta, h, m, k, T, HYPERBOLIC: tl.constexpr):
    r = _slowing(p, k, HYPERBOLIC)
    x = beta * r * h + 1e-30
    e = libdevice.expm1(-x)
    kick = -e / x * h
    half = tl.sqrt(e + 1.0)
    mean = p * half - g * (kick / (half + 1.0))
    variance = kick * alpha * m * T
    if HYPERBOLIC:
        reach = tl.sqrt(variance * 3.0)
        sides = _virial(mean - reach, m, k, HYPERBOLIC) + _virial(mean + reach, m, k, HYPERBOLIC)
        return sides / 6.0 + _virial(mean, m, k, HYPERBOLIC) * (2.0 / 3.0)
    else:
        return (mean * mean + variance) / m


@triton.jit
def step_kernel(
    chunks,
    table,
    hyper,
    momentum,
    thermostat,
    masses,
    step_ptr,
    ticket,
    bad_step,
    partial,
    key,
    shard,
    count,
    KIND: tl.constexpr,
    HYPERBOLIC: tl.constexpr,
    CORRECTED: tl.constexpr,
    STRANG: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_MASS: tl.constexpr,
    PRECONDITIONED: tl.constexpr,
    CHECKED: tl.constexpr,
    DTYPE: tl.constexpr,
    STATE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of one block of one parameter. KIND: 0 ATMC, 1 SGNHT, 2 SGHMC, 3 SGLD."""
    QUARTER: tl.constexpr = BLOCK // 4
    block = tl.program_id(0)
    tensor = tl.load(chunks + 2 * block)
    start = tl.load(chunks + 2 * block + 1)
    row = table + 16 * tensor
    theta_address = tl.load(row)
    grad_address = tl.load(row + 1)
    numel = tl.load(row + 2)
    offset = tl.load(row + 3)
    lr_address = tl.load(row + 4)
    temperature_address = tl.load(row + 5)
    last_address = tl.load(row + 6)
    values = hyper + 16 * tensor + 8
    h = tl.load(values).to(STATE)
    T = tl.load(values + 1).to(STATE)
    if lr_address != 0:
        h = tl.load(lr_address.to(tl.pointer_type(tl.float32))).to(STATE)
    if temperature_address != 0:
        T = tl.load(temperature_address.to(tl.pointer_type(tl.float32))).to(STATE)
    last = h
    if STRANG:
        last = tl.load(last_address.to(tl.pointer_type(tl.float64))).to(STATE)
    mass = tl.load(values + 2).to(STATE)
    scale = tl.load(values + 3).to(STATE)
    D = tl.load(values + 4).to(STATE)
    quiet_noise = tl.load(values + 5).to(STATE)
    inverse_inertia = tl.load(values + 6).to(STATE)
    step = tl.load(step_ptr)
    live = grad_address != 0
    if CHECKED:
        live = live & (tl.load(bad_step) != step)

    lane = tl.arange(0, QUARTER)
    counter = (block * QUARTER + lane).to(tl.int32)
    n0, n1, n2, n3 = _normals(key, counter, step, 2 * shard)
    s0, s1, s2, s3 = n0, n1, n2, n3
    if STRANG:
        s0, s1, s2, s3 = _normals(key, counter, step, 2 * shard + 1)

    theta_ptr = tl.multiple_of(theta_address.to(tl.pointer_type(DTYPE)), ALIGN)
    grad_ptr = tl.multiple_of(grad_address.to(tl.pointer_type(DTYPE)), ALIGN)
    if ALIGN == 16:
        offset = tl.multiple_of(offset, 4)
    kinetic = tl.zeros((QUARTER,), dtype=STATE)
    virial = tl.zeros((QUARTER,), dtype=STATE)
    heat = tl.zeros((QUARTER,), dtype=STATE)
    for q in tl.static_range(4):
        at = tl.multiple_of(start, 2048) + q * QUARTER + lane
        inside = (at < numel) & live
        eta = _pick(n0, n1, n2, n3, q).to(STATE)
        theta = tl.load(theta_ptr + at, mask=inside, other=0.0).to(STATE)
        g = tl.load(grad_ptr + at, mask=inside, other=0.0).to(STATE)
        if KIND == 3:
            reach = h + g * 0.0
            if PRECONDITIONED:
                square = tl.load(momentum + offset + at, mask=inside, other=0.0)
                square = square * D + g * g * (1.0 - D)
                tl.store(momentum + offset + at, square, mask=inside)
                reach = h / (tl.sqrt(square) + inverse_inertia)
            moved = eta * tl.sqrt(reach * 2.0 * T) - g * reach
        else:
            p = tl.load(momentum + offset + at, mask=inside, other=0.0)
            m = mass + p * 0.0
            k = scale
            if HAS_MASS:
                # A per-element mass scales the tensor's own, which is 1 then.
                each = tl.load(masses + offset + at, mask=inside, other=1.0)
                m = m * each
                if HYPERBOLIC:
                    k = scale / (each * each)
            if KIND == 2:
                alpha = quiet_noise + p * 0.0
                beta = D + p * 0.0
                xi = p * 0.0
            else:
                if SHARED:
                    xi = tl.load(thermostat) + p * 0.0
                else:
                    xi = tl.load(thermostat + offset + at, mask=inside, other=0.0)
                if KIND == 0:
                    alpha = tl.maximum(D - xi, 0.0)
                    beta = tl.maximum(xi, D)
                else:
                    alpha = D + p * 0.0
                    beta = D + xi
            if STRANG:
                eta2 = _pick(s0, s1, s2, s3, q).to(STATE)
                p = _momentum(p, g, eta, alpha, beta, last * 0.5, m, k, T, HYPERBOLIC, CORRECTED)
                reading = _virial(p, m, k, HYPERBOLIC)
                p = _momentum(p, g, eta2, alpha, beta, h * 0.5, m, k, T, HYPERBOLIC, CORRECTED)
            else:
                reading = _middle_virial(p, g, alpha, beta, h, m, k, T, HYPERBOLIC)
                p = _momentum(p, g, eta, alpha, beta, h, m, k, T, HYPERBOLIC, CORRECTED)
            tl.store(momentum + offset + at, p, mask=inside)
            r = _slowing(p, k, HYPERBOLIC)
            velocity = p * r / m
            moved = velocity * h
            if KIND != 2:
                warming = (velocity * velocity * m - r * r * r * T) * h * inverse_inertia
                if SHARED:
                    heat += tl.where(inside, warming, 0.0)
                else:
                    tl.store(thermostat + offset + at, xi + warming, mask=inside)
            kinetic += tl.where(inside, reading, 0.0)
        virial += theta * g
        tl.store(theta_ptr + at, (theta + moved).to(DTYPE), mask=inside)

    if live:
        total = tl.sum(kinetic.to(tl.float64))
        if KIND == 3:
            total = total + float("nan")
        tl.store(partial + 3 * block, total)
        tl.store(partial + 3 * block + 1, tl.sum(virial.to(tl.float64)))
    tl.store(partial + 3 * block + 2, tl.sum(heat.to(tl.float64)))
    # The last program to finish moves the step on, when all others have read it.
    if tl.atomic_add(ticket, 1) == count - 1:
        tl.store(ticket, 0)
        tl.store(step_ptr, step + 1)


@triton.jit
def check_kernel(
    chunks, table, step_ptr, bad_step, first_bad, CODE: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr
):
    """Note the step as bad if any gradient element of this block is not finite."""
    block = tl.program_id(0)
    tensor = tl.load(chunks + 2 * block)
    start = tl.load(chunks + 2 * block + 1)
    address = tl.load(table + 16 * tensor + 1)
    numel = tl.load(table + 16 * tensor + 2)
    if address != 0:
        at = start + tl.arange(0, BLOCK)
        g = tl.load(address.to(tl.pointer_type(DTYPE)) + at, mask=at < numel, other=0.0).to(tl.float32)
        bad = tl.sum((g - g != 0.0).to(tl.int32))
        if bad > 0:
            step = tl.load(step_ptr)
            tl.atomic_max(bad_step, step)
            tl.atomic_min(first_bad, step * CODE + tensor)


@triton.jit
def noise_kernel(chunks, table, out, step_ptr, key, shard, draw, BLOCK: tl.constexpr):
    """The normals that `step_kernel` would use at this step, laid out like the flat state."""
    QUARTER: tl.constexpr = BLOCK // 4
    block = tl.program_id(0)
    tensor = tl.load(chunks + 2 * block)
    start = tl.load(chunks + 2 * block + 1)
    numel = tl.load(table + 16 * tensor + 2)
    offset = tl.load(table + 16 * tensor + 3)
    lane = tl.arange(0, QUARTER)
    counter = (block * QUARTER + lane).to(tl.int32)
    n0, n1, n2, n3 = _normals(key, counter, tl.load(step_ptr), 2 * shard + draw)
    for q in tl.static_range(4):
        at = start + q * QUARTER + lane
        tl.store(out + offset + at, _pick(n0, n1, n2, n3, q), mask=at < numel)
