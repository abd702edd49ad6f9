"""Priors on each number of a tensor by itself: Normal, Laplace, StudentT, Horseshoe.

Each class states its density; the fused kernel (`triton_kernel.py`) has the same formulas under the same KIND numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.target.priors.prior import KernelSpec, Prior, Shape, normal, positive, uniform

#: Numbers by which the fused kernel knows the element-wise densities.
KIND_NORMAL, KIND_LAPLACE, KIND_STUDENT, KIND_HORSESHOE = 0, 1, 2, 3


@dataclass(frozen=True)
class _Elementwise(Prior):
    """Shared by the four: a scale, a location (usually 0), and constants that count the tensor's numbers."""

    kind: ClassVar[int] = -1
    scale: float
    loc: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(self.scale, f"scale of {type(self).__name__}"))
        object.__setattr__(self, "loc", float(self.loc))

    def _log_z(self) -> float:
        raise NotImplementedError

    def _numbers(self) -> tuple[float, float]:
        raise NotImplementedError

    def log_normaliser(self, shape: Shape) -> float:
        return self._log_z() * math.prod(shape)

    def kernel(self, shape: Shape) -> KernelSpec:
        return KernelSpec(self.kind, (self.loc, *self._numbers(), 0.0))

    def _centred(self, x: Tensor) -> Tensor:
        return x if self.loc == 0.0 else x - self.loc

    def _centred_list(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return list(xs) if self.loc == 0.0 else list(torch._foreach_sub(list(xs), self.loc))


@dataclass(frozen=True)
class Normal(_Elementwise):
    """p(x) = exp(−(x − loc)²/2s²) / √(2π s²), with s the standard deviation `scale`."""

    kind = KIND_NORMAL

    def energy(self, x: Tensor) -> Tensor:
        return self._centred(x).square().sum() * (0.5 / self.scale**2)

    def _log_z(self) -> float:
        return math.log(self.scale) + 0.5 * math.log(2 * math.pi)

    def _numbers(self) -> tuple[float, float]:
        return 1.0 / self.scale**2, 0.0

    def neg_grad(self, x: Tensor) -> Tensor:
        return self._centred(x) * (1.0 / self.scale**2)

    def foreach_grad_(self, xs: Sequence[Tensor], outs: Sequence[Tensor], alpha: float) -> None:
        torch._foreach_add_(list(outs), self._centred_list(xs), alpha=alpha / self.scale**2)

    def foreach_energy(self, xs: Sequence[Tensor]) -> Tensor:
        norms = torch.stack(torch._foreach_norm(self._centred_list(xs)))
        return norms.double().square().sum() * (0.5 / self.scale**2)

    def sample(self, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
        return normal(shape, generator).mul_(self.scale).add_(self.loc)


@dataclass(frozen=True)
class Laplace(_Elementwise):
    """p(x) = exp(−|x − loc|/b) / 2b, with b the `scale`. The gradient at the kink is taken as 0."""

    kind = KIND_LAPLACE

    def energy(self, x: Tensor) -> Tensor:
        return self._centred(x).abs().sum() / self.scale

    def _log_z(self) -> float:
        return math.log(2 * self.scale)

    def _numbers(self) -> tuple[float, float]:
        return 1.0 / self.scale, 0.0

    def neg_grad(self, x: Tensor) -> Tensor:
        return self._centred(x).sign() / self.scale

    def foreach_grad_(self, xs: Sequence[Tensor], outs: Sequence[Tensor], alpha: float) -> None:
        torch._foreach_add_(list(outs), torch._foreach_sign(self._centred_list(xs)), alpha=alpha / self.scale)

    def foreach_energy(self, xs: Sequence[Tensor]) -> Tensor:
        return torch.stack(torch._foreach_norm(self._centred_list(xs), 1)).double().sum() / self.scale

    def sample(self, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
        u = 2.0 * uniform(shape, generator) - 1.0  # in (−1, 1]
        # 1 − |u| can be 0 only for u = 1 (2⁻⁵³ of the draws): moved half a grid step inside.
        magnitude = -torch.log((1.0 - u.abs()).clamp_min(2.0**-54))
        return (self.loc + self.scale * u.sign() * magnitude).float()


@dataclass(frozen=True)
class StudentT(_Elementwise):
    """p(x) = Γ((ν+1)/2) / (Γ(ν/2) √(νπ) s) · (1 + u²/(ν s²))^(−(ν+1)/2), with u = x − loc, ν = `df`, s = `scale`.

    Heavy tails: df = 1 is Cauchy, df → ∞ is Normal. Draws use Bailey's polar method (exact, two uniforms per draw).
    """

    kind = KIND_STUDENT
    df: float = 4.0

    def __init__(self, df: float, scale: float, loc: float = 0.0) -> None:
        object.__setattr__(self, "df", positive(df, "df of StudentT"))
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "loc", loc)
        self.__post_init__()

    def energy(self, x: Tensor) -> Tensor:
        spread = self.df * self.scale**2
        return torch.log1p(self._centred(x).square() / spread).sum() * (0.5 * (self.df + 1))

    def _log_z(self) -> float:
        half = 0.5 * self.df
        return math.lgamma(half) - math.lgamma(half + 0.5) + 0.5 * math.log(self.df * math.pi) + math.log(self.scale)

    def _numbers(self) -> tuple[float, float]:
        return self.df + 1.0, self.df * self.scale**2

    def neg_grad(self, x: Tensor) -> Tensor:
        u = self._centred(x)
        return u * (self.df + 1.0) / (u.square() + self.df * self.scale**2)

    def foreach_grad_(self, xs: Sequence[Tensor], outs: Sequence[Tensor], alpha: float) -> None:
        us = self._centred_list(xs)
        below = torch._foreach_mul(us, us)
        torch._foreach_add_(below, self.df * self.scale**2)
        torch._foreach_addcdiv_(list(outs), us, below, value=alpha * (self.df + 1.0))

    def sample(self, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
        radius = torch.sqrt(self.df * torch.expm1(uniform(shape, generator).log() * (-2.0 / self.df)))
        angle = uniform(shape, generator) * (2 * math.pi)
        return (self.loc + self.scale * radius * torch.cos(angle)).float()


@dataclass(frozen=True)
class Horseshoe(_Elementwise):
    """Horseshoe-like, for sparse scales: p(x) = log[(u² + ε² + a²)/(u² + ε²)] / 2π(A − ε), u = x − loc, A = √(a² + ε²).

    a is `scale`, ε = `floor` · `scale`. With ε = 0 this is the horseshoe-like density of Bhadra et al. (closed form,
    log pole at 0 and Cauchy tails a²/u² as the horseshoe has, whose own density needs an exponential integral).
    The gradient at the pole is unbounded; ε bounds it, and ∫ log[(x² + A²)/(x² + ε²)] dx = 2π(A − ε).
    Draws are exact: x = loc + v · Cauchy with v uniform on (ε, A), because log[(x²+A²)/(x²+ε²)] = ∫ 2v/(x²+v²) dv.
    """

    kind = KIND_HORSESHOE
    floor: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= float(self.floor) <= 1.0:
            raise InputError(f"floor of Horseshoe must lie between 0 and 1, not {self.floor!r}")

    def _inner(self) -> tuple[float, float]:
        """a² and ε²."""
        return self.scale**2, (self.floor * self.scale) ** 2

    def energy(self, x: Tensor) -> Tensor:
        a2, e2 = self._inner()
        return -torch.log(torch.log1p(a2 / (self._centred(x).square() + e2))).sum()

    def _log_z(self) -> float:
        a2, e2 = self._inner()
        return math.log(2 * math.pi * (math.sqrt(a2 + e2) - math.sqrt(e2)))

    def _numbers(self) -> tuple[float, float]:
        return self._inner()

    def neg_grad(self, x: Tensor) -> Tensor:
        a2, e2 = self._inner()
        u = self._centred(x)
        q = u.square() + e2
        return (2.0 * a2) * u / (torch.log1p(a2 / q) * q * (q + a2))

    def sample(self, shape: Shape, generator: torch.Generator | None = None) -> Tensor:
        a2, e2 = self._inner()
        low, high = math.sqrt(e2), math.sqrt(a2 + e2)
        width = low + (high - low) * uniform(shape, generator)
        # tan of a uniform angle in (−π/2, π/2]: in float64 the end point is a large finite number.
        return (self.loc + width * torch.tan(math.pi * (uniform(shape, generator) - 0.5))).float()
