"""The beginning of a stage of ResNet++ that halves the resolution, as one differentiable operation on a Hopper GPU.

`transition.cu` has the kernels. Here: when they apply, and how they are launched; `entry_forward` is the same in
PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from atmc.nn.kernels import nvrtc, stage
from atmc.nn.resnetpp_block import BlockKind, entry_forward

KIND = BlockKind(2, shortcut="projection")  # the only kind of block there are kernels for


@dataclass(frozen=True)
class Shape:
    """How a transition to so many channels and so large images is cut; the names are those of `transition.cu`."""

    channels: int
    size: int
    groups: int  # WGS: warpgroups, going forward
    columns: int  # NB: output channels of one instruction
    parts: int  # into how many sums over images the weight gradients are split, to fill half of the GPU

    @property
    def positions(self) -> int:
        """Positions of 8 channels in the padded images of an input, or of both outputs' gradients."""
        pitch = self.size + 1
        return pitch + 1 + self.channels // 4 * pitch * pitch

    @property
    def weights(self) -> int:
        """Of nine taps and the projection."""
        return 10 * self.channels * self.channels // 2

    @property
    def shared_bytes(self) -> int:
        return self.positions * 16 + self.weights * 2 + 16 * 2 * self.channels * 4 + 128

    @property
    def weight_shared_bytes(self) -> int:
        pitch = self.size + 1
        return 3 * 16 * (16 * 8 * pitch + self.channels // 4 * (9 * pitch + 1)) + 64


SHAPES = {
    (shape.channels, shape.size): shape
    for shape in (  # the two of a CIFAR network of width 32
        Shape(64, 16, groups=4, columns=64, parts=64),
        Shape(128, 8, groups=2, columns=64, parts=32),
    )
}


def applies(
    a: Tensor, weight: Tensor, bias: Tensor | None, project: Tensor, project_bias: Tensor | None, kind: BlockKind
) -> bool:
    """Whether the kernels can do what `entry_forward` would: a Hopper GPU, bf16, a shape they were cut for, biases."""
    if kind.stride != KIND.stride or kind.shortcut != KIND.shortcut or not stage.possible(a.dtype, a.device):
        return False
    channels, half, size = weight.shape[0], weight.shape[0] // 2, a.shape[-1] // 2
    if (channels, size) not in SHAPES or a.shape[1:] != (half, 2 * size, 2 * size) or not len(a):
        return False
    if any(b is None or b.shape != (channels,) for b in (bias, project_bias)):
        return False
    if weight.shape != (channels, half, 3, 3) or project.shape != (channels, half, 1, 1):
        return False
    if any(w.dtype != a.dtype or not stage.is_channels_last(w) for w in (weight, project)):
        return False
    return _supported(SHAPES[channels, size], a.device)


def run(a: Tensor, weight: Tensor, bias: Tensor, project: Tensor, project_bias: Tensor) -> tuple[Tensor, Tensor]:
    """selu of the convolution, and the projection, both of stride 2 and with their biases."""
    recording = torch.is_grad_enabled()
    h, x = Transition.apply(a, weight, bias, project, project_bias, recording)  # type: ignore[no-untyped-call]
    return h, x


def plain(a: Tensor, weight: Tensor, bias: Tensor, project: Tensor, project_bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same in PyTorch's operations."""
    return entry_forward(a, weight, bias, project, project_bias, KIND)


class Transition(torch.autograd.Function):
    """(a, weight, bias, project, project_bias, recording) → (selu(convolution), projection)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        a, weight, bias, project, project_bias, recording = inputs
        shape = SHAPES[weight.shape[0], a.shape[2] // 2]
        kernels = _kernels(shape, a.device)
        batch, channels, size = a.shape[0], shape.channels, shape.size
        packed = torch.empty(shape.weights, dtype=a.dtype, device=a.device)
        h, x = (a.new_empty((batch, size, size, channels)).permute(0, 3, 1, 2) for _ in range(2))
        keep = recording and any(ctx.needs_input_grad)
        saved = a.new_empty((batch, shape.positions, 8)) if keep else None
        biases = bias.float(), project_bias.float()
        with torch.cuda.device(a.device):
            kernels["pack"]((-(-shape.weights // 8 // 256),), 256, weight, project, packed)
            kernels["forward"]((batch,), shape.groups * 128, stage.dense(a), packed, *biases, h, x, saved)
        if keep:
            ctx.save_for_backward(h, saved, packed, *inputs[:-1])
            ctx.shape = shape
        return h, x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, saved, packed, *inputs = ctx.saved_tensors
        shape = ctx.shape
        if torch.is_grad_enabled():  # create_graph=True: somebody wants the Hessian
            return _plain_backward(inputs, grads)
        kernels = _kernels(shape, h.device)
        grad_h, grad_x = (stage.dense(grad.to(h.dtype)) for grad in grads)
        batch, channels, device = h.shape[0], shape.channels, h.device
        images, grad_a = torch.empty_like(saved), torch.empty_like(inputs[0], memory_format=torch.channels_last)
        grad_bias = torch.empty((batch, 2, channels), device=device)
        parts, quads = min(shape.parts, batch), shape.weights // 4
        partial = torch.empty((parts, shape.weights), device=device)
        weights = torch.empty(shape.weights, dtype=h.dtype, device=device)
        with torch.cuda.device(device):
            kernels["backward"]((batch,), 512, grad_h, h, grad_x, packed, images, grad_bias, grad_a)
            kernels["weights"]((channels // 64, parts), 256, saved, images, partial, batch)
            kernels["sum"]((-(-quads // 64),), 64, partial, weights, parts, quads)
        weight, project = weights.view(10, -1)[:9], weights.view(10, -1)[9]
        weight = weight.view(channels, 3, 3, channels // 2).permute(0, 3, 1, 2)
        bias, project_bias = grad_bias.sum(0).unbind()
        return grad_a, weight, bias, project.view(channels, channels // 2, 1, 1), project_bias, None


def _plain_backward(inputs: list[Tensor], grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """The gradients in operations that can be differentiated again."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    a, weight, bias, project, project_bias = inputs
    outputs = plain(a, weight, bias, project, project_bias)
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
    return *(next(found) if tensor.requires_grad else None for tensor in inputs), None


def defines(shape: Shape) -> dict[str, int]:
    """What the source is compiled with."""
    return {"C": shape.channels, "H": shape.size, "WGS": shape.groups, "NB": shape.columns}


def sources() -> list[tuple[str, dict[str, int]]]:
    """All that can be compiled here: source and what it is compiled with."""
    return [(stage.source("transition"), defines(shape)) for shape in SHAPES.values()]


@cache
def _kernels(shape: Shape, device: torch.device) -> dict[str, nvrtc.Kernel]:
    return stage.load("transition", defines(shape), (shape.shared_bytes, shape.weight_shared_bytes), device)


@cache
def _supported(shape: Shape, device: torch.device) -> bool:
    return stage.loads(lambda: _kernels(shape, device), device)
