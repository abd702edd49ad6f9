"""The shapes of the two ResNet families, shared by ResNet and ResNet++: how many blocks, how wide, which stem.

CIFAR family (He et al. 2016, Sect. 4.2): depth 6n+2, three stages of n basic blocks, widths w, 2w, 4w, a 3×3 stem.
ImageNet family: depths 18 and 34 (basic blocks), 50 and 101 (bottlenecks), four stages of widths w, 2w, 4w, 8w, a 7×7
stem with max-pooling. 50 is also 6·8+2: it means the ImageNet network. Variant "d" of it is ResNet-D (He et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

Variant = Literal["d"]
IMAGENET = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
BOTTLENECKS = (50, 101)
EXPANSION = 4  # a bottleneck's output over its inner width


@dataclass(frozen=True)
class BlockShape:
    """One residual block: channels in, inside and out, the stride, and whether it is a bottleneck."""

    inputs: int
    width: int
    outputs: int
    stride: int
    bottleneck: bool

    @property
    def changes(self) -> bool:
        """Whether the shortcut cannot be the identity."""
        return self.stride != 1 or self.inputs != self.outputs

    def convolutions(self) -> list[tuple[int, int, int, int]]:
        """(in, out, kernel size, stride) of the branch's convolutions, in order."""
        if self.bottleneck:
            inner = (self.width, self.width, 3, self.stride)
            return [(self.inputs, self.width, 1, 1), inner, (self.width, self.outputs, 1, 1)]
        return [(self.inputs, self.width, 3, self.stride), (self.width, self.outputs, 3, 1)]


@dataclass(frozen=True)
class Layout:
    """A whole network: the stem's output channels, whether it is the small one, and every block in order."""

    stem: int
    small_input: bool
    imagenet: bool
    blocks: tuple[BlockShape, ...]

    @property
    def features(self) -> int:
        return self.blocks[-1].outputs


def layout(depth: int, width: int | None = None, small_input: bool | None = None) -> Layout:
    """The layout of a depth; `small_input` chooses the stem (default: small for the CIFAR family only)."""
    imagenet = depth in IMAGENET
    if not imagenet and (depth < 8 or (depth - 2) % 6):
        raise ValueError(f"depth must be 6n+2 (8, 14, 20, 32, 44, 56, 110, …) or 18, 34, 50, 101, not {depth}")
    counts = IMAGENET[depth] if imagenet else ((depth - 2) // 6,) * 3
    width = width or (64 if imagenet else 16)
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    bottleneck = depth in BOTTLENECKS
    blocks: list[BlockShape] = []
    channels = width
    for stage, count in enumerate(counts):
        inner = width * 2**stage
        outputs = inner * (EXPANSION if bottleneck else 1)
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            blocks.append(BlockShape(channels, inner, outputs, stride, bottleneck))
            channels = outputs
    return Layout(width, (not imagenet) if small_input is None else small_input, imagenet, tuple(blocks))


def stem_convolutions(shape: Layout, in_channels: int, variant: Variant | None) -> list[tuple[int, int, int, int]]:
    """(in, out, kernel size, stride) of the convolutions before the first block: one, or three of ResNet-D."""
    if variant not in (None, "d"):
        raise ValueError(f"variant must be 'd', or left out, not {variant!r}")
    if variant is None:
        return [(in_channels, shape.stem, *((3, 1) if shape.small_input else (7, 2)))]
    if shape.small_input or shape.stem < 2:
        raise ValueError("variant 'd' is for depths 18, 34, 50 and 101 with their own stem, of a width of 2 or more")
    half = shape.stem // 2
    return [(in_channels, half, 3, 2), (half, half, 3, 1), (half, shape.stem, 3, 1)]


def halved(x: Tensor) -> Tensor:
    """Means of 2×2 pixels; of an odd side the last row is a mean of what there is, as strides of 2 have it."""
    return F.avg_pool2d(x, 2, ceil_mode=True)


def made_by(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The call of `build` that makes a network again, from its constructor's locals; saved with its samples."""
    return {"build": name, "args": {k: v for k, v in arguments.items() if k not in ("self", "__class__")}}
