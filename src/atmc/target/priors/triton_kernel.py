"""The fused CUDA kernel: every prior of a model in one launch. Imported only where Triton is (see `triton_launch.py`).

One program handles one row of a row-wise prior, or one block of numbers of an element-wise one:

    programs[pid] = (tensor, which of its rows or blocks)
    table[tensor] = (address of x, address or offset of the gradient, size of x, size of a row or block, kind,
                     4 float32 numbers packed in 2 words, −)

A tensor of size 0 is one that is left to others: its programs do nothing. The numbers are (loc, a, b, −) and the
formulas those of `elementwise.py` and `rowwise.py`. Row programs read their row twice, the second time from cache.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from typing import Any

import triton
import triton.language as tl

#: Numbers of an element-wise tensor in one program; also the step of a row program's loops.
BLOCK = 512
#: Words (int64) per tensor in the table.
WORDS = 8


@triton.jit
def _log1p(z):
    # Far out in the tail z is tiny and log(1 + z) would lose every digit; the series is good to 1e-12 there.
    return tl.where(z < 1e-3, z * (1.0 - z * (0.5 - z * (0.33333333 - 0.25 * z))), tl.log(1.0 + z))


@triton.jit
def _emit(g_ptr, mask, value, ADD: tl.constexpr):
    if ADD:
        value += tl.load(g_ptr, mask=mask, other=0.0)
    tl.store(g_ptr, value, mask=mask)


@triton.jit
def prior_kernel(
    programs,  # int32 [programs, 2]
    table,  # int64 [tensors, WORDS]
    numbers,  # the same memory as float32 [tensors, 2·WORDS]
    energies,  # float32 [programs]: −log p of this program's part, without the constant
    flat,  # float32: where fresh gradients go (GRAD = 2)
    factor,  # float32 0-dim: multiplies the gradient (SCALED)
    alpha,
    ENERGY: tl.constexpr,
    GRAD: tl.constexpr,  # 0 none, 1 add at the address in the table, 2 write at the offset in the table
    SCALED: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pid = tl.program_id(0)
    tensor = tl.load(programs + 2 * pid)
    part_of_it = tl.load(programs + 2 * pid + 1)
    row = table + tensor * WORDS
    size = tl.load(row + 2)
    width = tl.load(row + 3)
    kind = tl.load(row + 4).to(tl.int32)
    first = part_of_it * width
    count = tl.minimum(width, size - first).to(tl.int32)
    x_ptr = tl.load(row).to(tl.pointer_type(tl.float32)) + first
    where = tl.load(row + 1)
    loc = tl.load(numbers + tensor * (2 * WORDS) + 10)
    a = tl.load(numbers + tensor * (2 * WORDS) + 11)
    b = tl.load(numbers + tensor * (2 * WORDS) + 12)
    if GRAD == 2:
        g_ptr = flat + where + first
    else:
        g_ptr = where.to(tl.pointer_type(tl.float32)) + first
    gain = alpha
    if SCALED:
        gain = gain * tl.load(factor)
    lanes = tl.arange(0, BLOCK)

    if kind >= 4:
        squares = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, count, BLOCK):
            x = tl.load(x_ptr + start + lanes, mask=start + lanes < count, other=0.0)
            squares += x * x
        s = tl.sum(squares, axis=0)
        norm = tl.sqrt(s)
        # Direction: (d/2)(s − 1)², slope 2d(s − 1)x.   Group Laplace: ‖x‖/b, slope x/(b‖x‖), 0 at 0.
        is_direction = kind == 4
        energy = tl.where(is_direction, 0.5 * a * (s - 1.0) * (s - 1.0), a * norm)
        slope = tl.where(
            is_direction, 2.0 * a * (s - 1.0), tl.where(norm > 0.0, a / tl.where(norm > 0.0, norm, 1.0), 0.0)
        )
        if ENERGY:
            tl.store(energies + pid, tl.where(count > 0, energy, 0.0))
        if GRAD > 0:
            for start in range(0, count, BLOCK):
                mask = start + lanes < count
                x = tl.load(x_ptr + start + lanes, mask=mask, other=0.0)
                _emit(g_ptr + start + lanes, mask, gain * slope * x, GRAD == 1)
    else:
        mask = lanes < count
        u = tl.load(x_ptr + lanes, mask=mask, other=0.0) - loc
        square = u * u
        if kind == 0:  # Normal, a = 1/s²
            part = 0.5 * a * square
            grad = a * u
        elif kind == 1:  # Laplace, a = 1/b
            part = a * tl.abs(u)
            grad = tl.where(u > 0.0, a, tl.where(u < 0.0, -a, 0.0))
        elif kind == 2:  # Student t, a = ν + 1, b = ν s²
            part = 0.5 * a * _log1p(square / b)
            grad = a * u / (b + square)
        else:  # horseshoe-like, a = a², b = ε²
            q = square + b
            inner = _log1p(a / q)
            part = -tl.log(inner)
            grad = 2.0 * a * u / (inner * q * (q + a))
        if ENERGY:
            tl.store(energies + pid, tl.sum(tl.where(mask, part, 0.0), axis=0))
        if GRAD > 0:
            _emit(g_ptr + lanes, mask, gain * grad, GRAD == 1)


def run(programs: Any, *tensors: Any, alpha: float, energy: bool, grad: int, scaled: bool) -> None:
    """Launch over all programs."""
    prior_kernel[(programs.shape[0],)](
        programs, *tensors, alpha, ENERGY=energy, GRAD=grad, SCALED=scaled, WORDS=WORDS, BLOCK=BLOCK, num_warps=4
    )
