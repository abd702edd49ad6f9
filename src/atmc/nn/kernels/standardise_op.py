"""The kernels of `standardise_triton` as operators of torch: every standardised weight of a network at once.

`torch.ops.atmc.standardise` can be compiled and captured in a CUDA graph (after one ordinary pass, which uploads the
tables). `Standardise` can be differentiated twice too: the gradient of an operator that takes lists of tensors has no
graph of its own, whatever `create_graph` says. `standardisation.standardised_weights` calls the one or the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atmc.nn.kernels import standardise_triton as kernels
from atmc.nn.kernels.weightnorm_triton import Plan, plan_for
from atmc.nn.standardisation import EPS, as_filters, layer_parts, padded, standardise


def _spread(gains: Sequence[Tensor], present: Sequence[bool]) -> list[Tensor | None]:
    left = iter(gains)
    return [next(left) if there else None for there in present]


@torch.library.custom_op(
    "atmc::standardise",
    mutates_args=(),
    schema="(Tensor[] weights, Tensor[] gains, bool[] present, ScalarType dtype) -> Tensor",
)
def standardise_op(
    weights: Sequence[Tensor], gains: Sequence[Tensor], present: Sequence[bool], dtype: torch.dtype
) -> Tensor:
    """All results in one tensor, each layer's part in the order (O, kh, kw, I), padded to a multiple of 64."""
    plan, pointers = _plan(weights, gains, present)
    flat = torch.empty(plan.total, dtype=dtype, device=plan.device)
    with torch.cuda.device(plan.device if plan.device.type == "cuda" else -1):
        kernels.forward_kernel[(plan.rows,)](
            plan._rows, plan._geometry, plan._offsets, pointers, flat, len(plan.shapes), EPS,
            BLOCK=kernels.BLOCK, num_warps=kernels.WARPS,
        )  # fmt: skip
    return flat


@standardise_op.register_fake
def _(weights: Sequence[Tensor], gains: Any, present: Any, dtype: torch.dtype) -> Tensor:
    return weights[0].new_empty(sum(padded(w.shape) for w in weights), dtype=dtype)


@torch.library.custom_op(
    "atmc::standardise_backward",
    mutates_args=(),
    schema="(Tensor grads, Tensor[] weights, Tensor[] gains, bool[] present) -> (Tensor, Tensor)",
)
def standardise_backward(
    grads: Tensor, weights: Sequence[Tensor], gains: Sequence[Tensor], present: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """(gradients of the weights, one after the other in their own order, padded likewise; one number per row)."""
    plan, pointers = _plan(weights, gains, present)
    flat = torch.empty(plan.total, dtype=torch.float32, device=plan.device)
    rows = torch.empty(plan.rows, dtype=torch.float32, device=plan.device)
    with torch.cuda.device(plan.device if plan.device.type == "cuda" else -1):
        kernels.backward_kernel[(plan.rows,)](
            plan._rows, plan._geometry, plan._offsets, pointers, grads.contiguous(), flat, rows, len(plan.shapes),
            EPS, BLOCK=kernels.BLOCK, num_warps=kernels.WARPS,
        )  # fmt: skip
    return flat, rows


@standardise_backward.register_fake
def _(grads: Tensor, weights: Sequence[Tensor], gains: Any, present: Any) -> tuple[Tensor, Tensor]:
    flat = grads.new_empty(grads.shape, dtype=torch.float32)
    return flat, grads.new_empty(sum(w.shape[0] for w in weights), dtype=torch.float32)


def _plan(weights: Sequence[Tensor], gains: Sequence[Tensor], present: Sequence[bool]) -> tuple[Plan, Tensor]:
    weights = [w.detach() for w in weights]
    plan = plan_for(weights)
    return plan, plan._parameter_pointers(weights, _spread(gains, present))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weights, gains, present, dtype = inputs
    ctx.count, ctx.present, ctx.dtype = len(weights), present, dtype
    ctx.save_for_backward(*weights, *gains)


def _backward(ctx: Any, grads: Tensor) -> tuple[Any, ...]:
    weights, gains = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
    flat, rows = torch.ops.atmc.standardise_backward(grads, weights, gains, ctx.present)
    for_weights = [part.view(w.shape) for part, w in zip(layer_parts(flat, weights), weights, strict=True)]
    for_rows = rows.split([w.shape[0] for w in weights])
    return for_weights, [row for row, there in zip(for_rows, ctx.present, strict=True) if there], None, None


class Standardise(torch.autograd.Function):
    """The operator for eager use, where second derivatives may be wanted."""

    @staticmethod
    def forward(ctx: Any, count: int, present: list[bool], dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        ctx.count, ctx.present, ctx.dtype = count, present, dtype
        ctx.save_for_backward(*tensors)
        flat: Tensor = torch.ops.atmc.standardise(list(tensors[:count]), list(tensors[count:]), present, dtype)
        return flat

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            weights, gains = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
            for_weights, for_gains = _differentiable(weights, gains, ctx.present, outputs[0])
        else:
            for_weights, for_gains, *_ = _backward(ctx, outputs[0])
        return (None, None, None, *for_weights, *for_gains)


def _differentiable(
    weights: Sequence[Tensor], gains: Sequence[Tensor], present: Sequence[bool], grads: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """The same gradients from differentiable operations."""
    given = [t if t.requires_grad else t.detach().requires_grad_() for t in (*weights, *gains)]
    ws, gs = given[: len(weights)], _spread(given[len(weights) :], present)
    outs = [standardise(w, g) for w, g in zip(ws, gs, strict=True)]
    parts = layer_parts(grads.float(), weights)
    cotangents = [as_filters(part, w.shape) for part, w in zip(parts, weights, strict=True)]
    found = torch.autograd.grad(outs, given, cotangents, create_graph=True)
    return list(found[: len(weights)]), list(found[len(weights) :])


standardise_op.register_autograd(_backward, setup_context=_remember)
