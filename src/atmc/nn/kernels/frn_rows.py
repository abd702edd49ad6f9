"""Launches of the kernels that share an image among programs (`frn_rows_triton`), for the layers that can use them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atmc.nn.kernels import frn_rows_backward_triton as backward
from atmc.nn.kernels import frn_rows_triton as forward
from atmc.nn.kernels.frn_layers import EPS, PER_LAYER, Layer, laid_out

MOST_PARTS = 8  # programs that may share an image, for the size of the statistics
# Launches by channels: programs for an image, 0 for the kernels of `frn_triton`; warps; registers of a thread at most;
# stages of the pipeline; neighbouring pixels taken together, 1 or 2.
FORWARD_ROWS = {16: (4, 4, 128, 3, 2), 32: (2, 4, 128, 3, 2), 64: (1, 8, 128, 4, 1)}
BACKWARD_ROWS = {16: (4, 4, 168, 3, 2), 32: (2, 8, 128, 2, 2), 64: (1, 8, 128, 4, 1)}
ELEMENTWISE_WARPS = 4


def shares_rows(layer: Layer) -> bool:
    return layer.plain and layer.inputs == layer.outputs and FORWARD_ROWS[layer.outputs][0] > 0


def _parts(layer: Layer, table: dict[int, tuple[int, int, int, int, int]]) -> int:
    """Programs for an image: at least two rows of it for each, and 64 neighbours for a product."""
    wanted, *_, join = table[layer.outputs]
    return max(1, min(wanted, layer.height // 2, layer.pixels // (16 * join)))


def _launch(way: tuple[int, int, int, int, int]) -> dict[str, int]:
    _, warps, registers, stages, join = way
    return {"num_warps": warps, "maxnreg": registers, "num_stages": 1, "STAGES": stages, "JOIN": join}


def _shape(layer: Layer) -> dict[str, int]:
    return {"H": layer.height, "W": layer.width, "C": layer.outputs}


def finish(
    layer: Layer, images: int, conv: Tensor, res: Tensor | None, y: Tensor, stats: Tensor, params: Sequence[Tensor]
) -> None:
    """The output of a layer whose convolution is there."""
    shares = max(1, layer.size // 4096)
    forward.finish_kernel[(images, shares)](
        conv, res, y, stats, *params, EPS, **_shape(layer), SHARES=shares, PARTS=_parts(layer, FORWARD_ROWS),
        ACT=layer.act, HAS_RES=res is not None, num_warps=ELEMENTWISE_WARPS,
    )  # fmt: skip


def forward_rows(
    layer: Layer,
    images: int,
    before: tuple[Layer, Tensor, Tensor | None, Tensor, Sequence[Tensor]] | None,
    x: Tensor,
    weight: Tensor,
    params: Sequence[Tensor],
    conv: Tensor,
    stats: Tensor,
) -> None:
    """before: the layer that x is the output of, its convolution, shortcut, statistics and parameters, if x is unmade.

    That layer must be of this one's shape and have its statistics from `forward_rows`.
    """
    parts = _parts(layer, FORWARD_ROWS)
    _, made, res, earlier, of = before or (None, None, None, None, (None,) * PER_LAYER)
    forward.forward_rows_kernel[(images, parts)](
        made, res, x, earlier, *of, laid_out(weight), params[0], conv, stats, EPS, **_shape(layer), PARTS=parts,
        ACT=0 if before is None else before[0].act, FINISH=before is not None, HAS_RES=res is not None,
        **_launch(FORWARD_ROWS[layer.outputs]),
    )  # fmt: skip


def new_sums(layer: Layer, images: int, like: Tensor) -> Tensor:
    """What `begin` and `backward_rows` write for the kernel that follows."""
    return torch.empty(PER_LAYER * images * _parts(layer, BACKWARD_ROWS) * layer.outputs, device=like.device)


def begin(
    layer: Layer,
    images: int,
    dy: Tensor,
    conv: Tensor,
    res: Tensor | None,
    stats: Tensor,
    params: Sequence[Tensor],
    a: Tensor,
    partial: Tensor,
) -> None:
    """The gradient `a` before the activation, and its sums, from that of the output."""
    parts = _parts(layer, BACKWARD_ROWS)
    backward.begin_kernel[(images, parts)](
        dy, conv, res, a, stats, *params, partial, EPS, images, **_shape(layer), PARTS=parts,
        SQUARES=_parts(layer, FORWARD_ROWS), ACT=layer.act, HAS_RES=res is not None, num_warps=ELEMENTWISE_WARPS,
    )  # fmt: skip


def backward_rows(
    layer: Layer,
    images: int,
    tensors: Sequence[Tensor],
    weight: Tensor,
    params: Sequence[Tensor],
    dc: Tensor,
    sums: Tensor,
    add: Tensor | None,
    dx: Tensor,
    below: tuple[Layer, Tensor, Tensor | None, Tensor, Sequence[Tensor], Tensor] | None,
) -> None:
    """tensors: convolution, gradient before the activation, statistics, and its sums (`partial`).

    below: the layer before, its convolution, shortcut, statistics, parameters and sums, if it is to be begun: then dx
    gets the gradient before its activation.
    """
    parts = _parts(layer, BACKWARD_ROWS)
    conv, a, stats, partial = tensors
    under, made, res, its_stats, of, its = below or (None, None, None, None, (None,) * PER_LAYER, None)
    backward.backward_rows_kernel[(images, parts)](
        conv, a, laid_out(weight), *params, stats, dc, partial, sums, add, dx, made, res, its_stats, *of, its,
        EPS, images, **_shape(layer), PARTS=parts, SQUARES=_parts(layer, FORWARD_ROWS),
        ACT=0 if under is None else under.act, HAS_ADD=add is not None, BEGIN=below is not None,
        HAS_RES=res is not None, **_launch(BACKWARD_ROWS[layer.outputs]),
    )  # fmt: skip
