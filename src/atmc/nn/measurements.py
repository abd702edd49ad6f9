"""Measure the signals and gradients of a network block by block, and the top eigenvalue of its Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn.resnet import ResNet
from atmc.nn.resnetpp import ResNetPP


@dataclass(frozen=True)
class BlockSignal:
    """The stream after the stem (index 0) or after a block: its mean, mean square, and the loss gradient's norm."""

    index: int
    mean: float
    mean_square: float
    grad_norm: float


def signals(model: ResNet | ResNetPP, x: Tensor, labels: Tensor) -> list[BlockSignal]:
    """One pass forward and back of the mean cross-entropy, block by block; the parameters' grads are not touched."""
    streams: list[Tensor] = []
    loss = F.cross_entropy(model(x, streams), labels)
    grads = torch.autograd.grad(loss, streams)
    rows = []
    for index, (stream, grad) in enumerate(zip(streams, grads, strict=True)):
        values = stream.detach().float()
        square = values.square().mean().item()
        rows.append(BlockSignal(index, values.mean().item(), square, grad.float().norm().item()))
    return rows


def power_iteration(
    times: Callable[[list[Tensor]], list[Tensor]], start: list[Tensor], rounds: int
) -> tuple[list[Tensor], list[Tensor]]:
    """The last unit vector v and H v, for a symmetric H that `times` multiplies by; from a `start` of any length.

    v turns to the eigenvector of largest magnitude. It stops early where H v is 0 or not finite.
    """
    unit, product = start, start
    for _ in range(rounds):
        length = norm(product)
        if not 0 < length < math.inf:
            break
        unit = torch._foreach_mul(product, 1 / length)  # type: ignore[assignment]
        product = times(unit)
    return unit, product


def norm(vector: Sequence[Tensor]) -> float:
    """The Euclidean length of a vector in parts, in float64."""
    return math.sqrt(sum(float(v.double().square().sum()) for v in vector))


def top_eigenvalue(
    loss: Callable[[], Tensor], params: Sequence[Tensor], iterations: int = 20, generator: torch.Generator | None = None
) -> float:
    """The largest (most positive) Hessian eigenvalue, by power iteration on Hessian-vector products.

    `loss` is evaluated once and must be deterministic. SGD with momentum β and learning rate η is stable on a
    quadratic up to an eigenvalue of 2(1 + β)/η. Power iteration finds the largest magnitude; should that be a
    negative eigenvalue, a second run on the Hessian shifted by it finds the other end of the spectrum.
    """
    params = [param for param in params if param.requires_grad]
    grads = torch.autograd.grad(loss(), params, create_graph=True)

    def iterate(shift: float) -> float:
        def times(vector: list[Tensor]) -> list[Tensor]:
            product = torch.autograd.grad(grads, params, vector, retain_graph=True)
            return [p.detach() + shift * v for p, v in zip(product, vector, strict=True)]

        start = [torch.randn(param.shape, generator=generator).to(param) for param in params]
        unit, product = power_iteration(times, start, iterations)
        return sum(float((u * p).double().sum()) for u, p in zip(unit, product, strict=True)) - shift

    value = iterate(0.0)
    return value if value >= 0 else iterate(-value)
