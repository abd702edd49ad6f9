"""Weight normalisation: θ = scale · direction / ‖direction‖ for every output feature (the paper's φ_s φ_d/‖φ_d‖).

Parameters stay in float32 (or float64) whatever the activations' precision; only the effective weight is cast.

`scale` starts at one: with a direction drawn uniformly from the unit sphere, E[(θ·x)²] = scale² · mean(x²), so the
layer keeps the mean square of its input, where SELU has its fixed point (mean 0, variance 1).

A network gets all its weights at once from `effective_weights` and passes each layer its own (the `weight` argument of
`forward`). A layer used alone computes its own.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn.strided import conv2d

BiasKind = Literal["feature", "scalar", "none"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
FEW = 1_000_000  # products in a linear layer's weight gradient that are better written out on CUDA


def effective_weight(direction: Tensor, scale: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """scale · direction / ‖direction‖ per output feature in plain differentiable torch operations, then cast.

    With `scale=None` there is nothing to normalise and the tensor is only cast: so plain layers can share one batch.
    On CUDA a convolution's weight is laid out channels_last, the order its fast kernels read.
    """
    weight = direction
    if scale is not None:
        length = torch.linalg.vector_norm(direction, dim=tuple(range(1, direction.ndim)))
        weight = direction * (scale / length).view(-1, *([1] * (direction.ndim - 1)))
    dtype = dtype or weight.dtype
    if weight.is_cuda and weight.ndim == 4 and not torch._C._are_functorch_transforms_active():  # vmap has no layouts
        return weight.to(dtype, memory_format=torch.channels_last)
    return weight.to(dtype)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class WeightLayer(nn.Module):
    """A layer with one weight whose effective value can be computed together with its network's other weights."""

    bias: Tensor | None

    def parts(self) -> tuple[Tensor, Tensor | None]:
        """(direction, scale), or (weight, None) for a layer without weight normalisation."""
        raise NotImplementedError

    def effective(self, dtype: torch.dtype | None = None) -> Tensor:
        """This layer's weight in `dtype`, computed alone."""
        return effective_weight(*self.parts(), dtype)


