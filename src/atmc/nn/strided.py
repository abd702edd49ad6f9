"""`F.conv2d` with a workaround for a crash of strided 1×1 convolutions on CPUs.

torch 2.13's backward pass of a 1×1 convolution with stride 2 and few channels in channels-last ends in a segmentation
fault on CPUs with AVX512, for images of 48 pixels and more. A strided view and stride 1 compute the same.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

Pair = int | tuple[int, ...]


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """`F.conv2d`; the same function for every argument."""
    rows, columns = (stride, stride) if isinstance(stride, int) else stride
    pointwise = weight.shape[-1] == 1 and weight.shape[-2] == 1
    large = max(x.shape[-2:]) > 32  # smaller images do not crash, and keep the bits they have always had
    if pointwise and large and (rows > 1 or columns > 1) and padding in (0, (0, 0), "valid") and not x.is_cuda:
        x, stride = x[..., ::rows, ::columns], 1
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


class StridedConv2d(nn.Conv2d):
    """`nn.Conv2d` by way of `conv2d`: the same function without the crash."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode != "zeros":
            around: Tensor = super()._conv_forward(input, weight, bias)
            return around
        return conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


def without_crash_(model: nn.Module) -> nn.Module:
    """Let the strided 1×1 convolutions of somebody's network take the way around the crash, in place.

    Examples come to a network with channels last in memory, so that plain `nn.Conv2d` layers would meet it, too.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and module.kernel_size == (1, 1) and max(module.stride) > 1:
            module.__class__ = StridedConv2d
    return model
