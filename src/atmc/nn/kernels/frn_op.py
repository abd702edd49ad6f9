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


def _layers(x: Tensor, weights: Sequence[Tensor], strides: Sequence[int]) -> list[Layer]:
    return plan(x.shape[1:], [w.shape for w in weights], strides)


@torch.library.custom_op(
    "atmc::frn_trunk",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, Tensor[] params, int[] strides) -> (Tensor, Tensor, Tensor)",
)
def frn_trunk(
    x: Tensor, weights: Sequence[Tensor], params: Sequence[Tensor], strides: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """(the last block's output, what the backward pass needs, statistics)."""
    x = x.contiguous(memory_format=torch.channels_last)
    layers = _layers(x, weights, strides)
    y, kept, stats = _outputs(x, layers)
    with on_device(x):
        forward_pass(Buffers(x, y, kept, stats, layers, params), weights)
    return y, kept, stats


def _outputs(x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor, Tensor]:
    last = layers[-1]
    shape = len(x), last.outputs, last.height, last.width
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    kept = x.new_empty(2 * len(x) * sum(layer.size for layer in layers) - y.numel())
    statistics = len(x) * sum(layer.outputs for layer in layers)
    return y, kept, x.new_empty(statistics, dtype=torch.float32)


@frn_trunk.register_fake
def _(x: Tensor, weights: Sequence[Tensor], params: Any, strides: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(x, _layers(x, weights, strides))


@torch.library.custom_op(
    "atmc::frn_trunk_backward",
    mutates_args=(),
    schema="(Tensor dy, Tensor x, Tensor[] weights, Tensor[] params, Tensor kept, Tensor stats, int[] strides) "
    "-> (Tensor, Tensor)",
)
def frn_trunk_backward(
    dy: Tensor,
    x: Tensor,
    weights: Sequence[Tensor],
    params: Sequence[Tensor],
    kept: Tensor,
    stats: Tensor,
    strides: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """(gradients of the weights, each as (O, kh, kw, C); gradients of [gain, bias, threshold, pre] × channels)."""
    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.to(x.dtype).contiguous(memory_format=torch.channels_last)
    layers = _layers(x, weights, strides)
    dw, sums = _gradients(x, layers)
    with on_device(x):
        backward_pass(Buffers(x, None, kept, stats, layers, params), dy, weights, dw, sums)
    return dw, sums


def _gradients(x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    count = sum(layer.weights for layer in layers)
    return x.new_empty(count), x.new_empty(PER_LAYER * sum(layer.outputs for layer in layers), dtype=torch.float32)


@frn_trunk_backward.register_fake
def _(
    dy: Tensor, x: Tensor, weights: Sequence[Tensor], params: Any, kept: Any, stats: Any, strides: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return _gradients(x, _layers(x, weights, strides))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weights, params, ctx.strides = inputs
    _, kept, stats = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept, stats)
    ctx.count = len(weights)
    ctx.save_for_backward(x, kept, stats, *weights, *params)


def _backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    x, kept, stats, *rest = ctx.saved_tensors
    weights, params = rest[: ctx.count], rest[ctx.count :]
    flat, sums = torch.ops.atmc.frn_trunk_backward(dy, x, weights, params, kept, stats, ctx.strides)
    sizes, channels = [w.numel() for w in weights], [w.shape[0] for w in weights]
    for_weights = [
        part.view(w.shape[0], *w.shape[2:], w.shape[1]).movedim(-1, 1)
        for part, w in zip(flat.split(sizes), weights, strict=True)
    ]
    gain, bias, extra, pre = (row.split(channels) for row in sums.view(PER_LAYER, -1))
    for_params = [t for four in zip(pre, gain, bias, extra, strict=True) for t in four]
    return None, for_weights, for_params, None


class Trunk(torch.autograd.Function):
    """The operator for eager use, where second derivatives may be wanted."""

    @staticmethod
    def forward(ctx: Any, strides: list[int], count: int, x: Tensor, *tensors: Tensor) -> Tensor:
        weights, params = list(tensors[:count]), list(tensors[count:])
        y, kept, stats = torch.ops.atmc.frn_trunk(x, weights, params, strides)
        ctx.strides, ctx.count = strides, count
        ctx.save_for_backward(x, kept, stats, *tensors)
        result: Tensor = y
        return result

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            x, _, _, *tensors = ctx.saved_tensors
            given = [t if t.requires_grad else t.detach().requires_grad_() for t in tensors]
            y = reference(x, given[: ctx.count], given[ctx.count :], ctx.strides)
            return (None, None, None, *torch.autograd.grad(y, given, slopes[0], create_graph=True))
        _, for_weights, for_params, _ = _backward(ctx, slopes[0])
        return (None, None, None, *for_weights, *for_params)


def reference(x: Tensor, weights: Sequence[Tensor], params: Sequence[Tensor], strides: Sequence[int]) -> Tensor:
    """The same in torch operations, layer by layer."""
    outs = {-1: x}
    layers = _layers(x, weights, strides)
    for layer in layers:
        pre, gain, bias, extra = params[PER_LAYER * layer.index : PER_LAYER * (layer.index + 1)]
        conv = F.conv2d(outs[layer.source], weights[layer.index], None, layer.stride, 1 if layer.taps == 9 else 0)
        res = None if layer.shortcut is None else outs[layer.shortcut]
        outs[layer.index] = norm_act_reference(
            conv, gain, bias, extra, "frn", ACTS[layer.act], 1, EPS, pre_bias=pre, res=res
        )[0]
    return outs[layers[-1].index]


frn_trunk.register_autograd(_backward, setup_context=_remember)
