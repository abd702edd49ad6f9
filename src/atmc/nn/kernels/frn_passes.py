"""The two passes through a ResNet-FRN, kernel by kernel.

A layer of `frn_rows` is left with its convolution alone; who reads its output makes it first. Backward likewise: the
kernel that makes the last part of a layer's gradient begins that layer. Weight gradients are nobody's input, so they
are made on a stream of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from atmc.nn.kernels import frn_rows
from atmc.nn.kernels.frn_layers import PER_LAYER, Layer, backward_layer, forward_layer, weight_gradient
from atmc.nn.kernels.norm_act_backward_triton import sum_kernel

own_stream = True  # for weight gradients; False for comparison


class Buffers:
    """What a forward pass keeps, in two allocations: each layer's convolution and output, and its statistics."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor | None,
        kept: Tensor,
        stats: Tensor,
        layers: Sequence[Layer],
        params: Sequence[Tensor],
    ) -> None:
        self.x, self.y, self.kept, self.stats, self.layers, self.params = x, y, kept, stats, layers, params
        self.images = len(x)
        self.half = sum(layer.size for layer in layers) * self.images

    def conv(self, layer: Layer) -> Tensor:
        return self.kept[layer.at * self.images :]

    def out(self, index: int) -> Tensor:
        """Of a layer; -1 is the images. That of the last layer is not kept, and nobody reads it."""
        if index < 0:
            return self.x
        if index == len(self.layers) - 1:
            assert self.y is not None
            return self.y
        return self.kept[self.half + self.layers[index].at * self.images :]

    def shortcut(self, layer: Layer) -> Tensor | None:
        return None if layer.shortcut is None else self.out(layer.shortcut)

    def scale(self, layer: Layer) -> Tensor:
        return self.stats[frn_rows.MOST_PARTS * layer.statistics * self.images :]

    def of(self, layer: Layer) -> Sequence[Tensor]:
        return self.params[PER_LAYER * layer.index : PER_LAYER * (layer.index + 1)]


def on_device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def forward_pass(saved: Buffers, weights: Sequence[Tensor]) -> None:
    images, unmade = saved.images, -1  # the layer whose output is not there yet; never more than one

    def finish() -> None:
        layer = saved.layers[unmade]
        frn_rows.finish(
            layer, images, saved.conv(layer), saved.shortcut(layer), saved.out(unmade), saved.scale(layer),
            saved.of(layer),
        )  # fmt: skip

    for layer in saved.layers:
        weight, conv, scale, source = (
            weights[layer.index],
            saved.conv(layer),
            saved.scale(layer),
            saved.out(layer.source),
        )
        if frn_rows.shares_rows(layer):
            before = None
            if unmade >= 0:
                last = saved.layers[unmade]
                before = last, saved.conv(last), saved.shortcut(last), saved.scale(last), saved.of(last)
            frn_rows.forward_rows(layer, images, before, source, weight, saved.of(layer), conv, scale)
            unmade = layer.index
            continue
        if unmade >= 0:
            finish()
            unmade = -1
        forward_layer(
            layer, images, source, weight, saved.shortcut(layer), saved.of(layer), conv, saved.out(layer.index), scale
        )
    if unmade >= 0:
        finish()


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


def backward_pass(saved: Buffers, dy: Tensor, weights: Sequence[Tensor], dw: Tensor, sums: Tensor) -> None:
    x, layers, images = saved.x, saved.layers, saved.images
    shares = torch.empty(PER_LAYER * images * max(1, sum(each.outputs for each in layers)), device=x.device)
    slopes: dict[int, Tensor] = {len(layers) - 1: dy}  # gradients of layers' outputs, as far as they are known
    begun: dict[int, tuple[Tensor, Tensor]] = {}  # of layers of `frn_rows`: before the activation, and its sums
    readers = {source: min(each.index for each in layers if each.source == source) for source in range(len(layers) - 1)
               if any(each.source == source for each in layers)}  # fmt: skip
    alive: list[Tensor] = []  # until the other stream is done with them
    for layer in reversed(layers):
        dc = x.new_empty(images * layer.size)
        dx = None if layer.source < 0 else x.new_empty(images * layers[layer.source].size)
        share = shares[PER_LAYER * layer.statistics * images :]
        weight, conv, scale, of = weights[layer.index], saved.conv(layer), saved.scale(layer), saved.of(layer)
        if frn_rows.shares_rows(layer):
            assert dx is not None
            if layer.index not in begun:
                begun[layer.index] = x.new_empty(images * layer.size), frn_rows.new_sums(layer, images, x)
                frn_rows.begin(
                    layer, images, slopes.pop(layer.index), conv, saved.shortcut(layer), scale, of, *begun[layer.index]
                )
            a, partial = begun.pop(layer.index)
            add = slopes.pop(layer.source, None)
            before, below = layers[layer.source], None
            if frn_rows.shares_rows(before) and readers[before.index] == layer.index:  # all of its gradient is known
                begun[before.index] = dx, frn_rows.new_sums(before, images, x)
                below = (before, saved.conv(before), saved.shortcut(before), saved.scale(before), saved.of(before),
                         begun[before.index][1])  # fmt: skip
            else:
                slopes[before.index] = dx
            frn_rows.backward_rows(layer, images, (conv, a, scale, partial), weight, of, dc, share, add, dx, below)
            if layer.shortcut is not None:
                slopes[layer.shortcut] = a
        else:
            shortcut = None if layer.shortcut is None else layers[layer.shortcut]
            dres = None if shortcut is None else x.new_empty(images * shortcut.size)
            tensors = conv, saved.shortcut(layer), slopes.pop(layer.index)
            backward_layer(layer, images, tensors, weight, of, scale, dc, dres, dx, slopes.get(layer.source), share)
            if dx is not None:
                slopes[layer.source] = dx
            if shortcut is not None and dres is not None:
                slopes[shortcut.index] = dres
        with _aside(x):
            alive += [dc, weight_gradient(layer, saved.out(layer.source), dc, dw, images)]
            grid = PER_LAYER, triton.cdiv(layer.outputs, 16)
            sum_kernel[grid](
                share, sums[PER_LAYER * layer.statistics :], layer.outputs, images, BLOCK_I=128, BLOCK_C=16
            )
    if own_stream and x.is_cuda:
        torch.cuda.current_stream(x.device).wait_stream(_side_stream(x.device))
    del alive
