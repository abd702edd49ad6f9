"""The standardised weights of a whole network in one Triton launch, and their gradients in another.

One program per filter ("row"), as in `weightnorm_triton`: a row finds its layer in a table, and the addresses of the
layers' tensors come from a small table on the device. With c = w − mean(w) and r = 1/√(|c|² + eps) a row becomes
gain · c · r; its gradients are, with u = c · r and G the gradient of the row, G·u for the gain and
gain · r · (G − mean(G) − (G·u) u) for w. A row without a gain is only cast.

Parameters are read in their order (O, I, kh, kw); results are written as (O, kh, kw, I), which the convolutions read
without a transpose, one layer after the other in one allocation. Their gradients come back in one allocation of the
same layout, so that no table of addresses is needed for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 1024
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def forward_kernel(rows, geometry, offsets, pointers, out, layers, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    layer = tl.load(rows + 2 * row)
    index = tl.load(rows + 2 * row + 1).to(tl.int64)
    length = tl.load(geometry + 3 * layer)
    inputs = tl.load(geometry + 3 * layer + 1)
    taps = tl.load(geometry + 3 * layer + 2)
    weight = tl.load(pointers + layer).to(tl.pointer_type(tl.float32)) + index * length
    gain_address = tl.load(pointers + layers + layer)
    has_gain = gain_address != 0
    gain = tl.load(gain_address.to(tl.pointer_type(tl.float32)) + index, mask=has_gain, other=1.0)
    target = out + tl.load(offsets + layer) + index * length

    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        total += tl.load(weight + j, mask=j < length, other=0.0)
    mean = tl.sum(total) / length
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        c = tl.where(j < length, tl.load(weight + j, mask=j < length, other=0.0) - mean, 0.0)
        square += c * c
    mean = tl.where(has_gain, mean, 0.0)
    factor = tl.where(has_gain, gain / tl.sqrt_rn(tl.sum(square) + eps), 1.0)

    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)  # position in (kh, kw, I)
        source = (j % inputs) * taps + j // inputs  # the same element in (I, kh, kw)
        w = tl.load(weight + source, mask=j < length, other=0.0)
        tl.store(target + j, ((w - mean) * factor).to(out.dtype.element_ty), mask=j < length)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def backward_kernel(  # type: ignore[no-untyped-def]
    rows, geometry, offsets, pointers, grads, out, out_gain, layers, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    layer = tl.load(rows + 2 * row)
    index = tl.load(rows + 2 * row + 1).to(tl.int64)
    length = tl.load(geometry + 3 * layer)
    inputs = tl.load(geometry + 3 * layer + 1)
    taps = tl.load(geometry + 3 * layer + 2)
    weight = tl.load(pointers + layer).to(tl.pointer_type(tl.float32)) + index * length
    gain_address = tl.load(pointers + layers + layer)
    has_gain = gain_address != 0
    gain = tl.load(gain_address.to(tl.pointer_type(tl.float32)) + index, mask=has_gain, other=1.0)
    begin = tl.load(offsets + layer) + index * length
    grad = grads + begin
    target = out + begin

    total = tl.zeros([BLOCK], tl.float32)
    total_grad = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)  # the order does not matter for the sums
        total += tl.load(weight + j, mask=j < length, other=0.0)
        total_grad += tl.load(grad + j, mask=j < length, other=0.0).to(tl.float32)
    mean = tl.sum(total) / length
    mean_grad = tl.sum(total_grad) / length
    square = tl.zeros([BLOCK], tl.float32)
    product = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)  # position in (I, kh, kw)
        source = (j % taps) * inputs + j // taps  # the same element in (kh, kw, I)
        c = tl.where(j < length, tl.load(weight + j, mask=j < length, other=0.0) - mean, 0.0)
        g = tl.load(grad + source, mask=j < length, other=0.0).to(tl.float32)
        square += c * c
        product += c * g
    scale = 1.0 / tl.sqrt_rn(tl.sum(square) + eps)
    along = tl.sum(product) * scale
    tl.store(out_gain + row, along)
    factor = tl.where(has_gain, gain * scale, 1.0)
    inward = tl.where(has_gain, along * scale, 0.0)
    mean_grad = tl.where(has_gain, mean_grad, 0.0)
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        source = (j % taps) * inputs + j // taps
        c = tl.load(weight + j, mask=j < length, other=0.0) - mean
        g = tl.load(grad + source, mask=j < length, other=0.0).to(tl.float32)
        tl.store(target + j, factor * (g - mean_grad - inward * c), mask=j < length)
