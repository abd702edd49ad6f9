"""The two passes through a ResNet-FRN.

Weight gradients are nobody's input: they are made on a stream of their own. Sums over programs and images are made for
many layers in one launch: of weight gradients one for each width, of all other parameters one at the end.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from atmc.nn.kernels.frn_layers import (
    PER_LAYER,
    Layer,
    add_shares,
    backward_layer,
    forward_layer,
    programs_for,
    weight_shares,
)
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
        flat: Tensor,
        params: Sequence[Tensor],
    ) -> None:
        self.x, self.y, self.kept, self.stats, self.layers = x, y, kept, stats, layers
        self.flat, self.params = flat, params
        self.images = len(x)
        self.half = sum(layer.size for layer in layers) * self.images

    def conv(self, layer: Layer) -> Tensor:
        return self.kept[layer.at * self.images :]

    def out(self, index: int) -> Tensor:
        """Of a layer; -1 is the images. The last layer has the mean over pixels, which nobody here reads."""
        if index < 0:
            return self.x
        if index == len(self.layers) - 1:
            assert self.y is not None
            return self.y
        return self.kept[self.half + self.layers[index].at * self.images :]

    def shortcut(self, layer: Layer) -> Tensor | None:
        return None if layer.shortcut is None else self.out(layer.shortcut)

    def scale(self, layer: Layer) -> Tensor:
        return self.stats[layer.statistics * self.images :]

    def weight(self, layer: Layer) -> Tensor:
        return self.flat[layer.filters :]

    def of(self, layer: Layer) -> Sequence[Tensor]:
        return self.params[PER_LAYER * layer.index : PER_LAYER * (layer.index + 1)]


def on_device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def forward_pass(saved: Buffers) -> None:
    for layer in saved.layers:
        forward_layer(
            layer, saved.images, saved.out(layer.source), saved.weight(layer), saved.shortcut(layer), saved.of(layer),
            saved.conv(layer), saved.out(layer.index), saved.scale(layer), layer is saved.layers[-1],
        )  # fmt: skip


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


class _WeightGradients:
    """Weight gradients of all layers, the last first, on the other stream."""

    def __init__(self, saved: Buffers, dw: Tensor) -> None:
        self.saved, self.dw = saved, dw
        self.alive: list[Tensor] = []  # until the other stream is done with them
        self.widths: dict[int, tuple[Tensor, int, int]] = {}  # by channels: shares, columns, first layer
        for outputs in {layer.outputs for layer in saved.layers}:
            group = [layer for layer in saved.layers if layer.outputs == outputs]  # one after the other, as `plan` has
            columns = group[-1].filters + group[-1].room - group[0].filters
            shares = torch.empty(programs_for(outputs, saved.images) * columns, device=dw.device)
            with _aside(dw):
                for layer in group:  # what pads a layer's columns is added like the rest
                    if layer.room > layer.weights:
                        begin = layer.filters - group[0].filters
                        shares.view(-1, columns)[:, begin + layer.weights : begin + layer.room].zero_()
            self.widths[outputs] = shares, columns, group[0].index

    def add(self, layer: Layer, dc: Tensor) -> None:
        shares, columns, first = self.widths[layer.outputs]
        begin = self.saved.layers[first].filters
        with _aside(dc):
            at = shares[layer.filters - begin :]
            programs = programs_for(layer.outputs, self.saved.images)
            weight_shares(layer, self.saved.out(layer.source), dc, at, columns, self.saved.images, programs)
            if layer.index == first:
                add_shares(shares, self.dw[begin:], programs, columns)
        self.alive.append(dc)

    def wait(self) -> None:
        if own_stream and self.dw.is_cuda:
            torch.cuda.current_stream(self.dw.device).wait_stream(_side_stream(self.dw.device))
        self.alive.clear()
        self.widths.clear()


class _WeightGradientsOfImages:
    """The same for each image: rows of a matrix that begin with all layers side by side."""

    def __init__(self, saved: Buffers, dw: Tensor) -> None:
        self.saved, self.dw = saved, dw
        for layer in saved.layers:
            dw[:, layer.filters + layer.weights : layer.filters + layer.room].zero_()

    def add(self, layer: Layer, dc: Tensor) -> None:
        images, columns = self.dw.shape
        at = self.dw.view(-1)[layer.filters :]
        weight_shares(layer, self.saved.out(layer.source), dc, at, columns, images, images)

    def wait(self) -> None:
        pass


def backward_pass(saved: Buffers, dy: Tensor, dw: Tensor, sums: Tensor) -> None:
    """dw, sums: of all images, or with one more dimension of each: [images, …] and [4, images, …]."""
    x, layers, images = saved.x, saved.layers, saved.images
    channels, by_image = sum(layer.outputs for layer in layers), dw.ndim > 1
    shares = sums.view(-1) if by_image else torch.empty(PER_LAYER * images * channels, device=x.device)
    slopes: dict[int, Tensor] = {len(layers) - 1: dy}  # gradients of layers' outputs, as far as they are known
    beside = _WeightGradientsOfImages(saved, dw) if by_image else _WeightGradients(saved, dw)
    for layer in reversed(layers):
        dc = x.new_empty(images * layer.size)
        dx = None if layer.source < 0 else x.new_empty(images * layers[layer.source].size)
        dres = None if layer.shortcut is None else x.new_empty(images * layers[layer.shortcut].size)
        backward_layer(
            layer, images, (saved.conv(layer), saved.shortcut(layer), slopes.pop(layer.index)), saved.weight(layer),
            saved.of(layer), saved.scale(layer), dc, dres, dx, slopes.get(layer.source), shares[layer.statistics :],
            channels, layer is layers[-1],
        )  # fmt: skip
        if dx is not None:
            slopes[layer.source] = dx
        if layer.shortcut is not None and dres is not None:
            slopes[layer.shortcut] = dres
        beside.add(layer, dc)
    if not by_image:
        sum_kernel[(PER_LAYER, triton.cdiv(channels, 16))](shares, sums, channels, images, BLOCK_I=128, BLOCK_C=16)
    beside.wait()
