"""How far apart the samples lie: cosine distances between weight vectors, and how they grow with the lag.

    d(θ, θ′) = 1 − θ·θ′ / (‖θ‖ ‖θ′‖)

Independent samples of a high-dimensional posterior are about equally far from each other, whatever the lag between
them; a chain that is still travelling, or that is sampled too often, has neighbours that are closer than strangers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from atmc.posterior.arrays import Floats


class Bank(Protocol):
    """Samples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]: ...


def cosine_distances(bank: Bank, most: int = 16, memory: int = 2 << 30) -> tuple[Floats, list[int]]:
    """The matrix of distances `[k, k]` between at most `most` samples, evenly spread over the bank, and which they are.

    Vectors are all floating-point tensors of a sample, joined, in float32 with float64 sums; with fewer where `memory`
    bytes would not hold them.
    """
    if len(bank) == 0:
        raise ValueError("there are no posterior samples to compare")
    size = max(1, sum(t.numel() for t in bank[0].values() if t.is_floating_point()))
    count = max(1, min(len(bank), most, memory // (4 * size)))
    chosen = sorted({round(i) for i in np.linspace(0, len(bank) - 1, count)})
    vectors = torch.stack([_flat(bank[i]) for i in chosen])
    vectors /= torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=torch.float64).clamp_min(1e-300).float()
    # |u − v|²/2 = 1 − u·v for unit vectors, without the cancellation that makes small distances noise.
    found = np.zeros((len(chosen), len(chosen)))
    for i in range(len(chosen)):
        for j in range(i):
            gap = torch.linalg.vector_norm(vectors[i] - vectors[j], dtype=torch.float64)
            found[i, j] = found[j, i] = 0.5 * float(gap) ** 2
    return found, chosen


def distance_by_lag(distances: Floats, chains: Sequence[int] | None = None) -> Floats:
    """Mean distance of samples of one chain that are 1, 2, … apart (in the order given)."""
    k = len(distances)
    chain = np.zeros(k) if chains is None else np.asarray(chains)
    order = [np.flatnonzero(chain == c) for c in np.unique(chain)]
    longest = max(len(o) for o in order)
    rows = []
    for lag in range(1, longest):
        pairs = [distances[o[i], o[i + lag]] for o in order for i in range(len(o) - lag)]
        rows.append(float(np.mean(pairs)))
    return np.asarray(rows)


def neighbour_ratio(distances: Floats, chains: Sequence[int] | None = None) -> float:
    """Mean distance of neighbours over that of samples at least half a chain apart: 1 if independent, less if not.

    NaN with fewer than four samples in a chain, or where nothing moves.
    """
    curve = distance_by_lag(distances, chains)
    far = curve[len(curve) // 2 :]
    if len(curve) < 3 or not np.mean(far) > 0:
        return float("nan")
    return float(curve[0] / np.mean(far))


def _flat(state: Mapping[str, Any]) -> Tensor:
    return torch.cat([t.detach().cpu().reshape(-1).float() for t in state.values() if t.is_floating_point()])
