"""Do the early samples do harm? The last quarter of the samples alone, against all of them.

A quarter of independent samples predicts worse than all: fewer are averaged. Where it predicts better, the first ones
come from a time when the chain had not arrived, and belong to the burn-in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.diagnose.convergence import of_the_labels
from atmc.posterior.arrays import check_labels, check_samples


@dataclass(frozen=True)
class LateGain:
    """How much lower the NLL of the last quarter of the samples is than that of all."""

    samples: int  # in that quarter
    late: float  # their NLL
    ahead: float  # NLL of all less theirs; positive where the others do harm
    error: float  # of `ahead`, sd/√N of the paired differences by example
    p_value: float  # of as many samples, picked at random, doing as well as the last ones


def gain_of_late(
    probs: Any, labels: Any, chains: Sequence[int] | None = None, orders: int = 999, seed: int = 0
) -> LateGain | None:
    """From probabilities `[K, N, C]`, labels, and each sample's chain; None below four samples in a chain.

    The test takes as many samples of each chain at random as the quarter has, and asks how often they do as well: with
    samples in no particular order the last ones are nothing special. p = (1 + #{as good}) / (1 + orders).
    """
    array = check_samples(probs)
    own = of_the_labels(array, check_labels(labels, *array.shape[1:]))
    number = np.zeros(len(own), dtype=int) if chains is None else np.asarray(chains)
    groups = [np.flatnonzero(number == chain) for chain in np.unique(number)]
    if min(group.size for group in groups) < 4:
        return None
    sizes = [-(-group.size // 4) for group in groups]
    chosen = np.concatenate([group[-size:] for group, size in zip(groups, sizes, strict=True)])
    each = -np.log(own[chosen].mean(axis=0))
    gaps = -np.log(own.mean(axis=0)) - each
    rng = np.random.default_rng(seed)
    as_good = 0
    for _ in range(orders):
        some = np.concatenate([rng.permutation(g)[:size] for g, size in zip(groups, sizes, strict=True)])
        as_good += -np.log(own[some].mean(axis=0)).mean() <= each.mean() + 1e-12
    error = float(gaps.std(ddof=1) / np.sqrt(gaps.size)) if gaps.size > 1 else float("nan")
    return LateGain(chosen.size, float(each.mean()), float(gaps.mean()), error, (1 + as_good) / (1 + orders))
