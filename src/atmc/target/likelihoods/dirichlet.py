"""Two likelihoods for curated labels, which are almost free of noise.

At T = 1 the categorical likelihood overestimates the aleatoric uncertainty of labels that several people have checked.
A cold posterior compensates for that; these likelihoods model it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.target.likelihoods.likelihood import ClassLikelihood, wide


@dataclass(frozen=True)
class NoisyDirichlet(ClassLikelihood):
    """The noisy Dirichlet observation model of Kapoor et al. (2022), in its Gaussian form.

    A label y is taken as the observation that the class probabilities are π ~ Dirichlet(α), with α_c = α_ε + [c = y]:
    small α_ε says that labels are clean (π near a corner of the simplex), large α_ε that they are noisy. The Dirichlet
    density of softmax(f) itself is unbounded at the corners, so no posterior would exist. But π is a vector of
    independent g_c ~ Gamma(α_c, 1), normalised; matching the mean and variance of each (both α_c) by a log-normal gives

        log g_c ≈ N(μ_c, σ_c²),   σ_c² = log(1 + 1/α_c),   μ_c = log α_c − σ_c²/2,

    and the network's outputs model log g:  **p(y | f) = Π_c N(μ_c(y); f_c, σ_c²(y))**, a proper Gaussian density of the
    transformed label, heteroscedastic: tight (σ² ≈ 0.69) on the true class, loose (σ² ≈ log 1/α_ε) on the others.
    Unlike a softmax it is not indifferent to adding a constant to f.
    `probs` is softmax(f): π given log g = f.
    """

    alpha_eps: float = 1e-2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha_eps) and self.alpha_eps > 0):
            raise InputError(f"alpha_eps of NoisyDirichlet must be a positive, finite number, not {self.alpha_eps!r}")

    def moments(self, true_class: bool) -> tuple[float, float]:
        """(μ, σ²) of log g for the true class or for any other."""
        alpha = self.alpha_eps + (1.0 if true_class else 0.0)
        variance = math.log1p(1.0 / alpha)
        return math.log(alpha) - 0.5 * variance, variance

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        f = wide(outputs)
        other = _gaussian_nll(f, *self.moments(False))
        index = targets.long()[:, None]
        true = _gaussian_nll(f.gather(1, index), *self.moments(True)) - other.gather(1, index)
        return other.sum(1) + true[:, 0]


@dataclass(frozen=True)
class DirClip(ClassLikelihood):
    """The categorical likelihood with a clipped Dirichlet prior on the predictions (DirClip, Marek et al. 2024).

    Every training input x carries, beside its label's softmax(f)_y, a prior factor on the predicted probabilities
    π = softmax(f(x)) that is a symmetric Dirichlet with its log-probabilities clipped from below:

        p(y | f) · p(π) ∝ π_y · exp( (α − 1) Σ_c max(log π_c, clip) ).

    α < 1 rewards confidence. Unclipped, that reward grows without bound towards the corners of the simplex and the
    posterior is improper; clipped it is at most (α − 1)·C·clip, bounded, so a proper prior on θ stays proper. Below
    the clip the factor is flat and the label alone pulls. α = 1 is the plain categorical likelihood.
    The constant that normalises the factor over the simplex does not depend on θ and is left out, so `nll` may be
    negative; compare runs by the nll of `probs`, not by this value.

    The pull on the logit of a wrong class k, −π_k + (1 − α)(Cπ_k − 1) without clipping, can point towards that class
    only if (1 − α)C > 1: keep α ≥ 1 − 1/C (0.9 for ten classes) to be safe; the authors saw training fail below 0.8.
    `probs` is softmax(f).
    """

    alpha: float = 0.9
    clip: float = -10.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(f"alpha of DirClip must be a positive, finite number, not {self.alpha!r}")
        if not (math.isfinite(self.clip) and self.clip < 0):
            raise InputError(f"clip of DirClip is a log-probability: it must be negative and finite, not {self.clip!r}")

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        log_probs = torch.log_softmax(wide(outputs), dim=1)
        label = log_probs.gather(1, targets.long()[:, None])[:, 0]
        return (1.0 - self.alpha) * log_probs.clamp_min(self.clip).sum(1) - label


def _gaussian_nll(f: Tensor, mean: float, variance: float) -> Tensor:
    return 0.5 * ((f - mean).square() / variance + math.log(2 * math.pi * variance))
