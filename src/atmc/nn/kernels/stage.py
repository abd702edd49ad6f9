"""The residual blocks of one stage of ResNet++ as one differentiable operation on a Hopper GPU.

`stage.cu` has the kernels. Here: when they apply, how they are launched, and the same computation in PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn.kernels import nvrtc


@dataclass(frozen=True)
class Shape:
    """How a stage of so many channels and so large images is cut; the names are those of `stage.cu`."""

    channels: int
    size: int
    groups: int  # WGS: warpgroups
    columns: int  # NB: output channels of one instruction
    slots: int  # SLOTS of the ring of weights
    taps: int  # TAPS in one slot
    parts: int  # into how many sums over images the weight gradients are split, to fill the GPU with 16 convolutions

    @property
    def positions(self) -> int:
        """Positions of 8 channels in a padded image."""
        pitch = self.size + 1
        return pitch + 1 + self.channels // 8 * pitch * pitch

    @property
    def threads(self) -> int:
        return self.groups * 128 + (32 if self.taps < 9 else 0)

    @property
    def shared_bytes(self) -> int:
        ring = self.slots * self.taps * self.channels**2 * 2
        return 2 * self.positions * 16 + ring + self.groups * 4 * self.columns * 4 + 128

    @property
    def blocks(self) -> int:
        """Into how many blocks of channels × channels a weight gradient is cut."""
        return max(1, self.channels // 64) ** 2

    @property
    def weight_shared_bytes(self) -> int:
        pitch, rows, planes = self.size + 1, min(self.size, 16), min(self.channels, 64) // 8
        return 3 * planes * 16 * (rows * pitch + (rows + 2) * pitch + 1) + 64


SHAPES = {
    (shape.channels, shape.size): shape
    for shape in (  # the three stages of a CIFAR network of width 32
        Shape(32, 32, groups=4, columns=32, slots=2, taps=9, parts=7),
        Shape(64, 16, groups=4, columns=64, slots=6, taps=3, parts=8),
        Shape(128, 8, groups=2, columns=64, slots=5, taps=1, parts=2),
    )
}


def applies(
    where: tuple[torch.dtype, torch.device], size: int, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> bool:
    """Whether the kernels can run blocks of these weights and biases on images of so many pixels.

    They need a Hopper GPU, bf16, a shape they were cut for, and a bias per feature in every block.
    """
    dtype, device = where
    if not possible(dtype, device):
        return False
    channels = weights[0].shape[0]
    if (channels, size) not in SHAPES or any(bias is None or bias.shape != (channels,) for bias in biases):
        return False
    square = (channels, channels, 3, 3)
    if any(w.shape != square or w.dtype != dtype or not is_channels_last(w) for w in weights):
        return False
    return _supported(SHAPES[channels, size], device)


def run(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], entry: Tensor | None = None) -> Tensor:
    """selu of the stream after all blocks, from the stream before them. Two weights and one bias for every block.

    With `entry`, the stage is entered in the middle of a block: the first of the weights is that block's second
    convolution, `entry` what it is applied to, and `x` what its result is added to.
    """
    recording = torch.is_grad_enabled()
    out: Tensor = Stage.apply(x, entry, len(biases), recording, *weights, *biases)  # type: ignore[no-untyped-call]
    return out


def plain(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], entry: Tensor | None = None) -> Tensor:
    """The same in PyTorch's operations."""
    if entry is not None:
        x, weights = x + F.conv2d(entry, weights[0], None, 1, 1), weights[1:]
    for first, second, bias in zip(weights[::2], weights[1::2], biases, strict=True):
        h = F.selu(F.conv2d(F.selu(x), first, None, 1, 1) + bias.to(x.dtype).view(1, -1, 1, 1))
        x = x + F.conv2d(h, second, None, 1, 1)
    return F.selu(x)


