"""ResNet, the paper's baseline: BatchNorm, ReLU, Xavier initialisation.

The CIFAR family has parameter-free shortcuts (He's option A), e.g. 853,018 parameters for depth 56 and width 16; the
ImageNet family 1×1 projections, e.g. 25,557,032 for ResNet-50. `norm="frn"` replaces BatchNorm by filter response
normalisation, which can be sampled, with SiLU as in the HMC reference runs. `variant="d"` is ResNet-D (He et al. 2019):
a stem of three 3×3 convolutions, and shortcuts that average 2×2 pixels where they halve the resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn.effective_weights import effective_weights, weight_layers
from atmc.nn.frn import FilterResponseNorm2d
from atmc.nn.norm_functions import channels_last_on_cuda
from atmc.nn.resnet_shapes import BlockShape, Variant, halved, layout, made_by, stem_convolutions
from atmc.nn.weightnorm import CastConv2d

NormKind = Literal["bn", "frn"]


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that does not count batches: the count serves momentum=None only, and costs a kernel per layer."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum or 0.0,
            self.eps,
        )


def _norm(kind: NormKind, channels: int, threshold: bool = True) -> nn.Module:
    return BatchNorm2d(channels) if kind == "bn" else FilterResponseNorm2d(channels, threshold)


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> CastConv2d:
    return CastConv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class PadShortcut(nn.Module):
    """Option A: every stride-th pixel, and zeros for the new channels."""

    def __init__(self, stride: int, new_channels: int) -> None:
        super().__init__()
        self.stride, self.before = stride, new_channels // 2
        self.after = new_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class ResidualBlock(nn.Module):
    """act(shortcut(x) + branch(x)): convolutions, each with its norm, an activation between them."""

    def __init__(
        self, shape: BlockShape, norm: NormKind, activation: nn.Module, projection: bool, pooled: bool = False
    ) -> None:
        super().__init__()
        specs = shape.convolutions()
        self.convs = nn.ModuleList(_conv(*spec) for spec in specs)
        # The threshold of FRN is an activation: none where the branch meets the shortcut.
        self.norms = nn.ModuleList(_norm(norm, out, i + 1 < len(specs)) for i, (_, out, _, _) in enumerate(specs))
        self.activation = activation
        self.pad = self.project = self.project_norm = None
        self.pools = pooled and shape.stride > 1
        if shape.changes and projection:
            self.project = _conv(shape.inputs, shape.outputs, 1, 1 if self.pools else shape.stride)
            self.project_norm = _norm(norm, shape.outputs, False)
        elif shape.changes:
            self.pad = PadShortcut(shape.stride, shape.outputs - shape.inputs)

    def forward(self, x: Tensor, weights: Sequence[Tensor | None]) -> Tensor:
        """`weights`: one for each convolution, the projection last; None has a layer compute its own."""
        h = x
        last = len(self.convs) - 1
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = norm(conv(h, weights[i]))
            if i < last:
                h = self.activation(h)
        if self.pad is not None:
            x = self.pad(x)
        elif self.project is not None and self.project_norm is not None:
            x = self.project_norm(self.project(halved(x) if self.pools else x, weights[last + 1]))
        out: Tensor = self.activation(x + h)
        return out


def run_block(block: ResidualBlock, x: Tensor, weights: Sequence[Tensor | None]) -> Tensor:
    """One block as a function, so that one compiled version serves every block of the same shape."""
    out: Tensor = block(x, weights)
    return out


class ResNet(nn.Module):
    """ResNet with post-activation blocks. Input NCHW in any float precision; logits in float32."""

    def __init__(
        self,
        depth: int,
        width: int | None = None,
        classes: int = 10,
        in_channels: int = 3,
        norm: NormKind = "bn",
        small_input: bool | None = None,
        shortcut: Literal["pad", "projection"] | None = None,
        activation: Literal["relu", "silu"] | None = None,
        variant: Variant | None = None,
    ) -> None:
        super().__init__()
        self.made_by = made_by("resnet", locals())
        if norm not in ("bn", "frn"):
            raise ValueError(f"norm must be 'bn' or 'frn', not {norm!r}")
        shape = layout(depth, width, small_input)
        kind = shortcut or ("projection" if shape.imagenet else "pad")
        act = nn.ReLU() if (activation or ("relu" if norm == "bn" else "silu")) == "relu" else nn.SiLU()
        self.small_input = shape.small_input
        first, *more = stem_convolutions(shape, in_channels, variant)
        if variant == "d" and kind != "projection":
            raise ValueError("variant 'd' has shortcuts with projections")
        self.stem = _conv(*first)
        self.stem_norms = nn.ModuleList(_norm(norm, inputs) for inputs, *_ in more)
        self.stem_convs = nn.ModuleList(_conv(*spec) for spec in more)
        self.stem_norm = _norm(norm, shape.stem)
        self.activation = act
        self.blocks = nn.ModuleList(
            ResidualBlock(block, norm, act, kind == "projection", variant == "d") for block in shape.blocks
        )
        self.head = nn.Linear(shape.features, classes)
        nn.init.xavier_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._run_block: Callable[[Any, Tensor, Sequence[Tensor | None]], Tensor] = run_block

    def compile_blocks(self, **options: Any) -> None:
        """Compile one residual block per shape and reuse it; `options` go to `torch.compile`."""
        raise_recompile_limit()
        self._run_block = torch.compile(run_block, **{"dynamic": False, "fullgraph": True, **options})

    def uncompile_blocks(self) -> None:
        """Undo `compile_blocks`."""
        self._run_block = run_block

    def forward(self, x: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        """Logits; the stream after the stem and after every block is appended to `keep`, for measurements."""
        layers = [self.stem, *self.stem_convs, *self.blocks]
        if isinstance(x, torch.fx.Proxy):  # being traced by `convert`: every layer computes its own weight
            weights: list[Any] = [None] * 4 * len(layers)
        else:
            x = channels_last_on_cuda(x)
            weights = effective_weights([layer for block in layers for layer in weight_layers(block)], x.dtype)
        x = self.stem(x, weights[0])
        for number, (norm, conv) in enumerate(zip(self.stem_norms, self.stem_convs, strict=True), 1):
            x = conv(self.activation(norm(x)), weights[number])
        x = self.activation(self.stem_norm(x))
        if not self.small_input:
            x = F.max_pool2d(x, 3, 2, 1)
        if keep is not None:
            keep.append(x)
        at = 1 + len(self.stem_convs)
        for block in self.blocks:
            count = len(weight_layers(block))
            x = self._run_block(block, x, weights[at : at + count])
            at += count
            if keep is not None:
                keep.append(x)
        logits: Tensor = self.head(x.mean((2, 3), dtype=self.head.bias.dtype))
        return logits


def raise_recompile_limit(limit: int = 256) -> None:
    """One function compiled for many networks and shapes passes dynamo's limits of 8 versions, and of 256 in all.

    No further: code that compiles anew in every call should end up uncompiled, not compile for ever.
    """
    import torch._dynamo.config as config

    config.recompile_limit = max(config.recompile_limit, limit)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 16 * limit)


def resnet(depth: int, width: int | None = None, classes: int = 10, in_channels: int = 3, **options: Any) -> ResNet:
    """`ResNet`: depth 6n+2 for small images, or 18, 34, 50, 101; options as the class has."""
    return ResNet(depth, width, classes, in_channels, **options)
