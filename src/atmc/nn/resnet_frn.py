"""The ResNet of the HMC benchmark (Izmailov et al. 2021): filter response normalisation and SiLU, 274,042 parameters.

Post-activation blocks, convolutions with bias, every normalisation with its threshold (also those before an addition),
1×1 projections with a normalisation of their own where the shape changes, He-normal start. Biases of convolutions are
added by the normalisation that follows, in the same kernel. In half precision on a GPU the network of the benchmark has
kernels of its own (`frn_trunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from atmc.nn import frn_trunk
from atmc.nn.norm_functions import activations
from atmc.nn.normalisation import NormAct
from atmc.nn.preactivation import PlainConv2d, linear
from atmc.nn.resnet_shapes import BlockShape, layout, made_by
from atmc.nn.standardisation import flat_weights, standardised_weights
from atmc.nn.strided import conv2d


class ConvNormAct(nn.Module):
    """act(frn(conv(x) + bias) + res)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, activated: bool) -> None:
        super().__init__()
        self.conv = PlainConv2d(inputs, outputs, kernel, stride, kernel // 2)
        self.norm = NormAct(outputs, "frn", "silu" if activated else "identity", threshold=True)

    def forward(self, x: Tensor, weight: Tensor | None, res: Tensor | None = None) -> Tensor:
        weight = self.conv.effective(x.dtype) if weight is None else weight
        stride, padding = self.conv.stride[0], self.conv.kernel_size[0] // 2
        out: Tensor = self.norm(conv2d(x, weight, None, stride, padding), self.conv.bias, res)
        return out

    def parameters_in_order(self) -> list[Tensor]:
        """All but the weight, as `frn_trunk` takes them."""
        assert self.conv.bias is not None
        assert self.norm.threshold is not None
        return [self.conv.bias, self.norm.gain, self.norm.bias, self.norm.threshold]


class FRNBlock(nn.Module):
    """SiLU(shortcut + two convolutions), the shortcut projected where the shape changes."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.first = ConvNormAct(shape.inputs, shape.width, 3, shape.stride, True)
        self.second = ConvNormAct(shape.width, shape.outputs, 3, 1, True)
        self.project = ConvNormAct(shape.inputs, shape.outputs, 1, shape.stride, False) if shape.changes else None

    def parts(self) -> list[ConvNormAct]:
        return [self.first, self.second] if self.project is None else [self.project, self.first, self.second]

    def forward(self, x: Tensor, weights: Iterator[Tensor | None]) -> Tensor:
        shortcut = x if self.project is None else self.project(x, next(weights))
        h = self.first(x, next(weights))
        out: Tensor = self.second(h, next(weights), shortcut)
        return out


class ResNetFRN(nn.Module):
    """ResNet-depth-FRN-SiLU, depth 6n+2. Input NCHW in any float precision; logits in float32."""

    def __init__(self, depth: int = 20, width: int = 16, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.made_by = made_by("resnet-frn", locals())
        shape = layout(depth, width)
        if shape.imagenet:
            raise ValueError(f"depth must be 6n+2 (8, 14, 20, 32, 44, 56, …) and not {depth}")
        self.stem = ConvNormAct(in_channels, shape.stem, 3, 1, True)
        self.blocks = nn.ModuleList(FRNBlock(block) for block in shape.blocks)
        self.head = nn.Linear(shape.features, classes)
        nn.init.normal_(self.head.weight, std=shape.features**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = activations(x)
        if (given := self._trunk(x)) is not None:
            pooled = frn_trunk.run(x, *given).to(self.head.weight.dtype)
        else:
            left: Iterator[Any] = iter(standardised_weights([part.conv for part in self._parts()], x.dtype))
            x = self.stem(x, next(left))
            for block in self._blocks():
                x = block(x, left)
            pooled = x.mean((2, 3), dtype=self.head.weight.dtype)
        return linear(pooled, self.head)

    def _blocks(self) -> list[FRNBlock]:
        return [block for block in self.blocks if isinstance(block, FRNBlock)]

    def _parts(self) -> list[ConvNormAct]:
        return [self.stem, *(part for block in self._blocks() for part in block.parts())]

    def _trunk(self, x: Tensor) -> tuple[Tensor, list[Tensor], list[tuple[int, ...]], list[int]] | None:
        """What `frn_trunk` takes besides x: weights, parameters, shapes and strides; None where it does not apply."""
        parts, strides = self._parts(), [block.first.conv.stride[0] for block in self._blocks()]
        shapes = [tuple(part.conv.weight.shape) for part in parts]
        if not frn_trunk.applies(x, shapes, strides):
            return None
        flat = flat_weights([part.conv for part in parts], x.dtype)
        params = [p for part in parts for p in part.parameters_in_order()]
        return None if flat is None else (flat, params, shapes, strides)

    def example_gradients(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> dict[str, Tensor] | None:
        """The gradients [images, ...] of each image's loss by name; None where `frn_trunk` does not apply."""
        x = activations(x)
        with torch.no_grad():
            given = self._trunk(x)
        if given is None or not all(p.requires_grad for p in self.parameters()):
            return None
        found: dict[str, Tensor] = {}
        head: list[Tensor] = []

        def slope(y: Tensor) -> Tensor:
            with torch.enable_grad():
                pooled = y.detach().requires_grad_()
                logits = linear(pooled.to(self.head.weight.dtype), self.head)
                own, of_logits = torch.autograd.grad(loss(logits).sum(), (pooled, logits))
            head.extend((of_logits[:, :, None] * pooled.detach()[:, None], of_logits))
            return own

        with torch.no_grad():
            outputs, inputs = self.head.weight.shape
            weights, others, left = frn_trunk.run_by_image(x, *given, slope, outputs * (inputs + 1))
            found["head.weight"] = left[:, outputs:].view(len(x), outputs, inputs)
            found["head.bias"] = left[:, :outputs]
            for mine, value in zip((found["head.weight"], found["head.bias"]), head, strict=True):
                mine.copy_(value)
        names: dict[Tensor, str] = {p: name for name, p in self.named_parameters()}
        found |= {names[part.conv.weight]: w for part, w in zip(self._parts(), weights, strict=True)}
        found |= {names[p]: g for p, g in zip(given[1], others, strict=True)}
        return found


def resnet_frn(depth: int = 20, width: int = 16, classes: int = 10, in_channels: int = 3) -> ResNetFRN:
    """`ResNetFRN`, the network of the HMC benchmark with its default arguments."""
    return ResNetFRN(depth, width, classes, in_channels)
