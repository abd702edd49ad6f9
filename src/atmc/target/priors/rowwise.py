"""Priors on whole rows (dim 0: one linear feature each): the paper's direction prior and its group Laplace prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atmc.target.priors import radial_law
from atmc.target.priors.elementwise import KIND_LAPLACE, Laplace
from atmc.target.priors.prior import (
    KernelSpec,
    Prior,
    Shape,
    as_rows,
    normal,
    norms_of_rows,
    per_row,
    positive,
    rows_and_width,
    uniform,
)

#: Numbers by which the fused kernel knows the row-wise densities; everything from KIND_DIRECTION on works on rows.
KIND_DIRECTION, KIND_GROUP_LAPLACE = 4, 5


@dataclass(frozen=True)
class Direction(Prior):
    """The paper's prior on a weight-normalised feature's direction: p(φ) = exp(−(d/2)(‖φ‖² − 1)²) / Z_d, per row.

    d is the numbers in a row; a 1-D tensor is one single direction. The length of φ does not change the network
    (θ = φ_s φ/‖φ‖), only the step size that its angle sees; the prior keeps that length in place.

    The *density* is greatest on the unit sphere, but a draw does not lie there: volume grows as r^(d−1), and for large
    d the radius concentrates at √((1 + √3)/2) = 1.169, with a spread of about 0.38/√d. So a chain that equilibrates
    walks from unit-length directions to length 1.169, at no cost to the function. Z_d, radius: `radial_law.py`.
    """

    def energy(self, x: Tensor) -> Tensor:
        rows = self._rows(x)
        return (rows.square().sum(1) - 1.0).square().sum() * (0.5 * rows.shape[1])

    def log_normaliser(self, shape: Shape) -> float:
        count, d = self._count_and_d(shape)
        return count * radial_law.log_normaliser(d)

    def neg_grad(self, x: Tensor) -> Tensor:
        rows = self._rows(x)
        excess = (rows.square().sum(1) - 1.0) * (2.0 * rows.shape[1])
        return x * (excess.reshape(()) if x.ndim < 2 else per_row(excess, x))

    def sample(self, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
        count, d = self._count_and_d(shape)
        radius = radial_law.radius_from_uniform(uniform((count,), generator), d)
        return _spherical(radius, d, generator).reshape(tuple(shape))

    def foreach_energy(self, xs: Sequence[Tensor]) -> Tensor:
        parts = [(_norms(x).double().square() - 1.0).square().sum() * (0.5 * _width(x)) for x in xs]
        return torch.stack(parts).sum()

    def foreach_grad_(self, xs: Sequence[Tensor], outs: Sequence[Tensor], alpha: float) -> None:
        for x, out in zip(xs, outs, strict=True):
            excess = (_norms(x).square() - 1.0) * (2.0 * alpha * _width(x))
            out.addcmul_(x, excess.reshape(()) if x.ndim < 2 else per_row(excess, x))

    def label(self, shape: Shape) -> str:
        return f"Direction(d={self._count_and_d(shape)[1]})"

    def kernel(self, shape: Shape) -> KernelSpec | None:
        if len(shape) < 2:  # the kernel takes rows from dim 0, and here the whole tensor is one row
            return None
        return KernelSpec(KIND_DIRECTION, (0.0, float(self._count_and_d(shape)[1]), 0.0, 0.0), rows=True)

    @staticmethod
    def _count_and_d(shape: Shape) -> tuple[int, int]:
        return (1, math.prod(shape)) if len(shape) < 2 else rows_and_width(shape)

    @staticmethod
    def _rows(x: Tensor) -> Tensor:
        return x.reshape(1, -1) if x.ndim < 2 else as_rows(x)


@dataclass(frozen=True)
class GroupLaplace(Prior):
    """Group Laplace on each linear feature, per row: p(θ_i) = exp(−‖θ_i‖/b) / (S_d Γ(d) b^d), with b = `scale`.

    d is the numbers in a row and S_d = 2π^(d/2)/Γ(d/2) the area of the unit sphere (2 for d = 1).

    **Which variable.** The density is with respect to the very tensor it is put on, no change of variables implied.
    * On the `scale` parameter φ_s of a weight-normalised layer (1-D: every number is a row of d = 1) it is
      p(φ_s) = exp(−|φ_s|/b)/2b. Since ‖θ_i‖ = |φ_s|, this is the paper's exp(−‖θ_i‖/b), read as the paper's
      parametrisation implies: the chain moves (φ_d, φ_s), the paper speaks of "the prior on the scales p(φ_s)", and the
      group Laplace is there "to regularize the scales". Read instead as a density on θ_i in R^d it would make |φ_s| a
      Gamma(d, b) variable, of mean d·b (1,440 for a 3×3×32 filter with b = 5): the opposite of regularising.
    * On a plain weight (2-D or more) it is that density on R^d, with mean norm d·b: choose b accordingly.
    The gradient at ‖θ_i‖ = 0 is taken as 0.
    """

    scale: float = 5.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(self.scale, "scale of GroupLaplace"))

    def energy(self, x: Tensor) -> Tensor:
        rows = as_rows(x)
        norms = rows.abs() if rows.shape[1] == 1 else torch.linalg.vector_norm(rows, dim=1)
        return norms.sum() / self.scale

    def log_normaliser(self, shape: Shape) -> float:
        count, d = rows_and_width(shape)
        log_area = math.log(2.0) + 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d)
        return count * (log_area + math.lgamma(d) + d * math.log(self.scale))

    def neg_grad(self, x: Tensor) -> Tensor:
        rows = as_rows(x)
        if rows.shape[1] == 1:
            return x.sign() / self.scale
        norms = torch.linalg.vector_norm(rows, dim=1)
        safe = torch.where(norms > 0, norms, torch.ones_like(norms))
        return x / per_row(safe * self.scale, x)

    def sample(self, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
        count, d = rows_and_width(shape)
        if d == 1:
            sign = torch.where(uniform((count,), generator) > 0.5, 1.0, -1.0)
            return (-self.scale * sign * uniform((count,), generator).log()).float().reshape(tuple(shape))
        # The norm is Gamma(d, b): a sum of d exponentials.
        norms = torch.stack([-uniform((d,), generator).log().sum() for _ in range(count)]) * self.scale
        return _spherical(norms, d, generator).reshape(tuple(shape))

    def foreach_energy(self, xs: Sequence[Tensor]) -> Tensor:
        return torch.stack([norms_of_rows(x).double().sum() for x in xs]).sum() / self.scale

    def foreach_grad_(self, xs: Sequence[Tensor], outs: Sequence[Tensor], alpha: float) -> None:
        single = [i for i, x in enumerate(xs) if rows_and_width(x.shape)[1] == 1]
        if single:
            Laplace(self.scale).foreach_grad_([xs[i] for i in single], [outs[i] for i in single], alpha)
        for i in set(range(len(xs))) - set(single):
            self.grad_(xs[i], outs[i], alpha)

    def kernel(self, shape: Shape) -> KernelSpec:
        if rows_and_width(shape)[1] == 1:
            return KernelSpec(KIND_LAPLACE, (0.0, 1.0 / self.scale, 0.0, 0.0))
        return KernelSpec(KIND_GROUP_LAPLACE, (0.0, 1.0 / self.scale, 0.0, 0.0), rows=True)


def _width(x: Tensor) -> int:
    return Direction._count_and_d(x.shape)[1]


def _norms(x: Tensor) -> Tensor:
    """Lengths of the directions in x: one for a 1-D tensor, one per row otherwise."""
    return torch.linalg.vector_norm(x).reshape(1) if x.ndim < 2 else norms_of_rows(x)


def _spherical(radius: Tensor, d: int, generator: torch.Generator | None) -> Tensor:
    """Rows of the given lengths, their angles uniform on the sphere: [count, d] in float32."""
    angle = normal((radius.numel(), d), generator, torch.float64)
    angle /= torch.linalg.vector_norm(angle, dim=1, keepdim=True)
    return (angle * radius[:, None]).float()
