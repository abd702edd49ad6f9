"""Convolutions without bias, by kernels made for few channels where those apply (`kernels.conv_triton`)."""

from __future__ import annotations

import torch
from torch import Tensor

from atmc.nn import norm_functions
from atmc.nn.strided import conv2d

enabled = False  # by benchmarks/narrow_conv.py, until it has shown that they pay
CHANNELS = (16, 32, 64)


def applies(x: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """3×3 with stride 1, 16, 32 or 64 channels in and out, small images, half precision, on a GPU."""
    outputs, inputs, *kernel = weight.shape
    fits = kernel == [3, 3] and stride == 1 and padding == 1 and outputs in CHANNELS and inputs in CHANNELS
    halves = x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float16)
    return fits and halves and x.shape[-1] <= 64 and norm_functions._fused_applies(x)


def narrow_conv2d(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """`F.conv2d(x, weight, None, stride, padding)`."""
    if enabled and applies(x, weight, stride, padding):
        if not torch.compiler.is_compiling():
            import atmc.nn.kernels.conv_op  # noqa: F401

        y: Tensor = torch.ops.atmc.conv3x3(x, weight)
        return y
    return conv2d(x, weight, None, stride, padding)
