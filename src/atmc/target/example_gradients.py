"""What each example of a batch adds to the gradient, for samplers with `noise_examples`.

Any network whose outputs for an example depend on that example alone goes through `torch.func`. A network may do it
faster with a method `example_gradients(x, loss)`. It gets a function of its outputs that returns one number for each
example, and returns the gradients [batch, ...] of these for each parameter by name, or None where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from atmc.common.errors import InputError
from atmc.common.matrix_views import columns_of, matrix_of
from atmc.target.likelihoods import Likelihood

Named = dict[str, Tensor]


def example_gradients(
    model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, weight: float | Tensor
) -> tuple[Tensor, Tensor, Named]:
    """(nll of each example; the network's outputs; gradients [batch, ...] of the parameters that require one, by name).

    The gradients are those of `weight` times the nll; there may be one weight for each example.
    """
    own: Any = getattr(model, "example_gradients", None)
    wide = torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.float32
    if not isinstance(weight, Tensor):  # filled in on the device, also where a step is recorded
        weight = torch.full((), weight, dtype=wide, device=x.device)
    weights = weight.expand(len(x))
    kept: list[Tensor] = []

    def weighted(outputs: Tensor) -> Tensor:
        each = likelihood.nll(outputs, y)
        kept.extend((each.detach(), outputs.detach()))
        return each * weights

    if own is not None and (found := own(x, weighted)) is not None:
        return kept[0], kept[1], found
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def loss(params: Named, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs = functional_call(model, params, (x.unsqueeze(0),))
        if not isinstance(outputs, Tensor):
            raise InputError(f"the model must return one tensor, not {type(outputs).__name__}")
        nll = likelihood.nll(outputs, y.unsqueeze(0)).sum()
        return nll * weight, (nll.detach(), outputs.detach().squeeze(0))

    one: Callable[..., Any] = grad(loss, has_aux=True)
    try:
        gradients, (each, outputs) = vmap(one, in_dims=(None, 0, 0, 0))(params, x, y, weights)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise InputError(
            f"the gradient of each example is not to be had from {type(model).__name__}: torch.func says "
            f"{str(error).splitlines()[0]}"
        ) from error
    return each, outputs, gradients


def store_gradients(model: nn.Module, gradients: Named) -> None:
    """Put the gradients of examples into `grad_sample`, and their sums into `grad`."""
    matrix = matrix_of(list(gradients.values()))
    totals = None if matrix is None else matrix.sum(0)
    for name, p in model.named_parameters():
        if name in gradients:
            given = gradients[name]
            p.grad_sample = given.to(p.dtype)  # type: ignore[attr-defined]
            total = given.sum(0) if totals is None else columns_of(given, totals)
            p.grad = torch.empty_like(p).copy_(total) if total.stride() != p.stride() else total.to(p.dtype)
