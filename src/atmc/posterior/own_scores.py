"""Predictions and scores of a posterior whose likelihood is a person's own (`likelihoods.own`).

mean       Σ_k w_k predict(f_k)
epistemic  Σ_k w_k (predict(f_k) − mean)²
aleatoric  Σ_k w_k noise(f_k)², NaN where the likelihood has no `noise`
nll        −log Σ_k w_k exp(−nll(f_k, y)), the mean over examples: it needs `nll` alone
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.posterior.arrays import to_numpy
from atmc.posterior.metric_entries import summary_of
from atmc.posterior.regression import Estimate

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior
    from atmc.target.likelihoods.own import OwnLikelihood


def estimate(posterior: Posterior, law: OwnLikelihood, x: Any, **how: Any) -> Estimate:
    """The predictive mean and variance."""
    outputs = posterior.sample_probs(x, **how)
    means = torch.stack([law.predict(one).double() for one in outputs])
    w = torch.from_numpy(posterior.weights).view(-1, *[1] * (means.ndim - 1))
    mean = (w * means).sum(0)
    noises = [law.noise(one) for one in outputs]
    noise = torch.full_like(mean, math.nan)
    if all(found is not None for found in noises):
        noise = (w * torch.stack([n.double().reshape(mean.shape) for n in noises if n is not None]).square()).sum(0)
    return Estimate(mean, noise, (w * (means - mean).square()).sum(0), len(posterior))


def scores(posterior: Posterior, law: OwnLikelihood, x: Any, targets: Any, **how: Any) -> dict[str, Any]:
    """NLL, and the RMSE of `predict` where it has the targets' shape; of single samples and of all together."""
    outputs = posterior.sample_probs(x, **how)
    y = torch.as_tensor(to_numpy(targets))
    if len(y) != outputs.shape[1]:
        raise InputError(f"{outputs.shape[1]} inputs and {len(y)} labels do not pair up")
    nll = torch.stack([law.nll(one, y).double() for one in outputs])  # [K, N]
    means = [law.predict(one).double() for one in outputs] if callable(getattr(law.law, "predict", None)) else []
    w = torch.from_numpy(posterior.weights)

    def of(rows: Tensor, weights: Tensor, guesses: list[Tensor]) -> dict[str, float]:
        found = {"nll": float(-torch.logsumexp(weights.log()[:, None] - rows, 0).mean())}
        if guesses and guesses[0].numel() == y.numel():
            mean = sum(share * guess for share, guess in zip(weights, guesses, strict=True))
            assert isinstance(mean, Tensor)
            found["rmse"] = float((mean.reshape(y.shape) - y.double()).square().mean().sqrt())
        return found

    each = [of(nll[k : k + 1], torch.ones(1).double(), means[k : k + 1]) for k in range(len(nll))]
    return summary_of(each, of(nll, w, means), posterior.weights)
