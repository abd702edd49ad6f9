"""All effective weights of a network in one Triton launch each way (`weightnorm_triton.py`), or layer by layer.

Computed layer by layer, a deep network's step is latency-bound at a small batch. The CUDA path can be captured in a
CUDA graph after one ordinary forward pass, and differentiated twice.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atmc.nn.weightnorm import WeightLayer, effective_weight

if TYPE_CHECKING:
    from atmc.nn.kernels.weightnorm_triton import Plan


def weight_layers(model: nn.Module) -> list[WeightLayer]:
    """The layers of `model` whose weights can be computed together, in registration order."""
    return [module for module in model.modules() if isinstance(module, WeightLayer)]


def effective_weights(layers: Iterable[WeightLayer], dtype: torch.dtype | None = None) -> list[Tensor]:
    """The effective weight of every layer, in order, in `dtype` (default: the parameters').

    Differentiable with respect to all directions and scales. The results are for reading: some share one allocation.
    """
    parts = [layer.parts() for layer in layers]
    if not parts:
        return []
    dtype = dtype or parts[0][0].dtype
    if _fused_applies(parts, dtype):
        from atmc.nn.kernels.weightnorm_triton import plan_for

        directions = [direction for direction, _ in parts]
        plan = plan_for(directions)
        weights = FusedWeights.apply(plan, dtype, *directions, *(scale for _, scale in parts))  # type: ignore[no-untyped-call]
        return list(weights)
    return [effective_weight(direction, scale, dtype) for direction, scale in parts]


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _fused_applies(parts: list[tuple[Tensor, Tensor | None]], dtype: torch.dtype) -> bool:
    """Whether every tensor is a plain contiguous float32 CUDA tensor outside tracing and function transforms."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    device = parts[0][0].device
    if device.type != "cuda" or not _has_triton():
        return False
    return all(
        tensor is None or (tensor.dtype == torch.float32 and tensor.device == device and tensor.is_contiguous())
        for pair in parts
        for tensor in pair
    )


class FusedWeights(torch.autograd.Function):
    """(plan, dtype, *directions, *scales) → every effective weight, one launch each way."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, dtype: torch.dtype, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        ctx.plan = plan
        ctx.present = [tensor is not None for tensor in tensors]
        ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None))
        half = len(tensors) // 2
        directions = [tensor for tensor in tensors[:half] if tensor is not None]
        return tuple(plan.forward(directions, list(tensors[half:]), dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        tensors: list[Tensor | None] = [next(saved) if present else None for present in ctx.present]
        half = len(tensors) // 2
        directions = [tensor for tensor in tensors[:half] if tensor is not None]
        scales = tensors[half:]
        if torch.is_grad_enabled():  # create_graph=True: somebody wants the Hessian
            pairs = [_plain_backward(*each) for each in zip(directions, scales, grads, strict=True)]
            return None, None, *(pair[0] for pair in pairs), *(pair[1] for pair in pairs)
        grad_directions, grad_scales = ctx.plan.backward(directions, scales, list(grads))
        return None, None, *grad_directions, *grad_scales


def _plain_backward(direction: Tensor, scale: Tensor | None, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """The gradient in differentiable operations."""
    grad = grad.to(direction.dtype)
    if scale is None:
        return grad, None
    dims = tuple(range(1, direction.ndim))
    length = torch.linalg.vector_norm(direction, dim=dims, keepdim=True)
    unit = direction / length
    along = (grad * unit).sum(dims, keepdim=True)
    return (scale.view_as(length) / length) * (grad - along * unit), along.flatten()