class Stage(torch.autograd.Function):
    """(x, entry, blocks, recording, *weights, *biases) → selu(stream)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, entry: Tensor | None, blocks: int, recording: bool, *tensors: Tensor) -> Tensor:
        given = x, entry
        x, entry = dense(x), None if entry is None else dense(entry)
        shape = SHAPES[x.shape[1], x.shape[2]]
        kernels = _kernels(shape, x.device)
        weights, biases = tensors[:-blocks], tensors[-blocks:]
        packed = _packed(weights, kernels)
        bias = torch.stack(biases).float()
        output = torch.empty_like(x)
        keep = recording and any(ctx.needs_input_grad)
        images = (len(weights), x.shape[0], shape.positions, 8)
        saved = torch.empty(images, dtype=x.dtype, device=x.device) if keep else None
        with torch.cuda.device(x.device):
            kernels["forward"]((x.shape[0],), shape.threads, x, entry, packed, bias, output, saved, blocks)
        if keep:
            ctx.save_for_backward(output, saved, packed, *given, *tensors)
            ctx.blocks, ctx.shape = blocks, shape
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        output, saved, packed, x, entry, *tensors = ctx.saved_tensors
        blocks, shape = ctx.blocks, ctx.shape
        if torch.is_grad_enabled():  # create_graph=True: somebody wants the Hessian
            return _plain_backward(x, entry, tensors, blocks, grad)
        kernels = _kernels(shape, output.device)
        grad = dense(grad.to(output.dtype))
        batch, channels = output.shape[:2]
        convolutions, device = len(saved), output.device
        grads, grad_input = torch.empty_like(saved), torch.empty_like(output)
        grad_entry = None if entry is None else torch.empty_like(output)
        grad_bias = torch.empty((batch, blocks, channels), device=device)
        parts = min(shape.parts, batch)
        partial = torch.empty((parts, convolutions, channels, 3, 3, channels), device=device)
        weights = torch.empty(partial.shape[1:], dtype=output.dtype, device=device)
        quads = weights.numel() // 4
        with torch.cuda.device(device):
            made = grads, grad_bias, grad_input, grad_entry
            kernels["backward"]((batch,), shape.threads, grad, output, packed, saved, *made, blocks)
            grid = convolutions * shape.blocks, parts
            kernels["weights"](grid, 416, saved, grads, partial, convolutions, batch)
            kernels["sum"]((-(-quads // 256),), 256, partial, weights, parts, quads)
        views = weights.permute(0, 1, 4, 2, 3).unbind()
        return grad_input, grad_entry, None, None, *views, *grad_bias.sum(0).unbind()


def _plain_backward(
    x: Tensor, entry: Tensor | None, tensors: list[Tensor], blocks: int, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients in operations that can be differentiated again."""
    y = plain(x, tensors[:-blocks], tensors[-blocks:], entry)
    inputs = [x, entry, *tensors]
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
    first, second, *rest = [next(found) if t is not None and t.requires_grad else None for t in inputs]
    return first, second, None, None, *rest


def _packed(weights: tuple[Tensor, ...], kernels: dict[str, nvrtc.Kernel]) -> Tensor:
    """The weights in the order in which the kernels read them. Those of a network lie side by side already."""
    size = weights[0].numel() * weights[0].element_size()
    apart = [b.data_ptr() - a.data_ptr() for a, b in pairwise(weights)]
    source = (
        weights[0] if all(step == size for step in apart) else torch.stack([w.permute(0, 2, 3, 1) for w in weights])
    )
    packed = torch.empty((len(weights), weights[0].numel()), dtype=torch.bfloat16, device=weights[0].device)
    count = packed.numel() // 8
    with torch.cuda.device(packed.device):
        kernels["pack"]((-(-count // 256),), 256, source, packed, count)
    return packed


def defines(shape: Shape) -> dict[str, int]:
    """What the source is compiled with."""
    names = {"C": shape.channels, "H": shape.size, "WGS": shape.groups, "NB": shape.columns}
    return {**names, "SLOTS": shape.slots, "TAPS": shape.taps}


def sources() -> list[tuple[str, dict[str, int]]]:
    """All that can be compiled here: source and what it is compiled with."""
    return [(source("stage"), defines(shape)) for shape in SHAPES.values()]


@cache
def _kernels(shape: Shape, device: torch.device) -> dict[str, nvrtc.Kernel]:
    return load("stage", defines(shape), (shape.shared_bytes, shape.weight_shared_bytes), device)


@cache
def _supported(shape: Shape, device: torch.device) -> bool:
    return loads(lambda: _kernels(shape, device), device)


# What `transition` needs, too.


def possible(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether kernels for bf16 on a GPU may be called here at all."""
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return dtype == torch.bfloat16 and device.type == "cuda" and not transformed


def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def source(name: str) -> str:
    """A source file with what it includes."""
    return "".join(Path(__file__).with_name(file).read_text() for file in ("hopper.cuh", "image.cuh", f"{name}.cu"))


def load(name: str, defines: dict[str, int], shared: tuple[int, int], device: torch.device) -> dict[str, nvrtc.Kernel]:
    """The kernels of a source file, every such file has these; with so much shared memory, and for the weights."""
    with torch.cuda.device(device):
        module = nvrtc.Module(source(name), defines, device)
        kernels = {kernel: module.kernel(f"{name}_{kernel}") for kernel in ("forward", "backward", "weights", "pack")}
        kernels["forward"].allow_shared(shared[0])
        kernels["backward"].allow_shared(shared[0])
        kernels["weights"].allow_shared(shared[1])
        return {**kernels, "sum": module.kernel("sum_parts")}


def loads(kernels: Callable[[], object], device: torch.device) -> bool:
    """Whether this GPU is a Hopper and the kernels compile and load on it; if not, PyTorch's own operations serve."""
    if not is_hopper(device):
        return False
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("ResNet++: run one forward pass before capturing a CUDA graph")
    try:
        kernels()
    except (OSError, RuntimeError) as error:
        warnings.warn(f"ResNet++ runs without its own kernels, at less than half the speed: {error}", stacklevel=3)
        return False
    return True


def dense(x: Tensor) -> Tensor:
    """x in NHWC order."""
    return x.contiguous(memory_format=torch.channels_last)


def is_channels_last(weight: Tensor) -> bool:
    """Whether a weight lies in memory as [out][row][column][in]."""
    return weight.is_contiguous(memory_format=torch.channels_last)
