"""The kernels of `conv_triton` as operators of torch: differentiable, opaque to torch.compile, capturable."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from atmc.nn.kernels import conv_triton as kernels

LAYOUT = torch.channels_last
# (pixels a program, warps) of a convolution and of a weight gradient, by channels; and programs of the latter.
# More pixels in a weight gradient would not fit into registers.
FORWARD = {16: (256, 4), 32: (128, 4), 64: (64, 8)}
WEIGHTS = {16: (128, 4), 32: (64, 4), 64: (64, 8)}
PROGRAMS = {16: 128, 32: 64, 64: 64}


def _filters(weight: Tensor) -> Tensor:
    """The weight as it lies in memory, (O, 3, 3, C); a copy where it lies otherwise."""
    return weight.movedim(1, -1).contiguous()


def _convolve(x: Tensor, weight: Tensor, outputs: int, transposed: bool) -> Tensor:
    x = x.contiguous(memory_format=LAYOUT)
    count, inputs, height, width = x.shape
    y = torch.empty((count, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=LAYOUT)
    pixels, warps = FORWARD[max(inputs, outputs)]
    pixels = min(pixels, triton.next_power_of_2(height * width))
    with torch.cuda.device(x.device if x.is_cuda else -1):
        kernels.conv_kernel[(count * triton.cdiv(height * width, pixels),)](
            x, _filters(weight), y, H=height, W=width, C=inputs, O=outputs,
            BLOCK_P=pixels, TRANSPOSED=transposed, num_warps=warps,
        )  # fmt: skip
    return y


@torch.library.custom_op("atmc::conv3x3", mutates_args=())
def conv3x3(x: Tensor, weight: Tensor) -> Tensor:
    """`F.conv2d(x, weight, padding=1)` where `narrow_conv.applies`."""
    return _convolve(x, weight, weight.shape[0], False)


@conv3x3.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    shape = (len(x), weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=LAYOUT)


@torch.library.custom_op("atmc::conv3x3_input", mutates_args=())
def conv3x3_input(dy: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the input."""
    return _convolve(dy, weight, weight.shape[1], True)


@conv3x3_input.register_fake
def _(dy: Tensor, weight: Tensor) -> Tensor:
    shape = (len(dy), weight.shape[1], *dy.shape[2:])
    return torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=LAYOUT)


@torch.library.custom_op("atmc::conv3x3_weight", mutates_args=())
def conv3x3_weight(x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of the weight, in memory as (O, 3, 3, C)."""
    x, dy = x.contiguous(memory_format=LAYOUT), dy.contiguous(memory_format=LAYOUT)
    count, inputs, height, width = x.shape
    outputs = dy.shape[1]
    wide = max(inputs, outputs)
    pixels, warps = WEIGHTS[wide]
    pixels = min(pixels, max(16, triton.next_power_of_2(height * width)))
    programs = min(count, PROGRAMS[wide])
    size = 9 * outputs * inputs
    partial = torch.empty(programs, size, dtype=torch.float32, device=x.device)
    dw = torch.empty(outputs, 3, 3, inputs, dtype=x.dtype, device=x.device)
    with torch.cuda.device(x.device if x.is_cuda else -1):
        kernels.weight_kernel[(programs, 3)](
            x, dy, partial, count, H=height, W=width, C=inputs, O=outputs,
            BLOCK_P=pixels, SHARE=triton.cdiv(count, programs), num_warps=warps,
        )  # fmt: skip
        kernels.add_kernel[(triton.cdiv(size, 64),)](
            partial, dw, size, PROGRAMS=programs, BLOCK=64, ROWS=64, num_warps=4
        )
    return dw.movedim(-1, 1)


@conv3x3_weight.register_fake
def _(x: Tensor, dy: Tensor) -> Tensor:
    return torch.empty(dy.shape[1], 3, 3, x.shape[1], dtype=x.dtype, device=x.device).movedim(-1, 1)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: somebody wants second derivatives
        wanted = torch.ops.aten.convolution_backward(
            dy, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [*ctx.needs_input_grad, False]
        )
        return wanted[0], wanted[1]
    dx = conv3x3_input(dy, weight) if ctx.needs_input_grad[0] else None
    dw = conv3x3_weight(x, dy) if ctx.needs_input_grad[1] else None
    return dx, dw


conv3x3.register_autograd(_backward, setup_context=_remember)
