"""Friction along the gradient noise within each tensor: what a few directions across all parameters leave out.

`noise_friction.py` knows the noise's covariance V along `rank` directions. Here the rest of V has a model of full rank,
tensor by tensor. A tensor of the shape [a, ...] is a matrix with a rows, and its noise is taken as uncorrelated in the
basis of the eigenvectors of E[d dᵀ] and E[dᵀ d], where d is a difference of two gradients without its part along the
rows B. This is the basis of Shampoo and SOAP, put to another use. In this basis the variances V̂ + diag B̂'B̂ are those of
fresh differences, also where chance has made B too long; what V is besides its diagonal there and B'B is left out.

In units of √m, with Q that rotation, v̂ = Qᵀ√m (K'(p) + K'(p₀)), V̂ the variances beside B, B̂ = QᵀB/√m, c = h²/4T, and
w = 1/(1 + ρ + c V̂), the momentum step of `noise_friction.py` is p' = p₀ − √m Q(c V̂ w v̂ + w B̂' K B̂ (1 + ρ) w v̂),
with K = c (I + c B̂ w B̂')⁻¹. K is renewed with V̂ and B̂ every EVERY steps. Where c falls in between, K falls in
proportion, which is never more than it should be; where c rises, K is too small until then.

Differences of the last steps alone are used, as for B: no gradient more, and none of the step's own mini-batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atmc.common.tf32 import tf32
from atmc.samplers.flat_state import Shard, view_like
from atmc.samplers.noise_rows import EVERY, buffer, mass_of, rows_of, scale_of

try:
    from atmc.samplers import kronecker_kernels as kernels
except ImportError:  # no Triton on this machine: PyTorch's operations serve
    kernels = None  # type: ignore[assignment]

enabled = True  # False: PyTorch's operations on a GPU too, for comparison
MEMORY = 400  # steps that variances and factors remember
LARGEST = 1024  # a side that is longer keeps its own basis: eigenvectors would take longer than they are worth
# Updates between two changes of the basis; before that, after 1, 2, 4, … of them. For ResNet-20-FRN it takes an H200
# 0.12 s. On 20,146 weights (mini-0.002-kronecker16-importance of benchmarks/hmc_small.py, three seeds) the
# training loss is 0.741 ± 0.003 with 64 of them in between and 0.743 ± 0.005 with 256.
FULL = 128


@dataclass
class Group:
    """All tensors that are matrices of one size; [count, rows, columns] of them lie together."""

    begin: int
    shape: tuple[int, int, int]
    factors: list[Tensor]  # means of d dᵀ and dᵀ d; empty for a side that keeps its basis
    bases: list[Tensor]  # their eigenvectors, in columns

    @property
    def end(self) -> int:
        return self.begin + math.prod(self.shape)

    def of(self, grouped: Tensor) -> Tensor:
        """Its part of a vector (or of a stack of them) as [..., count, rows, columns]."""
        return grouped[..., self.begin : self.end].view(*grouped.shape[:-1], *self.shape)

    def tiles(self, side: int, tile: int) -> Iterator[tuple[int, ...]]:
        """The lines of the table of `kronecker_kernels.py` for a rotation."""
        count, *sizes = self.shape
        basis = self.bases[side]
        for number in range(count):
            begin = self.begin + number * math.prod(sizes)
            address = basis[number].data_ptr() if basis.numel() else 0
            for at in itertools.product(*(range(0, end, tile) for end in sizes)):
                yield (begin, address, *sizes, *at)


class KroneckerNoise:
    """What is known of the noise within the tensors of one shard."""

    def __init__(self, shard: Shard, rank: int) -> None:
        self.updates = torch.zeros((), dtype=torch.int64, device="cpu")
        by_size: dict[tuple[int, int], list[int]] = {}
        for index, p in enumerate(shard.params):
            by_size.setdefault(_matrix(p), []).append(index)
        self.groups: list[Group] = []
        places, begin, count = [], 0, torch.arange(shard.total, device="cpu")
        options: dict[str, Any] = {"dtype": shard.dtype, "device": shard.device}
        for (rows, columns), members in by_size.items():
            shape = len(members), rows, columns
            sides = [side if 1 < side <= LARGEST else 0 for side in (rows, columns)]
            factors = [torch.zeros(len(members), side, side, **options) for side in sides]
            bases = [torch.eye(side, **options).expand(len(members), -1, -1).clone() for side in sides]
            self.groups.append(Group(begin, shape, factors, bases))
            places += [view_like(count, shard.offsets[i], shard.params[i]).reshape(-1) for i in members]
            begin += math.prod(shape)
        self.place = torch.cat(places).to(shard.device)  # of each grouped element in the flat buffers
        self.variance = torch.zeros(begin, **options)  # of all noise
        self.rest = torch.zeros(begin, **options)  # V̂: of what B leaves out
        self.rows = torch.zeros(rank, begin, **options)  # B̂
        self.inner = torch.zeros(rank, rank, dtype=torch.float64, device=shard.device)  # K
        self.strength = torch.zeros((), dtype=torch.float64, device=shard.device)  # the c that K was made for
        self.tables = self._tables()

    def __getstate__(self) -> dict[str, Any]:
        """For copies: all but the addresses in the tables."""
        return {key: value for key, value in self.__dict__.items() if key != "tables"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.tables = self._tables()

    def _tables(self) -> list[Tensor] | None:
        """What the kernel reads, where it can run: of rotations from the left and from the right."""
        if not fused(self.variance):
            return None
        sides = [[line for group in self.groups for line in group.tiles(side, kernels.TILE)] for side in (0, 1)]
        return [torch.tensor(lines, dtype=torch.int64, device="cpu").to(self.variance.device) for lines in sides]

    def tensors(self) -> Iterator[Tensor]:
        """All that a state has to carry along, in a fixed order; `project` makes the rest of it."""
        yield from (self.updates, self.variance, self.inner, self.strength)
        for group in self.groups:
            yield from (*group.factors, *group.bases)

    def take_over(self, known: KroneckerNoise | None, shard: Shard) -> None:
        """What another one knew of the same parameters, as after a move to another device; of others nothing."""
        if known is not None and [t.shape for t in known.tensors()] == [t.shape for t in self.tensors()]:
            for mine, theirs in zip(self.tensors(), known.tensors(), strict=True):
                mine.copy_(theirs)
            self.project(shard)

    def forget(self) -> None:
        """Know nothing, as when masses have changed and with them all units."""
        for known in (self.updates, self.variance, self.rest, self.rows, self.inner, self.strength):
            known.zero_()
        for mean in (mean for group in self.groups for mean in group.factors):
            mean.zero_()

    # -- in the step ---------------------------------------------------------------------------------------------------

    def friction(self, shard: Shard, velocity: Tensor, strength: Any, drag: Any) -> Tensor:
        """What is taken off the momentum, from the flat K'(p) + K'(p₀); `strength` is h²/4T, `drag` is ρ."""
        root = self._root_mass(shard)
        moving = self._rotate(velocity[self.place] * root)
        noise = self.rest * strength
        slow = 1.0 / (noise + (drag + 1.0))
        left = moving * slow * (drag + 1.0)  # what the friction within tensors leaves
        lag = (strength / self.strength.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
        along = (self.inner @ (self.rows @ left).double()) * lag
        taken = slow * (noise * moving + self.rows.T @ along.to(shard.dtype))
        flat = buffer(shard, "noise friction")
        return flat.index_copy_(0, self.place, (self._rotate(taken, back=True) * root).to(shard.dtype))

    def _rotate(self, grouped: Tensor, back: bool = False) -> Tensor:
        if self.tables is not None:
            stack = grouped.shape[0] if grouped.ndim > 1 else 1
            x = grouped.contiguous()
            with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
                for table, side in zip(self.tables, ("left", "right"), strict=True):
                    y, grid = torch.empty_like(x), (len(table), stack)
                    options = {"LEFT": side == "left", "BACK": back, "TILE": kernels.TILE}
                    kernels.rotate_kernel[grid](table, x, y, grouped.shape[-1], **options)
                    x = y
            return x
        parts = []
        for group in self.groups:
            x = group.of(grouped)
            left, right = group.bases
            if left.shape[-1]:
                x = torch.einsum("nij,...njk->...nik", left if back else left.mT, x)
            if right.shape[-1]:
                x = torch.einsum("...nij,njk->...nik", x, right.mT if back else right)
            parts.append(x.flatten(-3))
        return torch.cat(parts, -1)

    def _root_mass(self, shard: Shard) -> Any:
        mass = mass_of(shard)
        if not isinstance(mass, Tensor):
            return math.sqrt(mass)
        return mass[self.place].sqrt()

    # -- between steps -------------------------------------------------------------------------------------------------

    def learn(self, shard: Shard, rank: int) -> Tensor:
        """Take in the last EVERY differences without their part along B; to be called before B is renewed.

        Returns whether they are finite, on the device, where nothing is read back: whoever calls this counts `updates`.
        Where they are not, nothing is learned: the chain diverges, which is told elsewhere.
        """
        rows = rows_of(shard, rank)[:-1].index_select(1, self.place) / self._root_mass(shard)
        scale, factor, fresh = scale_of(shard, rank), rows[:rank], rows[rank:]
        finite: Tensor = fresh.square().sum().square().isfinite()
        fresh = torch.where(finite, fresh, 0.0)
        inverse = torch.where(scale > 0, 1.0 / scale, 0.0).to(shard.dtype)
        rest = fresh - (fresh @ factor.T * inverse) @ factor
        count = int(self.updates) + 1
        share = finite * max(-math.expm1(-EVERY / MEMORY), 1.0 / count)
        self._average(rest, share)
        if count % FULL == 0 or (count < FULL and count & (count - 1) == 0):
            self._turn()
        self.variance.lerp_(self._rotate(fresh).square().mean(0), share.to(shard.dtype))
        return finite

    def _average(self, rest: Tensor, share: Tensor) -> None:
        """Move the factors a share of the way to those of `rest` [EVERY, elements]."""
        for group in self.groups:
            d = group.of(rest)
            for side, mean in enumerate(group.factors):
                if mean.numel():
                    x = (d if side == 0 else d.mT).permute(1, 2, 0, 3).flatten(2)
                    with tf32():
                        square = x @ x.mT
                    mean.lerp_(square / EVERY, share.to(mean.dtype))

    def _turn(self) -> None:
        """Turn the basis to the eigenvectors of the factors, and take the variances along."""
        for group in self.groups:
            own = group.of(self.variance)
            moved = own
            for side, (mean, basis) in enumerate(zip(group.factors, group.bases, strict=True)):
                if mean.numel() and (new := _eigenvectors(mean)) is not None:  # else the old basis serves on
                    weights = (new.mT @ basis).square()
                    moved = weights @ moved if side == 0 else moved @ weights.mT
                    basis.copy_(new)
            own.copy_(moved)

    def project(self, shard: Shard) -> None:
        """B in this basis, and what it leaves of the variances."""
        rows = rows_of(shard, len(self.rows))[: len(self.rows)].index_select(1, self.place) / self._root_mass(shard)
        self.rows.copy_(self._rotate(rows))
        self.rest.copy_((self.variance - self.rows.square().sum(0)).clamp_min(0.0))

    def derive(self, shard: Shard, strength: Any, drag: Any) -> None:
        """Bring what follows from B and the variances up to date, where a captured graph looks for it."""
        self.project(shard)
        wide = self.rows.double()
        slow = 1.0 / (self.rest.double() * strength + (drag + 1.0))
        eye = torch.eye(len(wide), dtype=torch.float64, device=wide.device)
        inverse = torch.linalg.inv_ex(eye + (wide * slow) @ wide.T * strength).inverse  # unlike `inv` it does not wait
        self.inner.copy_(inverse * strength)
        self.strength.copy_(strength) if isinstance(strength, Tensor) else self.strength.fill_(strength)


def fused(state: Tensor) -> bool:
    """Whether the kernel can work on it."""
    return enabled and kernels is not None and state.is_cuda and state.dtype == torch.float32


def _eigenvectors(mean: Tensor) -> Tensor | None:
    """Eigenvectors, in columns. cuSOLVER fails on some matrices of low rank, in float32 more often than in float64."""
    for wide in (mean, mean.double()):
        try:
            found: Tensor = torch.linalg.eigh(wide).eigenvectors
            return found.to(mean.dtype)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            continue
    return None


def _matrix(p: Tensor) -> tuple[int, int]:
    """(rows, columns) of a parameter."""
    return (p.shape[0], p.numel() // p.shape[0]) if p.ndim > 1 and p.numel() else (p.numel(), 1)
