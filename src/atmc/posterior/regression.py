"""The predictive of a regression: a mean, and how much of its spread is the model's.

Each sample predicts N(f_k(x), σ²) with the likelihood's σ, so the predictive is the mixture Σ_k w_k N(f_k(x), σ²):

    mean       f̄ = Σ_k w_k f_k
    epistemic  Σ_k w_k (f_k − f̄)²     variance over samples: what more data would remove
    aleatoric  σ²                     the noise of the targets
    variance   aleatoric + epistemic  (the law of total variance)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atmc.posterior.advice import plural
from atmc.posterior.diagnostics import Mixing, mixing_of
from atmc.posterior.inputs import as_batches, fitting, home_of, pick_device

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior


@dataclass(frozen=True, repr=False)
class Estimate:
    """What the posterior says about each of N inputs; all float64, shaped as the network's outputs."""

    mean: Tensor
    aleatoric: Tensor  # variances
    epistemic: Tensor
    samples: int

    @property
    def std(self) -> Tensor:
        """Standard deviation of the predictive."""
        return (self.aleatoric + self.epistemic).sqrt()

    def __len__(self) -> int:
        return int(self.mean.shape[0])

    def __repr__(self) -> str:
        """The means over the examples, not the tensors: those would fill pages."""
        outputs = plural(math.prod(self.mean.shape[1:]), "output")
        about = f"{plural(len(self), 'example')}, {outputs}, {plural(self.samples, 'sample')}"
        if not len(self):
            return f"Estimate({about})"
        parts = (self.aleatoric + self.epistemic, self.aleatoric, self.epistemic)
        total, noise, own = (float(part.mean()) for part in parts)
        return f"Estimate({about}; mean variance {total:.3g}, of which aleatoric {noise:.3g} and epistemic {own:.3g})"


def regress(
    posterior: Posterior, inputs: Any, batch_size: int = 256, device: torch.device | str | None = None
) -> Estimate:
    """The predictive mean and variance for `inputs`, one batch at a time, two passes over the samples' outputs."""
    scale = getattr(posterior.likelihood, "scale", None)
    if scale is None:
        raise ValueError("the likelihood of this posterior is not a regression's: use predict")
    if len(posterior) == 0:
        raise ValueError("the posterior has no samples: run the sampler past its burn-in, then predict")
    home = home_of(inputs)
    target = pick_device(home, device)
    weights = torch.from_numpy(posterior.weights).to(target)
    means, spreads = [], []
    states = [{n: t.to(target) for n, t in posterior.state(k).items()} for k in range(len(posterior))]
    with torch.no_grad():
        for b, raw in enumerate(as_batches(inputs, batch_size, posterior.shape)[0]):
            x = posterior.prepare(raw, target, check_scale=b == 0)
            with fitting(posterior.model, posterior.shape, raw):
                outputs = torch.stack([posterior.on(target, state)(x).double() for state in states])
            shape = (-1, *[1] * (outputs.ndim - 1))
            mean = (outputs * weights.view(shape)).sum(dim=0)
            means.append(mean)
            spreads.append(((outputs - mean).square() * weights.view(shape)).sum(dim=0))
    mean = torch.cat(means).to(home)
    if not bool(torch.isfinite(mean).all()):
        raise RuntimeError("the predictive is not finite: a sample has diverged, or the inputs hold NaN")
    return Estimate(mean, torch.full_like(mean, float(scale) ** 2), torch.cat(spreads).to(home), len(posterior))


def mixing_of_values(
    values: Any, targets: Any = None, chains: Sequence[int] | None = None, examples: int = 200, seed: int = 0
) -> Mixing:
    """R-hat, ESS and the exchangeability test of outputs `[K, N, ...]` themselves, and of their mean squared error.

    Without targets of that shape the mean of the outputs stands in for them, as a distance that may change.
    """
    x = np.asarray(values, dtype=np.float64).reshape(len(values), -1)  # [K, Q]
    y = None if targets is None else np.asarray(targets, dtype=np.float64).reshape(-1)
    centre = y if y is not None and y.size == x.shape[1] else x.mean(axis=0)
    return mixing_of(x.T, np.square(x - centre).mean(axis=1), chains, examples, seed)