class WeightNormLayer(WeightLayer):
    """What the weight-normalised convolution and linear layer share: the parameters and how they start."""

    direction: nn.Parameter
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], bias: bool | BiasKind, scale: float, learn_scale: bool) -> None:
        super().__init__()
        self.scale_init = scale
        self.direction = nn.Parameter(torch.empty(shape))
        start = torch.empty(shape[0])
        if learn_scale:
            self.scale = nn.Parameter(start)
        else:  # A normalisation follows that undoes any scale: it must not become a parameter nobody determines.
            self.register_buffer("scale", start)
        kind: BiasKind = bias if isinstance(bias, str) else ("feature" if bias else "none")
        if kind not in ("feature", "scalar", "none"):
            raise ValueError(f"bias must be a bool, 'feature', 'scalar' or 'none', not {bias!r}")
        self.bias = None if kind == "none" else nn.Parameter(torch.empty(shape[0] if kind == "feature" else 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Directions uniform on the unit sphere, scales at their constant, biases zero."""
        with torch.no_grad():
            rows = self.direction.view(self.direction.shape[0], -1)
            rows.normal_()
            rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True))
            self.scale.fill_(self.scale_init)
            if self.bias is not None:
                self.bias.zero_()

    def parts(self) -> tuple[Tensor, Tensor]:
        return self.direction, self.scale

    @property
    def weight(self) -> Tensor:
        """The effective weight in the parameters' own precision, differentiable."""
        return self.effective()

    def set_weight_(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take over an ordinary weight: row lengths become scales, unit rows directions (a zero row keeps its own)."""
        with torch.no_grad():
            if weight.shape != self.direction.shape:
                raise ValueError(f"weight has shape {tuple(weight.shape)}, the layer {tuple(self.direction.shape)}")
            length = torch.linalg.vector_norm(weight.flatten(1), dim=1)
            unit = weight.flatten(1) / length.clamp_min(torch.finfo(weight.dtype).tiny)[:, None]
            unit = torch.where(length[:, None] > 0, unit.to(self.direction.dtype), self.direction.flatten(1))
            self.direction.copy_(unit.view_as(self.direction))
            self.scale.copy_(length)
            if bias is not None:
                if self.bias is None:
                    raise ValueError("this layer has no bias to set")
                self.bias.copy_(bias)

    def _add_bias(self, y: Tensor, channel_dim: int) -> Tensor:
        if self.bias is None:
            return y
        shape = [1] * y.ndim
        shape[channel_dim] = -1
        return y + self.bias.to(y.dtype).view(shape)


class WNConv2d(WeightNormLayer):
    """`nn.Conv2d` with a weight-normalised kernel; `scale` is where the scales start, `learn_scale` if they move."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool | BiasKind = True,
        padding_mode: PaddingMode = "zeros",
        scale: float = 1.0,
        learn_scale: bool = True,
    ) -> None:
        kernel = _pair(kernel_size)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}")
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"padding must be numbers, 'same' or 'valid', not {padding!r}")
        super().__init__((out_channels, in_channels // groups, *kernel), bias, scale, learn_scale)
        self.in_channels, self.out_channels, self.kernel_size, self.groups = in_channels, out_channels, kernel, groups
        self.stride, self.dilation = _pair(stride), _pair(dilation)
        self.padding = padding if isinstance(padding, str) else _pair(padding)
        self.padding_mode: PaddingMode = padding_mode

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight = self.effective(x.dtype) if weight is None else weight
        padding: tuple[int, int] | str = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._edges(), mode=self.padding_mode), (0, 0)
        return self._add_bias(conv2d(x, weight, None, self.stride, padding, self.dilation, self.groups), 1)

    def _edges(self) -> list[int]:
        """Padding as `F.pad` wants it: left, right, top, bottom. "same" puts an odd pixel on the far side."""
        if self.padding == "valid":
            return [0, 0, 0, 0]
        total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        near = [t // 2 for t in total] if isinstance(self.padding, str) else list(self.padding)
        far = [t - n for t, n in zip(total, near, strict=True)] if isinstance(self.padding, str) else near
        return [near[1], far[1], near[0], far[0]]

    def extra_repr(self) -> str:
        out = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{out}, padding={self.padding}, groups={self.groups}, bias={self.bias is not None}"


class SmallLinear(torch.autograd.Function):
    """`F.linear` for a small classifier head on CUDA.

    In float32 the library's product for the weight's gradient (10 × 128 over 128 examples) takes 53 µs on an H200, as
    long as five convolutions of a network; written out and summed it takes a tenth of that.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad = grad.to(weight.dtype)  # under autocast the product has another type than its factors
        return grad @ weight, (grad[:, :, None] * x[:, None, :]).sum(0)


class WNLinear(WeightNormLayer):
    """`nn.Linear` with weight-normalised features."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool | BiasKind = True,
        scale: float = 1.0,
        learn_scale: bool = True,
    ) -> None:
        super().__init__((out_features, in_features), bias, scale, learn_scale)

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight = self.effective(x.dtype) if weight is None else weight
        few = x.is_cuda and x.ndim == 2 and x.shape[0] * weight.numel() <= FEW and weight.requires_grad
        if few and not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
            return self._add_bias(SmallLinear.apply(x, weight), -1)  # type: ignore[no-untyped-call]
        return self._add_bias(F.linear(x, weight), -1)

    def extra_repr(self) -> str:
        out_features, in_features = self.direction.shape
        return f"{in_features}, {out_features}, bias={self.bias is not None}"


class CastConv2d(nn.Conv2d, WeightLayer):
    """An ordinary convolution that follows its input's precision and can be given its weight, for the BatchNorm ResNet.

    Starts Xavier-normal (the paper's baseline): std = √(2 / (fan_in + fan_out)).
    """

    def reset_parameters(self) -> None:
        fan = (self.in_channels + self.out_channels) // self.groups * math.prod(self.kernel_size)
        nn.init.normal_(self.weight, std=math.sqrt(2 / fan))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def parts(self) -> tuple[Tensor, None]:
        return self.weight, None

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight = self.effective(x.dtype) if weight is None else weight
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.padding_mode != "zeros":
            y: Tensor = self._conv_forward(x, weight, bias)
            return y
        return conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
