"""The interface of a prior: a normalised density on one parameter tensor, its gradient, and sampling.

A prior works element by element or row by row (rows are dim 0: one linear feature each). Gradients are those of
**−log p**, the prior's part of the potential.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atmc.common.errors import InputError

Shape = Sequence[int]


@dataclass(frozen=True)
class KernelSpec:
    """How the fused CUDA kernel handles one tensor: the kind of density, its numbers, and whether it works on rows."""

    kind: int
    hyper: tuple[float, float, float, float]
    rows: bool = False


def positive(value: float, what: str) -> float:
    """`value` as a positive, finite float, or an error."""
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{what} must be a positive, finite number, not {value!r}")
    return number


def rows_and_width(shape: Shape) -> tuple[int, int]:
    """Rows (dim 0) of a parameter and the numbers in each; a scalar is one row of one."""
    if len(shape) == 0:
        return 1, 1
    rows = int(shape[0])
    return rows, math.prod(int(n) for n in shape[1:])


def as_rows(x: Tensor) -> Tensor:
    """`x` seen as [rows, width]; a layout such as channels_last is read correctly (and copied if it must be)."""
    rows, width = rows_and_width(x.shape)
    return x.reshape(rows, width)


def norms_of_rows(x: Tensor) -> Tensor:
    """Euclidean norm of each row, without copying any layout in which a row is one dense block of memory.

    channels_last is such a layout. The order of numbers inside a row is of no matter to its norm.
    """
    rows, width = rows_and_width(x.shape)
    if not x.is_contiguous() and has_dense_rows(x):
        x = x.as_strided((rows, width), (width, 1))
    norms: Tensor = torch.linalg.vector_norm(x.reshape(rows, width), dim=1)
    return norms


def is_dense(shape: Shape, stride: Shape) -> bool:
    """Whether the numbers fill one block of memory without gap or overlap, in whatever order of dimensions."""
    expected = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if step != expected:
                return False
            expected *= size
    return True


def has_dense_rows(x: Tensor) -> bool:
    """Whether row i of x fills exactly the memory [i·width, (i+1)·width), in whatever order inside."""
    rows, width = rows_and_width(x.shape)
    return (rows <= 1 or x.stride(0) == width) and is_dense(x.shape[1:], x.stride()[1:])


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """One value per row, shaped so that it broadcasts over `like`."""
    return values.reshape((-1,) + (1,) * (like.ndim - 1)) if like.ndim else values.reshape(())


class Prior:
    """A density on one parameter tensor.

    A prior of your own needs `energy` (−log p without its constant, summed) and, to be normalised, `log_normaliser`;
    `neg_grad` falls back to autograd. Subclasses here give all of it in closed form.
    """

    #: False when the density cannot be normalised; such a prior is refused unless asked for.
    proper: bool = True

    def energy(self, x: Tensor) -> Tensor:
        """−log p(x) up to the constant, summed over the tensor: a 0-dim tensor, differentiable."""
        raise NotImplementedError(f"{type(self).__name__} has no energy")

    def log_normaliser(self, shape: Shape) -> float:
        """log ∫ exp(−energy) over all tensors of this shape (float64, computed once per shape by the caller)."""
        raise NotImplementedError(f"{type(self).__name__} has no normaliser")

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x), normalised, summed over the tensor; 0-dim, in float32 or better."""
        return -self.energy(widened(x)) - self.log_normaliser(x.shape)

    def neg_grad(self, x: Tensor) -> Tensor:
        """∇(−log p)(x), a new tensor shaped like x."""
        again = torch.is_grad_enabled() and x.requires_grad  # asked to be differentiable itself
        with torch.enable_grad():
            y = x if again else x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(self.energy(y), y, create_graph=again)
        return grad

    def grad_(self, x: Tensor, out: Tensor, alpha: float = 1.0) -> Tensor:
        """Add alpha · ∇(−log p)(x) into `out`, in place, and return it."""
        return out.add_(self.neg_grad(x), alpha=alpha)

    def sample(self, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
        """One draw of a tensor of this shape, on the generator's device (float32)."""
        raise InputError(f"{self!r} cannot be sampled")

    def foreach_energy(self, xs: Sequence[Tensor]) -> Tensor:
        """The energies of several tensors, added in float64."""
        return torch.stack([self.energy(x).double() for x in xs]).sum()

    def foreach_grad_(self, xs: Sequence[Tensor], outs: Sequence[Tensor], alpha: float) -> None:
        """`grad_` on several tensors at once; element-wise priors do it in a handful of kernels."""
        for x, out in zip(xs, outs, strict=True):
            self.grad_(x, out, alpha)

    def label(self, shape: Shape) -> str:
        """How `describe()` names this prior on a tensor of this shape: the class and the numbers that matter."""
        shown: list[str] = []
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        for field in fields:
            value = getattr(self, field.name)
            if not (field.name == "loc" and value == 0.0):
                shown.append(f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def kernel(self, shape: Shape) -> KernelSpec | None:
        """The fused kernel's entry for a tensor of this shape; None where only the plain path knows this prior."""
        return None


def widened(x: Tensor) -> Tensor:
    """x in float32 at least: a log-density summed in half precision means nothing."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def uniform(shape: Shape, generator: torch.Generator | None, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform draws in (0, 1]: never 0, so that a logarithm or a negative power of them is finite."""
    device = None if generator is None else generator.device
    return 1.0 - torch.rand(tuple(shape), generator=generator, dtype=dtype, device=device)


def normal(shape: Shape, generator: torch.Generator | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal draws on the generator's device."""
    device = None if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, dtype=dtype, device=device)


@dataclass(frozen=True)
class Flat(Prior):
    """Improper: a constant, for a parameter without a prior.

    Refused unless `improper_ok=True` is given: the posterior may not exist.
    """

    proper = False

    def energy(self, x: Tensor) -> Tensor:
        return (x * 0.0).sum()

    def log_normaliser(self, shape: Shape) -> float:
        return 0.0

    def neg_grad(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def grad_(self, x: Tensor, out: Tensor, alpha: float = 1.0) -> Tensor:
        return out

    def foreach_energy(self, xs: Sequence[Tensor]) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=xs[0].device)
