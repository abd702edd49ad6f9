"""All but the head of a ResNet-FRN by kernels made for it (`kernels.frn_triton`), where those apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from atmc.nn import norm_functions
from atmc.nn.standardisation import padded

enabled = True  # False: layer by layer on a GPU too, for comparison
CHANNELS = (16, 32, 64)
LARGEST = 16384  # numbers of an image and a layer: what a program holds in registers


def applies(x: Tensor, shapes: Sequence[Sequence[int]], strides: Sequence[int]) -> bool:
    """Half precision on a GPU, channels of `CHANNELS`, square images of a power of two pixels, no gradient of them."""
    if not enabled or x.dtype not in (torch.bfloat16, torch.float16) or not norm_functions._fused_applies(x):
        return False
    side, down, channels = x.shape[-1], 1, [shape[0] for shape in shapes]
    for stride in strides:
        down *= stride
    fits = x.shape[-2] == side and side & (side - 1) == 0 and side >= 4 * down and side * side * channels[0] <= LARGEST
    halved = channels[-1] == channels[0] * down  # so that no later layer is larger
    small = x.shape[1] <= 5 and all(count in CHANNELS for count in channels)
    return fits and halved and small and not x.requires_grad


def run(
    x: Tensor, flat: Tensor, params: Sequence[Tensor], shapes: Sequence[Sequence[int]], strides: Sequence[int]
) -> Tensor:
    """The mean over pixels of the last block's output, in float32.

    flat: all weights as `standardisation.flat_weights` lays them out; shapes: theirs; params: of every layer its
    convolution's bias, then gain, bias and threshold.
    """
    given = flat, list(params), [size for shape in shapes for size in shape], list(strides)
    if torch.compiler.is_compiling():
        y: Tensor = torch.ops.atmc.frn_trunk(x, *given)[0]
        return y
    from atmc.nn.kernels.frn_op import Trunk

    out: Tensor = Trunk.apply(given[2], given[3], x, flat, *params)  # type: ignore[no-untyped-call]
    return out


def run_by_image(
    x: Tensor,
    flat: Tensor,
    params: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
    strides: Sequence[int],
    slope: Callable[[Tensor], Tensor],
    more: int = 0,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The gradients of each image, where `slope` makes of the outputs those of a loss; all in one matrix.

    For every layer that of its weight [images, O, I, kh, kw], and those of bias, gain, bias and threshold [images, O].
    The last are `more` further columns of the matrix, for what else the caller has.
    """
    from atmc.nn.kernels.frn_op import frn_trunk, gradients_of_images

    sizes, given = [size for shape in shapes for size in shape], list(params)
    y, kept, stats = frn_trunk(x, flat, given, sizes, list(strides))
    found, others = gradients_of_images(slope(y), x, flat, given, kept, stats, sizes, list(strides), more)
    weights, begin = [], 0
    for shape in shapes:
        outputs, inputs, *kernel = shape
        own = found[:, begin : begin + math.prod(shape)].view(len(x), outputs, *kernel, inputs)
        weights.append(own.movedim(-1, 2))
        begin += padded(shape)
    gain, bias, extra, pre = (torch.split(row, [shape[0] for shape in shapes], 1) for row in others.unbind(1))
    left = found[:, found.shape[1] - more :]
    return weights, [t for four in zip(pre, gain, bias, extra, strict=True) for t in four], left
