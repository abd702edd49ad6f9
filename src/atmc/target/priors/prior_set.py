"""The priors of a whole model: one log-density and one gradient over all its parameters, in few kernels.

Parameters are grouped by equal prior, so that element-wise kinds go through torch's foreach kernels; on CUDA with
Triton the whole model is one launch (`triton_launch.py`). Nothing here reads a value back to the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from atmc.common.errors import InputError
from atmc.target.priors import triton_launch
from atmc.target.priors.prior import Prior, widened

Params = Sequence[Tensor] | Mapping[str, Tensor]


class PriorSet:
    """Ordered: parameter name → its prior. `params` everywhere is a sequence in that order, or a mapping by name."""

    def __init__(self, entries: Mapping[str, tuple[Prior, tuple[int, ...]]]) -> None:
        self.names = tuple(entries)
        self.priors: dict[str, Prior] = {name: prior for name, (prior, _) in entries.items()}
        self.shapes: dict[str, tuple[int, ...]] = {name: shape for name, (_, shape) in entries.items()}
        self.log_normaliser = sum(prior.log_normaliser(shape) for prior, shape in entries.values())
        groups: dict[Hashable, tuple[Prior, list[int]]] = {}
        for index, prior in enumerate(self.priors.values()):
            # Equal priors share kernels; a user's prior that cannot be hashed stands by itself.
            key = prior if isinstance(prior, Hashable) else id(prior)
            groups.setdefault(key, (prior, []))[1].append(index)
        self._groups = list(groups.values())
        self._fused = triton_launch.FusedPriors([(prior, shape) for prior, shape in entries.values()])

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> Prior:
        return self.priors[name]

    def log_prob(self, params: Params) -> Tensor:
        """log prior of all parameters: 0-dim, normalised, in their dtype; backward uses the closed-form gradients."""
        tensors = self._ordered(params)
        value: Tensor = _LogPrior.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return value

    def add_grad_(self, params: Params, grads: Params, alpha: float = 1.0) -> None:
        """Add alpha · ∇(−log p) to every gradient, in place: the prior's share of ∇U."""
        self._add(params, grads, alpha, want_log_prob=False)

    def add_grad_and_log_prob_(self, params: Params, grads: Params, alpha: float = 1.0) -> Tensor:
        """`add_grad_`, and the log prior (detached) from the same pass where the fused kernel runs."""
        value = self._add(params, grads, alpha, want_log_prob=True)
        assert value is not None
        return value

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw of all parameters from their priors, by name."""
        return {name: self.priors[name].sample(self.shapes[name], generator) for name in self.names}

    def describe(self) -> str:
        """A table of which parameter got which prior, and a summary."""
        rows = [("parameter", "shape", "prior")]
        totals: dict[str, int] = {}
        for name in self.names:
            shape, prior = self.shapes[name], self.priors[name]
            rows.append((name, "×".join(map(str, shape)) or "scalar", prior.label(shape)))
            kind = type(prior).__name__ + ("" if prior.proper else " (improper)")
            totals[kind] = totals.get(kind, 0) + torch.Size(shape).numel()
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        rows.insert(1, tuple("─" * width for width in widths))  # type: ignore[arg-type]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        share = ", ".join(f"{kind} {count:,}" for kind, count in totals.items())
        lines.append(f"{len(self)} parameters, {sum(totals.values()):,} numbers: {share}")
        return "\n".join(lines)

    # -- the passes ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _add(self, params: Params, grads: Params, alpha: float, want_log_prob: bool) -> Tensor | None:
        xs, outs = self._ordered(params), self._ordered(grads)
        for name, x, out in zip(self.names, xs, outs, strict=True):
            if x.shape != out.shape:
                raise InputError(f"gradient of {name} has shape {tuple(out.shape)}, the parameter {tuple(x.shape)}")
        if self._fused.takes(xs):
            energy, rest = self._fused.add_(xs, outs, alpha, want_log_prob)
        else:
            energy, rest = None, list(range(len(xs)))
        for prior, indices in self._remaining(rest):
            prior.foreach_grad_([xs[i] for i in indices], [outs[i] for i in indices], alpha)
        if not want_log_prob:
            return None
        return self._finish(self._plain_energy(xs, rest, energy), xs)

    @torch.no_grad()
    def _value(self, xs: Sequence[Tensor]) -> Tensor:
        if self._fused.takes(xs):
            energy, rest = self._fused.energy(xs)
        else:
            energy, rest = None, list(range(len(xs)))
        return self._finish(self._plain_energy(xs, rest, energy), xs)

    @torch.no_grad()
    def _gradients(self, xs: Sequence[Tensor], scale: Tensor) -> list[Tensor]:
        """scale · ∇(−log p), as new tensors laid out as the parameters are; `scale` is a 0-dim tensor."""
        if self._fused.takes(xs):
            outs, rest = self._fused.fresh(xs, scale)
        else:
            outs, rest = [torch.zeros_like(x) for x in xs], list(range(len(xs)))
        for prior, indices in self._remaining(rest):
            part = [outs[i] for i in indices]
            prior.foreach_grad_([xs[i] for i in indices], part, 1.0)
            torch._foreach_mul_(part, scale.to(part[0].dtype))
        return outs

    def _plain_energy(self, xs: Sequence[Tensor], rest: Sequence[int], energy: Tensor | None) -> Tensor:
        for prior, indices in self._remaining(rest):
            part = prior.foreach_energy([widened(xs[i]) for i in indices])
            energy = part if energy is None else energy + part
        assert energy is not None
        return energy

    def _finish(self, energy: Tensor, xs: Sequence[Tensor]) -> Tensor:
        # Added in float64: the constant alone is millions for a real network.
        dtype = torch.float64 if xs[0].dtype == torch.float64 else torch.float32
        return (-energy - self.log_normaliser).to(dtype)

    def _remaining(self, rest: Sequence[int]) -> list[tuple[Prior, list[int]]]:
        if len(rest) == len(self.names):
            return self._groups
        if not rest:
            return []
        keep = set(rest)
        parts = [(prior, [i for i in indices if i in keep]) for prior, indices in self._groups]
        return [(prior, indices) for prior, indices in parts if indices]

    def _ordered(self, params: Params) -> list[Tensor]:
        if isinstance(params, Mapping):
            missing = [name for name in self.names if name not in params]
            if missing:
                raise InputError(f"no tensor given for {', '.join(missing[:8])}")
            return [params[name] for name in self.names]
        if len(params) != len(self.names):
            raise InputError(
                f"{len(self.names)} tensors wanted, in the order of PriorSet.names, but {len(params)} given"
            )
        return list(params)


class _LogPrior(Function):
    """log p(θ) as one node of the autograd graph: backward is the closed-form gradient, not a replay of the forward.

    Under create_graph the gradient is built from differentiable operations, so Hessian-vector products work; so do
    grad, vmap and jacrev of torch.func, but not its forward mode (jvp, hessian).
    """

    @staticmethod
    def forward(prior_set: PriorSet, *xs: Tensor) -> Tensor:
        return prior_set._value(xs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.prior_set, *xs = inputs
        ctx.save_for_backward(*xs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], prior_set: PriorSet, *xs: Tensor) -> tuple[Tensor, int]:
        """One after the other: foreach kernels know no batches."""
        values = [
            prior_set.log_prob([x if d is None else x.select(d, i) for x, d in zip(xs, in_dims[1:], strict=True)])
            for i in range(info.batch_size)
        ]
        return torch.stack(values), 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        xs: tuple[Tensor, ...] = ctx.saved_tensors
        prior_set: PriorSet = ctx.prior_set
        if torch.is_grad_enabled():
            priors = prior_set.priors.values()
            return (None, *(-grad.to(x.dtype) * prior.neg_grad(x) for prior, x in zip(priors, xs, strict=True)))
        return (None, *prior_set._gradients(xs, -grad))
