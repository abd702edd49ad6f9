"""The categorical likelihood for labels and the Gaussian likelihood for regression."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from atmc.common.errors import InputError
from atmc.target.likelihoods.likelihood import ClassLikelihood, RegressionLikelihood, wide


@dataclass(frozen=True)
class Categorical(ClassLikelihood):
    """p(y | f) = softmax(f)_y: each label is one draw from the predicted class probabilities.

    It overestimates the label noise of curated data sets, so that samples at T = 1 underfit them: use `NoisyDirichlet`,
    `DirClip` or T < 1. `probs` is softmax(f).
    """

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(wide(outputs), targets.long(), reduction="none")


@dataclass(frozen=True)
class Gaussian(RegressionLikelihood):
    """p(y | f) = Π_k N(y_k; f_k, scale²): regression with independent noise of known standard deviation.

    Outputs and targets have one shape, [batch] or [batch, k, …]; an example's nll sums over its components.
    Targets are taken as they are, and `scale` is in their units. The predictive mean is that of f, and the predictive
    variance over samples is scale² + the variance of f.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale of Gaussian must be a positive, finite number, not {self.scale!r}")

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        f = wide(outputs)
        each = 0.5 * ((f - targets.to(f.dtype)) / self.scale).square() + (
            math.log(self.scale) + 0.5 * math.log(2 * math.pi)
        )
        return each.flatten(1).sum(1) if each.ndim > 1 else each

    def predict(self, outputs: Tensor) -> Tensor:
        return wide(outputs)

    def noise(self, outputs: Tensor) -> Tensor:
        return torch.full_like(wide(outputs), self.scale)

    def guess(self, targets: Tensor) -> Tensor:
        return targets.mean(0, keepdim=True).expand_as(targets)

    def check_shapes(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.shape != targets.shape or outputs.ndim == 0:
            raise InputError(
                f"outputs {list(outputs.shape)} and targets {list(targets.shape)} must have one shape "
                "(they are compared number by number, never broadcast)"
            )
