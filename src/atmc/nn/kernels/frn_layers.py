"""The layers of a ResNet-FRN: how they hang together, and the launches of the kernels of `frn_triton` for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
from torch import Tensor

from atmc.nn.kernels import frn_backward_triton as backward_kernels
from atmc.nn.kernels import frn_triton as kernels
from atmc.nn.kernels import frn_weights_triton as weight_kernels
from atmc.nn.kernels.norm_act_triton import IDENTITY, SILU
from atmc.nn.standardisation import padded

EPS = 1e-6
PER_LAYER = 4  # bias of the convolution, gain, bias, threshold
# Launches by output channels, the quickest of benchmarks/frn_step.py on an H200.
# Forward: warps; stages of the pipeline; pixels a product where two neighbours are taken together, else 0.
# Backward: warps; pixels a pass of the normalisation, and a product of the data gradient; stages; 1 to take neighbours
# together, else 0.
# Weight gradient: warps; pixels a product; programs for each row of taps; stages.
FORWARD = {16: (8, 1, 256), 32: (8, 3, 0), 64: (8, 3, 0)}
BACKWARD = {16: (16, 128, 512, 1, 1), 32: (8, 256, 256, 1, 0), 64: (4, 64, 64, 4, 0)}
WEIGHTS = {16: (4, 128, 128, 3), 32: (4, 64, 128, 3), 64: (4, 64, 44, 4)}


@dataclass(frozen=True)
class Layer:
    """One layer: shapes, where its input and shortcut come from (layer numbers, -1 the images), where its parts lie."""

    index: int
    source: int
    shortcut: int | None
    inputs: int
    outputs: int
    height: int
    width: int
    stride: int
    taps: int
    act: int
    at: int  # of its activations, in elements of an allocation for all layers and one image
    statistics: int  # likewise of its statistics
    filters: int  # of its weight, as `standardisation.flat_weights` lays them out

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def size(self) -> int:
        return self.outputs * self.pixels

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.taps

    @property
    def room(self) -> int:
        """What its weight takes in the allocation for all."""
        return padded((self.weights,))

    @property
    def plain(self) -> bool:
        return self.taps == 9 and self.stride == 1

    @property
    def constants(self) -> dict[str, int]:
        return {"H": self.height, "W": self.width, "C": self.inputs, "O": self.outputs, "STRIDE": self.stride,
                "TAPS": self.taps}  # fmt: skip


def plan(image: Sequence[int], shapes: Sequence[Sequence[int]], strides: Sequence[int]) -> list[Layer]:
    """The layers of a network, stem first; a block with a stride of 2 or a change of channels begins with a projection.

    image: channels, height, width; shapes: those of the weights, in the order in which layers run; strides: of blocks.
    """
    layers: list[Layer] = []
    height, width = image[1], image[2]
    at = statistics = filters = 0

    def append(source: int, shortcut: int | None, act: int, stride: int) -> int:
        nonlocal at, statistics, filters
        outputs, inputs, kernel, _ = shapes[len(layers)]
        layers.append(
            Layer(len(layers), source, shortcut, inputs, outputs, height, width, stride, kernel * kernel, act, at,
                  statistics, filters)
        )  # fmt: skip
        at, statistics, filters = at + layers[-1].size, statistics + outputs, filters + layers[-1].room
        return len(layers) - 1

    last = append(-1, None, SILU, 1)
    for stride in strides:
        height, width = height // stride, width // stride
        shortcut = last
        if shapes[len(layers)][2] == 1:
            shortcut = append(last, None, IDENTITY, stride)
        first = append(last, None, SILU, stride)
        last = append(first, shortcut, SILU, 1)
    return layers


def _warps(count: int) -> dict[str, int]:
    """So many warps, and so few registers that two programs fit on a multiprocessor: 256 images are then one wave."""
    return {"num_warps": count, "num_stages": 1, "maxnreg": min(255, 1024 // count)}


def forward_layer(
    layer: Layer,
    images: int,
    x: Tensor,
    weight: Tensor,
    res: Tensor | None,
    params: Sequence[Tensor],
    conv: Tensor,
    y: Tensor,
    scale: Tensor,
    pool: bool = False,
) -> None:
    """pool: y is to be the mean over pixels, in float32."""
    warps, stages, pixels = FORWARD[layer.outputs]
    kernels.forward_kernel[(images,)](
        x, weight, res, *params, conv, y, scale, EPS, **layer.constants, BLOCK_C=max(16, layer.inputs),
        ACT=layer.act, HAS_RES=res is not None, POOL=pool, BLOCK_P=min(pixels, layer.pixels),
        PAIRS=pixels > 0 and layer.inputs >= 16 and layer.plain, STAGES=stages, **_warps(warps),
    )  # fmt: skip


def backward_layer(
    layer: Layer,
    images: int,
    tensors: Sequence[Tensor | None],
    weight: Tensor,
    params: Sequence[Tensor],
    scale: Tensor,
    dc: Tensor,
    dres: Tensor | None,
    dx: Tensor | None,
    add: Tensor | None,
    share: Tensor,
    columns: int,
    pool: bool = False,
) -> None:
    """tensors: the convolution's result, the shortcut, and the gradient of the layer's output.

    pool: that gradient is one number for each image and channel, in float32.
    share: where the layer's columns begin in each image's row of [gain, bias, threshold, pre] × images × `columns`.
    """
    warps, passing, product, stages, pairs = BACKWARD[layer.outputs]
    backward_kernels.backward_kernel[(images,)](
        *tensors, weight, *params, scale, dc, dres, dx, add, share, images, columns, **layer.constants,
        ACT=layer.act, HAS_RES=dres is not None, HAS_DX=dx is not None, HAS_ADD=dx is not None and add is not None,
        POOL=pool, BLOCK_N=min(passing, layer.pixels), BLOCK_Q=min(product, layer.pixels),
        PAIRS=bool(pairs) and layer.plain, STAGES=stages, **_warps(warps),
    )  # fmt: skip


def programs_for(outputs: int, images: int) -> int:
    """Programs for each row of taps in a weight gradient: as many shares are to be added."""
    return min(images, WEIGHTS[outputs][2])


def weight_shares(
    layer: Layer, source: Tensor, dc: Tensor, shares: Tensor, columns: int, images: int, programs: int
) -> None:
    """Write each program's share of a layer's weight gradient. shares: where its columns begin in rows of `columns`.

    With as many programs as images a share is the gradient of one image.
    """
    warps, pixels, _, stages = WEIGHTS[layer.outputs]
    rows = 3 if layer.taps == 9 else 1
    weight_kernels.weight_kernel[(programs, rows)](
        source, dc, shares, images, columns, **layer.constants, BLOCK_P=min(pixels, layer.pixels),
        BLOCK_K=max(16, triton.next_power_of_2(rows * layer.inputs)), SHARE=triton.cdiv(images, programs),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def add_shares(shares: Tensor, dw: Tensor, programs: int, columns: int) -> None:
    """The weight gradients of layers side by side, from all programs' shares."""
    weight_kernels.add_kernel[(triton.cdiv(columns, 64),)](
        shares, dw, columns, PROGRAMS=programs, BLOCK=64, ROWS=64, num_warps=4
    )
