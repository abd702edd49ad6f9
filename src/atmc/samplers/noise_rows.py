"""Where friction along the gradient noise keeps its estimate: the rows B, new differences, and the last gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atmc.samplers.flat_state import Shard, view_like

EVERY = 16  # steps between two updates of B


def slots(rank: int) -> tuple[str, ...]:
    """The state of a parameter: rows of B, differences not taken in yet, and the last gradient."""
    return (*(f"noise_{i}" for i in range(rank)), *(f"noise_new_{i}" for i in range(EVERY)), "noise_last")


def join_rows(shard: Shard, rank: int) -> None:
    """Lay the rows of a shard's state out as one matrix, so that they can be multiplied as one."""
    names = slots(rank)
    rows = torch.zeros(len(names), shard.total, device=shard.device, dtype=shard.dtype)
    for row, name in zip(rows, names, strict=True):
        shard.flat[name] = row


def rows_of(shard: Shard, rank: int) -> Tensor:
    """All of them as one matrix: B, then the new differences, then the last gradient."""
    first = shard.flat["noise_0"]
    return first.as_strided((rank + EVERY + 1, shard.total), (shard.total, 1), first.storage_offset())


def derive(shard: Shard, rank: int) -> None:
    """Bring what follows from B up to date, where a captured graph looks for it."""
    scale_of(shard, rank).copy_(_squares(shard, rank))


def scale_of(shard: Shard, rank: int) -> Tensor:
    """The diagonal of B M⁻¹ B': the eigenvalues of the noise."""
    if "noise scale" not in shard.scratch:
        shard.scratch["noise scale"] = _squares(shard, rank)
    found: Tensor = shard.scratch["noise scale"]
    return found


def _squares(shard: Shard, rank: int) -> Tensor:
    factor, mass = rows_of(shard, rank)[:rank], mass_of(shard)
    if isinstance(mass, Tensor):
        factor, mass = factor / mass.sqrt(), 1.0
    squares: Tensor = torch.linalg.vector_norm(factor, dim=1, dtype=torch.float64).square() / mass
    return squares


def mass_of(shard: Shard) -> Any:
    """The mass of all parameters: one number, or a vector like the momenta."""
    masses = [shard.mass(i) for i in range(len(shard.params))]
    if not any(isinstance(m, Tensor) for m in masses) and len(set(masses)) == 1:
        return masses[0]
    if "noise mass" not in shard.scratch:
        buffer(shard, "noise mass")
        masses_changed(shard)
    found: Tensor = shard.scratch["noise mass"]
    return found


def masses_changed(shard: Shard) -> None:
    """Bring that vector up to date, in its place, where there is one."""
    if "noise mass" in shard.scratch:
        flat = shard.scratch["noise mass"].fill_(1.0)
        for index, view in enumerate(like_params(shard, flat)):
            view.copy_(torch.as_tensor(shard.mass(index)))


def buffer(shard: Shard, name: str) -> Tensor:
    """A flat buffer of a shard, which stays where it is."""
    if name not in shard.scratch:
        shard.scratch[name] = torch.zeros(shard.total, device=shard.device, dtype=shard.dtype)
    found: Tensor = shard.scratch[name]
    return found


def like_params(shard: Shard, flat: Tensor) -> list[Tensor]:
    """A flat buffer as views shaped like the parameters."""
    return [view_like(flat, offset, p) for p, offset in zip(shard.params, shard.offsets, strict=True)]
