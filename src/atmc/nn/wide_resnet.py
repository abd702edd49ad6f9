"""Wide ResNets and pre-activation ResNets, with a normaliser that can be sampled or with BatchNorm.

`WideResNet(28, 10)` is WRN-28-10 (Zagoruyko & Komodakis 2016): depth 6n+4, three stages of n blocks, widths 16k, 32k
and 64k after a stem of 16. `ResNetV2(depth)` has the shapes of `layout`: depth 6n+2 for small images, 18, 34, 50 and
101 for ImageNet. Parameter counts with BatchNorm are the published ones, e.g. 36,479,194 for WRN-28-10.
"""

from __future__ import annotations

from typing import Any

from atmc.nn.preactivation import PreActResNet
from atmc.nn.resnet_shapes import BlockShape, Layout, Variant, layout, made_by

STEM = 16


def wide_layout(depth: int, factor: int, small_input: bool = True) -> Layout:
    """The blocks of a wide ResNet."""
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth of a wide ResNet must be 6n+4 (10, 16, 22, 28, 40, …), not {depth}")
    if factor < 1:
        raise ValueError(f"width (the factor k of WRN-depth-k) must be at least 1, not {factor}")
    blocks: list[BlockShape] = []
    channels = STEM
    for stage in range(3):
        width = STEM * factor * 2**stage
        for index in range((depth - 4) // 6):
            blocks.append(BlockShape(channels, width, width, 2 if stage > 0 and index == 0 else 1, False))
            channels = width
    return Layout(STEM, small_input, False, tuple(blocks))


class WideResNet(PreActResNet):
    """WRN-depth-width. norm: "gn-ws", "evonorm-s0", "frn" or "bn"; activation: "silu", "relu", or "tlu" with "frn".

    threshold: whether FRN has its threshold before the activation, too. activation defaults to "silu" ("bn": "relu").
    """

    def __init__(
        self,
        depth: int = 16,
        width: int = 4,
        classes: int = 10,
        in_channels: int = 3,
        norm: str = "gn-ws",
        activation: str | None = None,
        threshold: bool = False,
        small_input: bool = True,
    ) -> None:
        super().__init__(wide_layout(depth, width, small_input), classes, in_channels, norm, activation, threshold)
        self.made_by = made_by("wide-resnet", locals())


class ResNetV2(PreActResNet):
    """Pre-activation ResNet: depth 6n+2 for small images, or 18, 34, 50, 101; options as for `WideResNet`.

    variant: "d" for ResNet-D, of the depths 18 to 101.
    """

    def __init__(
        self,
        depth: int,
        width: int | None = None,
        classes: int = 10,
        in_channels: int = 3,
        norm: str = "gn-ws",
        activation: str | None = None,
        threshold: bool = False,
        small_input: bool | None = None,
        variant: Variant | None = None,
    ) -> None:
        super().__init__(layout(depth, width, small_input), classes, in_channels, norm, activation, threshold, variant)
        self.made_by = made_by("resnet-v2", locals())


def wide_resnet(depth: int = 16, width: int = 4, classes: int = 10, in_channels: int = 3, **options: Any) -> WideResNet:
    """`WideResNet`: WRN-depth-width; options: norm, activation, threshold, small_input."""
    return WideResNet(depth, width, classes, in_channels, **options)
