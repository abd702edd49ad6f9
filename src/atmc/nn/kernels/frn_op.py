"""All convolutions, normalisations and blocks of a ResNet-FRN as one operator of torch, by the kernels of `frn_triton`.

`torch.ops.atmc.frn_trunk` can be compiled and captured in a CUDA graph. `Trunk` can be differentiated twice too (see
`standardise_op`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn.kernels.frn_layers import EPS, PER_LAYER, Layer, plan
from atmc.nn.kernels.frn_passes import Buffers, backward_pass, forward_pass, on_device
from atmc.nn.norm_functions import ACTS, norm_act_reference
from atmc.nn.standardisation import as_filters


def _layers(x: Tensor, shapes: Sequence[int], strides: Sequence[int]) -> list[Layer]:
    return plan(x.shape[1:], [shapes[at : at + 4] for at in range(0, len(shapes), 4)], strides)


@torch.library.custom_op(
    "atmc::frn_trunk",
    mutates_args=(),
    schema="(Tensor x, Tensor flat, Tensor[] params, int[] shapes, int[] strides) -> (Tensor, Tensor, Tensor)",
)
def frn_trunk(
    x: Tensor, flat: Tensor, params: Sequence[Tensor], shapes: Sequence[int], strides: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """(mean over pixels of the last block's output, what the backward pass needs, statistics).

    flat: all weights; shapes: four numbers of each.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    layers = _layers(x, shapes, strides)
    y, kept, stats = _outputs(x, layers)
    with on_device(x):
        forward_pass(Buffers(x, y, kept, stats, layers, flat, params))
    return y, kept, stats


def _outputs(x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor, Tensor]:
    y = x.new_empty(len(x), layers[-1].outputs, dtype=torch.float32)
    kept = x.new_empty(len(x) * (2 * sum(layer.size for layer in layers) - layers[-1].size))
    return y, kept, x.new_empty(len(x) * sum(layer.outputs for layer in layers), dtype=torch.float32)


@frn_trunk.register_fake
def _(x: Tensor, flat: Any, params: Any, shapes: Sequence[int], strides: Sequence[int]) -> tuple[Tensor, ...]:
    return _outputs(x, _layers(x, shapes, strides))


@torch.library.custom_op(
    "atmc::frn_trunk_backward",
    mutates_args=(),
    schema="(Tensor dy, Tensor x, Tensor flat, Tensor[] params, Tensor kept, Tensor stats, int[] shapes, "
    "int[] strides) -> (Tensor, Tensor)",
)
def frn_trunk_backward(
    dy: Tensor,
    x: Tensor,
    flat: Tensor,
    params: Sequence[Tensor],
    kept: Tensor,
    stats: Tensor,
    shapes: Sequence[int],
    strides: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """(gradients of `flat`; gradients of [gain, bias, threshold, pre] × channels)."""
    x = x.contiguous(memory_format=torch.channels_last)
    layers = _layers(x, shapes, strides)
    dy = (dy / layers[-1].pixels).contiguous()
    dw, sums = _gradients(flat, layers)
    with on_device(x):
        backward_pass(Buffers(x, None, kept, stats, layers, flat, params), dy, dw, sums)
    return dw, sums


def gradients_of_images(
    dy: Tensor,
    x: Tensor,
    flat: Tensor,
    params: Sequence[Tensor],
    kept: Tensor,
    stats: Tensor,
    shapes: Sequence[int],
    strides: Sequence[int],
    more: int = 0,
) -> tuple[Tensor, Tensor]:
    """What `frn_trunk_backward` has, for each image by itself, in float32.

    A matrix [images, weights, then the others, then `more` columns], and its columns of the others as
    [images, 4, channels].
    """
    x = x.contiguous(memory_format=torch.channels_last)
    layers = _layers(x, shapes, strides)
    dy = (dy / layers[-1].pixels).contiguous()
    images, channels, weights = len(x), sum(layer.outputs for layer in layers), len(flat)
    found = flat.new_empty(images, weights + PER_LAYER * channels + more, dtype=torch.float32)
    sums = found.new_empty(PER_LAYER, images, channels)
    with on_device(x):
        backward_pass(Buffers(x, None, kept, stats, layers, flat, params), dy, found, sums)
    others = found[:, weights : weights + PER_LAYER * channels].view(images, PER_LAYER, channels)
    others.copy_(sums.movedim(0, 1))
    return found, others


def _gradients(flat: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    channels = sum(layer.outputs for layer in layers)
    return flat.new_empty(flat.shape), flat.new_empty(PER_LAYER * channels, dtype=torch.float32)


@frn_trunk_backward.register_fake
def _(
    dy: Any, x: Tensor, flat: Tensor, params: Any, kept: Any, stats: Any, shapes: Sequence[int], strides: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return _gradients(flat, _layers(x, shapes, strides))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, flat, params, ctx.shapes, ctx.strides = inputs
    _, kept, stats = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept, stats)
    ctx.save_for_backward(x, kept, stats, flat, *params)


def _backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    x, kept, stats, flat, *params = ctx.saved_tensors
    dw, sums = torch.ops.atmc.frn_trunk_backward(dy, x, flat, params, kept, stats, ctx.shapes, ctx.strides)
    gain, bias, extra, pre = (row.split(ctx.shapes[::4]) for row in sums.view(PER_LAYER, -1))
    for_params = [t for four in zip(pre, gain, bias, extra, strict=True) for t in four]
    return None, dw, for_params, None, None


class Trunk(torch.autograd.Function):
    """The operator for eager use, where second derivatives may be wanted."""

    @staticmethod
    def forward(ctx: Any, shapes: list[int], strides: list[int], x: Tensor, flat: Tensor, *params: Tensor) -> Tensor:
        y, kept, stats = torch.ops.atmc.frn_trunk(x, flat, params, shapes, strides)
        ctx.shapes, ctx.strides = shapes, strides
        ctx.save_for_backward(x, kept, stats, flat, *params)
        result: Tensor = y
        return result

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            x, _, _, *tensors = ctx.saved_tensors
            given = [t if t.requires_grad else t.detach().requires_grad_() for t in tensors]
            y = reference(x, given[0], given[1:], ctx.shapes, ctx.strides)
            return (None, None, None, *torch.autograd.grad(y, given, slopes[0], create_graph=True))
        _, dw, for_params, *_ = _backward(ctx, slopes[0])
        return (None, None, None, dw, *for_params)


def reference(
    x: Tensor, flat: Tensor, params: Sequence[Tensor], shapes: Sequence[int], strides: Sequence[int]
) -> Tensor:
    """The same in torch operations, layer by layer."""
    outs = {-1: x}
    layers = _layers(x, shapes, strides)
    for layer in layers:
        pre, gain, bias, extra = params[PER_LAYER * layer.index : PER_LAYER * (layer.index + 1)]
        part = flat[layer.filters : layer.filters + layer.weights]
        weight = as_filters(part, shapes[4 * layer.index : 4 * layer.index + 4])
        conv = F.conv2d(outs[layer.source], weight, None, layer.stride, 1 if layer.taps == 9 else 0)
        res = None if layer.shortcut is None else outs[layer.shortcut]
        outs[layer.index] = norm_act_reference(
            conv, gain, bias, extra, "frn", ACTS[layer.act], 1, EPS, pre_bias=pre, res=res
        )[0]
    return outs[layers[-1].index].mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32))


frn_trunk.register_autograd(_backward, setup_context=_remember)
