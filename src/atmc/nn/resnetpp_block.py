"""One residual block of ResNet++ as a pure function of its inputs and weights.

A function, so that `torch.compile` compiles it once for each shape. A block carries the stream x together with
a = SELU(x + bias): the addition that ends one block and the activation that starts the next are then one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from atmc.nn.frn import filter_response_norm
from atmc.nn.strided import conv2d

Order = Literal["pre", "post"]
Shortcut = Literal["projection", "pool-projection", "pool-pad"]
NormPair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class BlockKind:
    """The constants of a block."""

    stride: int = 1
    order: Order = "pre"
    shortcut: Shortcut | None = None  # None: the identity
    gain: float | None = None  # a constant factor on the branch, instead of a small last scale
    activates: bool = True  # whether the next block's activation is wanted, too


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """x plus a bias per channel, or one for all channels (of length 1)."""
    return x if bias is None else x + bias.to(x.dtype).view(1, -1, 1, 1)


def block_forward(
    x: Tensor,
    a: Tensor,
    weights: tuple[Tensor, ...],
    biases: tuple[Tensor | None, ...],
    norms: tuple[NormPair, ...] | None,
    gain: Tensor | None,
    project: Tensor | None,
    project_bias: Tensor | None,
    next_bias: Tensor | None,
    kind: BlockKind,
) -> tuple[Tensor, Tensor | None]:
    """(x, a) → the next (x, a).

    Order "pre": x ← shortcut + branch(a), a ← SELU(x + next_bias). The identity path is never squashed.
    Order "post": x ← SELU(shortcut + branch(x)); a is x, returned as None so that one tensor does not leave twice.
    """
    h = a
    last = len(weights) - 1
    for i, weight in enumerate(weights):
        # The last but one: the first 3×3 of a basic block, the 3×3 of a bottleneck.
        stride = kind.stride if i == last - 1 else 1
        h = F.conv2d(h, weight, None, stride, weight.shape[-1] // 2)
        if norms is not None:
            h = filter_response_norm(h, *norms[i])
        h = add_bias(h, biases[i])
        if i < last:
            h = F.selu(h)
    if gain is not None:
        h = h * gain.to(h.dtype)
    if kind.gain is not None:
        h = h * kind.gain
    y = _shortcut(x, a, h.shape[1], project, project_bias, kind) + h
    if kind.order == "post":
        return F.selu(y), None
    return y, F.selu(add_bias(y, next_bias)) if kind.activates else None


def entry_forward(
    a: Tensor, weight: Tensor, bias: Tensor | None, project: Tensor, project_bias: Tensor | None, kind: BlockKind
) -> tuple[Tensor, Tensor]:
    """What a block that changes resolution does before its second convolution: (that one's input, the shortcut).

    The rest of it is `stage.run`'s, with the blocks that follow.
    """
    h = F.selu(add_bias(F.conv2d(a, weight, None, kind.stride, weight.shape[-1] // 2), bias))
    return h, _shortcut(a, a, weight.shape[0], project, project_bias, kind)


def _shortcut(
    x: Tensor, a: Tensor, channels: int, project: Tensor | None, project_bias: Tensor | None, kind: BlockKind
) -> Tensor:
    """The path beside the branch. A projection reads the activated stream: SELU has brought its mean square to one."""
    if kind.shortcut is None:
        return x
    if kind.shortcut == "pool-pad":
        x = F.avg_pool2d(x, kind.stride) if kind.stride > 1 else x
        return F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))
    if project is None:
        raise ValueError(f"shortcut {kind.shortcut!r} needs a projection weight")
    stride = kind.stride
    if kind.shortcut == "pool-projection" and stride > 1:
        a, stride = F.avg_pool2d(a, stride), 1
    return add_bias(conv2d(a, project, None, stride), project_bias)


def stem_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    next_bias: Tensor | None,
    small: bool,
    order: Order,
    activates: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The first convolution (3×3, or 7×7 of stride 2 and max-pooling), and its activation if it is wanted."""
    size = weight.shape[-1]
    y = add_bias(F.conv2d(x, weight, None, 1 if small else 2, size // 2), bias)
    if not small:
        y = F.max_pool2d(y, 3, 2, 1)
    if order == "post":
        return F.selu(y), None
    return y, F.selu(add_bias(y, next_bias)) if activates else None
