"""All convolutions, normalisations and blocks of a ResNet-FRN as one operator of torch, by the kernels of `frn_triton`.

`torch.ops.atmc.frn_trunk` can be compiled and captured in a CUDA graph. `Trunk` can be differentiated twice too (see
`standardise_op`). Weight gradients are nobody's input, so they are made on a stream of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from atmc.nn.kernels.frn_layers import EPS, PER_LAYER, Layer, backward_layer, forward_layer, plan, weight_gradient
from atmc.nn.kernels.norm_act_backward_triton import sum_kernel
from atmc.nn.norm_functions import ACTS, norm_act_reference

own_stream = True  # for weight gradients; False for comparison


class _Buffers:
    """What a forward pass keeps, in two allocations: each layer's convolution and output, and its statistics."""

    def __init__(self, kept: Tensor, stats: Tensor, layers: Sequence[Layer], images: int) -> None:
        self.kept, self.stats, self.images = kept, stats, images
        self.half = sum(layer.size for layer in layers) * images

    def conv(self, layer: Layer) -> Tensor:
        return self.kept[layer.at * self.images :]

    def out(self, layer: Layer) -> Tensor:
        return self.kept[self.half + layer.at * self.images :]

    def scale(self, layer: Layer) -> Tensor:
        return self.stats[layer.statistics * self.images :]


def _device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


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
    saved = _Buffers(kept, stats, layers, len(x))
    with _device(x):
        for layer in layers:
            source = x if layer.source < 0 else saved.out(layers[layer.source])
            shortcut = None if layer.shortcut is None else saved.out(layers[layer.shortcut])
            out = y if layer is layers[-1] else saved.out(layer)
            of = params[PER_LAYER * layer.index : PER_LAYER * (layer.index + 1)]
            forward_layer(
                layer, len(x), source, weights[layer.index], shortcut, of, saved.conv(layer), out, saved.scale(layer)
            )
    return y, kept, stats


def _outputs(x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor, Tensor]:
    last = layers[-1]
    y = torch.empty(len(x), last.outputs, last.height, last.width, dtype=x.dtype, device=x.device)
    y = y.contiguous(memory_format=torch.channels_last)
    kept = x.new_empty(2 * len(x) * sum(layer.size for layer in layers) - y.numel())
    return y, kept, x.new_empty(len(x) * sum(layer.outputs for layer in layers), dtype=torch.float32)


@frn_trunk.register_fake
def _(x: Tensor, weights: Sequence[Tensor], params: Any, strides: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(x, _layers(x, weights, strides))


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _aside(x: Tensor) -> Iterator[None]:
    """Work that waits for what was begun here; the caller waits for the stream before it returns."""
    if not (own_stream and x.is_cuda):
        yield
        return
    side = _side_stream(x.device)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        yield


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
    """(gradients of the weights, each as (O, kh, kw, C); gradients of [gain, bias, threshold, pre] × all channels)."""
    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.to(x.dtype).contiguous(memory_format=torch.channels_last)
    layers, images = _layers(x, weights, strides), len(x)
    saved = _Buffers(kept, stats, layers, images)
    dw, sums = _gradients(x, layers)
    partial = torch.empty(PER_LAYER * images * max(1, sum(each.outputs for each in layers)), device=x.device)
    slopes: dict[int, Tensor] = {layers[-1].index: dy}  # gradients of layers' outputs, as far as they are known
    alive: list[Tensor] = []  # until the other stream is done with them
    with _device(x):
        for layer in reversed(layers):
            source = x if layer.source < 0 else saved.out(layers[layer.source])
            shortcut = None if layer.shortcut is None else layers[layer.shortcut]
            dc = x.new_empty(images * layer.size)
            dres = None if shortcut is None else x.new_empty(images * shortcut.size)
            dx = None if layer.source < 0 else x.new_empty(images * layers[layer.source].size)
            share = partial[PER_LAYER * layer.statistics * images :]
            of = params[PER_LAYER * layer.index : PER_LAYER * (layer.index + 1)]
            tensors = saved.conv(layer), None if shortcut is None else saved.out(shortcut), slopes.pop(layer.index)
            backward_layer(
                layer, images, tensors, weights[layer.index], of, saved.scale(layer), dc, dres, dx,
                slopes.get(layer.source), share,
            )  # fmt: skip
            if dx is not None:
                slopes[layer.source] = dx
            if shortcut is not None and dres is not None:
                slopes[shortcut.index] = dres
            with _aside(x):
                alive += [dc, weight_gradient(layer, source, dc, dw, images)]
                grid = PER_LAYER, triton.cdiv(layer.outputs, 16)
                found = sums[PER_LAYER * layer.statistics :]
                sum_kernel[grid](share, found, layer.outputs, images, BLOCK_I=128, BLOCK_C=16)
        if own_stream and x.is_cuda:
            torch.cuda.current_stream(x.device).wait_stream(_side_stream(x.device))
    del alive
    return dw, sums


def _gradients(x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    count = sum(layer.inputs * layer.outputs * layer.taps for layer in layers)
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
    for_params = []
    for part, count in zip(sums.split([PER_LAYER * count for count in channels]), channels, strict=True):
        gain, bias, extra, pre = part.view(PER_LAYER, count)
        for_params += [pre, gain, bias, extra]
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
