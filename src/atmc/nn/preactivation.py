"""Pre-activation residual networks with several normalisers: the base of `WideResNet` and `ResNetV2`.

A block (He et al. 2016, second paper) is x + branch(act(norm(x))); where the shape changes the shortcut is a 1×1
convolution of the activated stream. The addition that ends one block and the normalisation that begins the next are
one operation (`NormAct.add`), on CUDA one kernel each way; all weights are cast and standardised in one more.

    norm           convolutions                                   normaliser
    "gn-ws"        weight standardisation, a gain per filter      GroupNorm, groups of 16 channels
    "evonorm-s0"   plain                                          EvoNorm-S0, groups of 16 channels
    "frn"          plain                                          filter response normalisation
    "bn"           plain                                          BatchNorm (the baseline; cannot be sampled)

`variant="d"` is ResNet-D (He et al. 2019): a stem of three 3×3 convolutions, and shortcuts that average 2×2 pixels
where they halve the resolution instead of leaving three of four out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn.norm_functions import activations, load_kernels
from atmc.nn.normalisation import Activation, BatchNormAct, Norm, NormAct, check_norm, norm_act_layer
from atmc.nn.resnet_shapes import BlockShape, Layout, Variant, halved, stem_convolutions
from atmc.nn.standardisation import WSConv2d, gain_for, standardised_weights
from atmc.nn.weightnorm import FEW, CastConv2d, SmallLinear

NetworkNorm = Literal["gn-ws", "evonorm-s0", "frn", "bn"]
NETWORK_NORMS = ("gn-ws", "evonorm-s0", "frn", "bn")
NormLayer = NormAct | BatchNormAct


class PlainConv2d(CastConv2d):
    """A convolution that starts He-normal, std = √(2/fan-in)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.weight[0].numel()))
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Design:
    """What all layers of a network share: which norm, which activation."""

    def __init__(self, norm: str, activation: str | None, threshold: bool) -> None:
        if norm not in NETWORK_NORMS:
            raise ValueError(f"norm must be one of {', '.join(NETWORK_NORMS)}, not {norm!r}")
        load_kernels()
        self.layer: Norm = "gn" if norm == "gn-ws" else norm  # type: ignore[assignment]
        self.activation: Activation = activation or ("relu" if norm == "bn" else "silu")  # type: ignore[assignment]
        check_norm(self.layer, self.activation, threshold)
        self.threshold = threshold
        self.standardised = norm == "gn-ws"

    def conv(self, inputs: int, outputs: int, kernel: int, stride: int, reads_images: bool = False) -> CastConv2d:
        if not self.standardised:
            return PlainConv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        gain = 1.0 if reads_images else gain_for(self.activation)
        return WSConv2d(inputs, outputs, kernel, stride, kernel // 2, gain=gain)

    def norm(self, channels: int) -> NormLayer:
        return norm_act_layer(channels, self.layer, self.activation, self.threshold)


class PreActBlock(nn.Module):
    """The layers of one block; `norms[0]` normalises the stream before it."""

    def __init__(self, shape: BlockShape, design: Design, pooled: bool = False) -> None:
        super().__init__()
        specs = shape.convolutions()
        self.convs = nn.ModuleList(design.conv(*spec) for spec in specs)
        self.norms = nn.ModuleList(design.norm(inputs) for inputs, *_ in specs)
        self.pools = pooled and shape.stride > 1
        stride = 1 if self.pools else shape.stride
        self.project = design.conv(shape.inputs, shape.outputs, 1, stride) if shape.changes else None

    def layers(self) -> list[CastConv2d]:
        """The convolutions in the order in which `forward` takes their weights."""
        first = [] if self.project is None else [self.project]
        return [*first, *(conv for conv in self.convs if isinstance(conv, CastConv2d))]

    def forward(self, x: Tensor, h: Tensor | None, weights: Iterator[Any]) -> tuple[Tensor, Tensor]:
        """(the shortcut, the branch) from a stream x + h; whoever comes next adds them."""
        first, *norms = (norm for norm in self.norms if isinstance(norm, NormAct | BatchNormAct))
        y, x = first.add(x, h)
        if self.project is not None:
            x = self.project(halved(y) if self.pools else y, next(weights))
        begin, *convs = self.convs
        out: Tensor = begin(y, next(weights))
        for norm, conv in zip(norms, convs, strict=True):
            out = conv(norm(out), next(weights))
        return x, out


class PreActResNet(nn.Module):
    """The network of a layout. Input NCHW in any float precision; logits in float32."""

    def __init__(
        self,
        shape: Layout,
        classes: int,
        in_channels: int,
        norm: str,
        activation: str | None,
        threshold: bool,
        variant: Variant | None = None,
    ) -> None:
        super().__init__()
        design = Design(norm, activation, threshold)
        self.small_input = shape.small_input
        first, *more = stem_convolutions(shape, in_channels, variant)
        self.stem = design.conv(*first, reads_images=True)
        self.stem_norms = nn.ModuleList(design.norm(inputs) for inputs, *_ in more)
        self.stem_convs = nn.ModuleList(design.conv(*spec) for spec in more)
        self.blocks = nn.ModuleList(PreActBlock(block, design, variant == "d") for block in shape.blocks)
        self.norm = design.norm(shape.features)
        self.head = nn.Linear(shape.features, classes)
        nn.init.normal_(self.head.weight, std=shape.features**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        """Logits; the stream before every block and after the last is appended to `keep`, for measurements."""
        blocks = [block for block in self.blocks if isinstance(block, PreActBlock)]
        if isinstance(x, torch.fx.Proxy):  # being traced by `convert`: every layer computes its own weight
            weights: Iterator[Any] = itertools.repeat(None)
        else:
            x = activations(x)
            begin = [self.stem, *(conv for conv in self.stem_convs if isinstance(conv, CastConv2d))]
            layers = [*begin, *(layer for block in blocks for layer in block.layers())]
            weights = iter(standardised_weights(layers, x.dtype))
        x = self.stem(x, next(weights))
        for norm, conv in zip(self.stem_norms, self.stem_convs, strict=True):
            x = conv(norm(x), next(weights))
        if not self.small_input:
            x = F.max_pool2d(x, 3, 2, 1)
        h: Tensor | None = None
        for block in blocks:
            if keep is not None:
                keep.append(x if h is None else x + h)
            x, h = block(x, h, weights)
        y, x = self.norm.add(x, h)
        if keep is not None:
            keep.append(x)
        return linear(y.mean((2, 3), dtype=self.head.weight.dtype), self.head)


def linear(x: Tensor, head: nn.Linear) -> Tensor:
    """The head. Small ones on CUDA are written out: the library's float32 product takes ten times as long."""
    if isinstance(x, torch.fx.Proxy) or not x.is_cuda or len(x) * head.weight.numel() > FEW:
        logits: Tensor = head(x)
        return logits
    if torch.compiler.is_compiling():
        return (x[:, None, :] * head.weight).sum(-1) + head.bias
    if torch._C._are_functorch_transforms_active():
        return F.linear(x, head.weight, head.bias)
    return SmallLinear.apply(x, head.weight) + head.bias  # type: ignore[no-untyped-call, no-any-return]
