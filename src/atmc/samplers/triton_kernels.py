"""The samplers' Triton kernels. The formulas are those of `integrator.py`; a test holds the two together."""

# mypy: ignore-errors
from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Triton's interpreter, which runs kernels on a CPU for tests, knows neither the hardware's instructions nor libdevice.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _round(x):
    if INTERPRETED:
        return tl.floor(x + 0.5)
    else:
        return libdevice.rint(x)


@triton.jit
def _turn(u):
    """cos and sin of a whole turn times u, for u in [−½, ½], as in step.c: no branch for what never comes."""
    half = _round(2.0 * u)
    x = u - 0.5 * half
    y = x * x
    sign = 1.0 - 2.0 * half * half
    c = y * -24.98143432 + 60.14388954
    c = c * y - 85.45356476
    c = c * y + 64.93934648
    c = c * y - 19.73920855
    c = c * y + 0.9999999998
    s = y * -14.39396588 + 42.00977922
    s = s * y - 76.70427987
    s = s * y + 81.60522617
    s = s * y - 41.34170212
    s = s * y + 6.283185307
    return sign * c, sign * s * x


@triton.jit
def _sqrt(x):
    """√x; in float32 the hardware's own, without the detour for denormal numbers."""
    if x.dtype == tl.float64 or INTERPRETED:
        return tl.sqrt(x)
    else:
        return tl.inline_asm_elementwise("sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def _rsqrt(x):
    """1/√x, likewise."""
    if x.dtype == tl.float64 or INTERPRETED:
        return tl.rsqrt(x)
    else:
        return tl.inline_asm_elementwise("rsqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def _reciprocal(x):
    """1/x, likewise."""
    if x.dtype == tl.float64 or INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def _normals(key, counter, step, stream):
    """Four independent standard normals per counter value: Box–Muller on one Philox call."""
    zero = counter * 0
    low = (step & 0x7FFFFFFF).to(tl.int32)
    high = (step >> 31).to(tl.int32)
    a, b, c, d = tl.philox(key, counter, zero + low, zero + high, zero + stream)
    r0 = _sqrt(-2.0 * tl.log(((a >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10))
    r1 = _sqrt(-2.0 * tl.log(((c >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10))
    c0, s0 = _turn(b.to(tl.int32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10)
    c1, s1 = _turn(d.to(tl.int32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10)
    return r0 * c0, r0 * s0, r1 * c1, r1 * s1


@triton.jit
def _pick(n0, n1, n2, n3, q: tl.constexpr):
    if q < 2:
        return n0 if q == 0 else n1
    else:
        return n2 if q == 2 else n3


@triton.jit
def _slowing(p, k, HYPERBOLIC: tl.constexpr):
    if HYPERBOLIC:
        return _rsqrt(p * p * k + 1.0)
    else:
        return 1.0


@triton.jit
def _expm1(x):
    """e^x − 1 as in step.c: half the instructions of the library's, to a relative error near 1e-7."""
    if x.dtype == tl.float64:
        return libdevice.expm1(x)
    else:
        x = tl.minimum(tl.maximum(x, -87.0), 88.0)
        n = _round(x * 1.44269504)
        r = (x - n * 0.693145752) - n * 1.42860677e-6
        q = r * 0.000198992743 + 0.001394110843
        q = q * r + 0.008333298483
        q = q * r + 0.0416663529
        q = q * r + 0.1666666672
        q = q * r + 0.5000000047
        q = (q * r + 1.0) * r
        scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
        return scale * q + (scale - 1.0)


@triton.jit
def _momentum(
    p,
    g,
    eta,
    alpha,
    beta,
    h,
    m,
    k,
    T,
    HYPERBOLIC: tl.constexpr,
    CORRECTED: tl.constexpr,
    drag=0.0,
    MIDPOINT: tl.constexpr = False,
):
    """The momentum step; MIDPOINT: that of `noise_friction.py`, where `drag` is the friction along the noise."""
    r = _slowing(p, k, HYPERBOLIC)
    x = beta * r * h + 1e-30
    e = _expm1(-x)
    kick = -e * _reciprocal(x) * h
    variance = kick * (e + 2.0) * alpha * (m * T)
    if MIDPOINT:
        new = p + p * e - (g * ((e + 2.0) * (h * 0.5)) + drag) + eta * _sqrt(variance)
    else:
        new = p + p * e - g * kick + eta * _sqrt(variance)
    if HYPERBOLIC and CORRECTED:
        change = (_slowing(new, k, HYPERBOLIC) - r) * beta * (h * 0.5)
        new = new - new * (change * _reciprocal(tl.abs(change) + 1.0))
    return new


@triton.jit
def _middle_virial(p, g, beta, h, inverse_mass, k, HYPERBOLIC: tl.constexpr):
    r = _slowing(p, k, HYPERBOLIC)
    x = beta * r * h + 1e-30
    e = _expm1(-x)
    reach = -e * _reciprocal(x) * h * _reciprocal(e + 2.0)
    return (p - g * reach * ((r * r + 1.0) * 0.5)) * p * r * inverse_mass


@triton.jit
def _settings(table, hyper, tensor, STATE: tl.constexpr):
    """h, T, m, 1/(mc)², D, the least noise, 1/μ and the thermostat's weight of one parameter."""
    lr_address = tl.load(table + 16 * tensor + 4)
    temperature_address = tl.load(table + 16 * tensor + 5)
    values = hyper + 16 * tensor + 8
    h = tl.load(values).to(STATE)
    T = tl.load(values + 1).to(STATE)
    if lr_address != 0:
        h = tl.load(lr_address.to(tl.pointer_type(tl.float32))).to(STATE)
    if temperature_address != 0:
        T = tl.load(temperature_address.to(tl.pointer_type(tl.float32))).to(STATE)
    mass = tl.load(values + 2).to(STATE)
    scale = tl.load(values + 3).to(STATE)
    D = tl.load(values + 4).to(STATE)
    quiet_noise = tl.load(values + 5).to(STATE)
    if D < 0.0:  # −D h, of a group that says how much momentum a step leaves
        D = -D / h
        quiet_noise = -quiet_noise / h
    inverse_inertia = tl.load(values + 6).to(STATE)
    # What step size and temperature make of the thermostat; divided exactly, so that backends agree. At T = 0 it rests.
    warm = tl.load(values - 1).to(STATE).to(tl.float64)
    now = h.to(tl.float64) * tl.where(warm > 0.0, warm, 1.0)
    reference = tl.load(values + 7).to(STATE).to(tl.float64)
    full = reference * tl.where(warm > 0.0, T.to(tl.float64), 1.0)
    weight = tl.where(full > now, now / full, 1.0)
    weight = tl.where((reference > 0.0) & (T == 0.0), 0.0, weight).to(STATE)
    return h, T, mass, scale, D, quiet_noise, inverse_inertia, weight


@triton.jit
def _coefficients(kept, weight, D, quiet_noise, KIND: tl.constexpr):
    """Noise level α and friction β for what is kept of the thermostat."""
    if KIND == 2:
        alpha = quiet_noise
        beta = D
    else:
        xi = kept * weight
        if KIND == 0:
            alpha = tl.maximum(D - xi, 0.0)
            beta = tl.maximum(xi, D)
        else:
            alpha = D
            beta = D + xi
    return alpha, beta


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
    every,
    factor,
    along,
    length,
    KIND: tl.constexpr,
    HYPERBOLIC: tl.constexpr,
    CORRECTED: tl.constexpr,
    STRANG: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_MASS: tl.constexpr,
    PRECONDITIONED: tl.constexpr,
    RANK: tl.constexpr,
    CHECKED: tl.constexpr,
    DTYPE: tl.constexpr,
    STATE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of one block of one parameter. KIND: 0 ATMC, 1 SGNHT, 2 SGHMC, 3 SGLD. RANK: of `noise_friction.py`."""
    QUARTER: tl.constexpr = BLOCK // 4
    block = tl.program_id(0)
    tensor = tl.load(chunks + 2 * block)
    start = tl.load(chunks + 2 * block + 1)
    row = table + 16 * tensor
    theta_address = tl.load(row)
    grad_address = tl.load(row + 1)
    numel = tl.load(row + 2)
    offset = tl.load(row + 3)
    last_address = tl.load(row + 6)
    h, T, mass, scale, D, quiet_noise, inverse_inertia, weight = _settings(table, hyper, tensor, STATE)
    last = h
    if STRANG:
        last = tl.load(last_address.to(tl.pointer_type(tl.float64))).to(STATE)
    inverse = 1.0 / mass
    step = tl.load(step_ptr)
    measured = step % every == 0
    taken = step >= 0
    if CHECKED:
        taken = tl.load(bad_step) != step
    live = taken & (grad_address != 0)

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
                reach = h * _reciprocal(_sqrt(square) + inverse_inertia)
            moved = eta * _sqrt(reach * 2.0 * T) - g * reach
        else:
            p = tl.load(momentum + offset + at, mask=inside, other=0.0)
            m = mass
            inverse_mass = inverse
            k = scale
            if HAS_MASS:
                # Per-element masses multiply the tensor's own; of the two, one is always 1.
                each = _reciprocal(tl.load(masses + offset + at, mask=inside, other=1.0))
                m = mass * tl.load(masses + offset + at, mask=inside, other=1.0)
                inverse_mass = inverse * each
                if HYPERBOLIC:
                    k = scale * each * each
            kept = 0.0
            if SHARED:
                kept = tl.load(thermostat)
            elif KIND != 2:
                kept = tl.load(thermostat + offset + at, mask=inside, other=0.0)
            alpha, beta = _coefficients(kept, weight, D, quiet_noise, KIND)
            if measured:
                kinetic += tl.where(inside, _middle_virial(p, g, beta, last, inverse_mass, k, HYPERBOLIC), 0.0)
            if STRANG:
                eta2 = _pick(s0, s1, s2, s3, q).to(STATE)
                p = _momentum(p, g, eta, alpha, beta, last * 0.5, m, k, T, HYPERBOLIC, CORRECTED)
                p = _momentum(p, g, eta2, alpha, beta, h * 0.5, m, k, T, HYPERBOLIC, CORRECTED)
            elif RANK > 0:
                drag = tl.zeros((QUARTER,), dtype=STATE)
                for first in range(0, RANK, 4):
                    for i in tl.static_range(4):  # beyond RANK `along` is 0, and the rows are other finite numbers
                        row_at = factor + length.to(tl.int64) * (first + i) + offset + at
                        drag += tl.load(along + first + i) * tl.load(row_at, mask=inside, other=0.0)
                p = _momentum(p, g, eta, alpha, beta, h, m, k, T, HYPERBOLIC, CORRECTED, drag, True)
            else:
                p = _momentum(p, g, eta, alpha, beta, h, m, k, T, HYPERBOLIC, CORRECTED)
            tl.store(momentum + offset + at, p, mask=inside)
            r = _slowing(p, k, HYPERBOLIC)
            velocity = p * r * inverse_mass
            moved = velocity * h
            if KIND != 2:
                warming = (velocity * velocity * m - r * r * r * T) * (h * inverse_inertia * weight)
                if SHARED:
                    heat += tl.where(inside, warming, 0.0)
                else:
                    tl.store(thermostat + offset + at, kept + warming, mask=inside)
        virial += theta * g
        tl.store(theta_ptr + at, (theta + moved).to(DTYPE), mask=inside)

    if taken & measured:
        absent = tl.where(live, 0.0, float("nan"))  # a parameter without a gradient has no reading
        total = tl.sum(kinetic.to(tl.float64)) + absent
        if KIND == 3:
            total = total + float("nan")
        tl.store(partial + 3 * block, total)
        tl.store(partial + 3 * block + 1, tl.sum(virial.to(tl.float64)) + absent)
    tl.store(partial + 3 * block + 2, tl.sum(heat.to(tl.float64)))
    # The last program to finish moves the step on, when all others have read it.
    if tl.atomic_add(ticket, 1) == count - 1:
        tl.store(ticket, 0)
        tl.store(step_ptr, step + 1)
        if taken & measured:
            tl.store(ticket + 1, 1)


@triton.jit
def check_kernel(
    chunks, table, step_ptr, bad_step, first_bad, first, CODE: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr
):
    """Note the step as bad if any gradient element of this block is not finite."""
    block = tl.program_id(0)
    tensor = tl.load(chunks + 2 * block)
    start = tl.load(chunks + 2 * block + 1)
    address = tl.load(table + 16 * tensor + 1)
    numel = tl.load(table + 16 * tensor + 2)
    if address != 0:
        at = start + tl.arange(0, BLOCK)
        g = tl.load(address.to(tl.pointer_type(DTYPE)) + at, mask=at < numel, other=0.0)
        if tl.float64 != DTYPE:
            g = g.to(tl.float32)
        bad = tl.sum((g - g != 0.0).to(tl.int32))
        if bad > 0:
            step = tl.load(step_ptr)
            tl.store(bad_step, step)
            tl.atomic_min(first_bad, step * CODE + first + tensor)


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
