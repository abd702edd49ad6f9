"""The interface of a likelihood: −log p(target | output) per example, in float32 or better, and its prediction.

`check_shapes` always runs. `check_values` reads tensors back to the host and must not run while a step is captured.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError


class Likelihood:
    """p(target | network output), one factor per example."""

    #: "classification" or "regression": what the targets are and what `probs` returns.
    task: ClassVar[str] = "classification"

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(target | output) of each example: [batch], differentiable, float32 at least."""
        raise NotImplementedError

    def sizes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """‖∂nll/∂outputs‖ of each example: [batch], float32 at least, without autograd."""
        with torch.enable_grad():
            at = wide(outputs.detach()).requires_grad_()
            (found,) = torch.autograd.grad(self.nll(at, targets).sum(), at)
        sizes: Tensor = torch.linalg.vector_norm(found.reshape(len(found), -1), dim=1)
        return sizes

    def probs(self, outputs: Tensor) -> Tensor:
        """The prediction of one sample; averaged over samples it is the predictive."""
        raise NotImplementedError

    def check_shapes(self, outputs: Tensor, targets: Tensor) -> None:
        """One clear error if outputs and targets cannot belong together, from shapes and dtypes alone."""
        raise NotImplementedError

    def check_values(self, outputs: Tensor, targets: Tensor) -> None:
        """One clear error if the targets' values make no sense; reads them back to the host."""
        raise NotImplementedError


class ClassLikelihood(Likelihood):
    """Shared by likelihoods of class labels: outputs [batch, classes], labels [batch] of an integer type."""

    def probs(self, outputs: Tensor) -> Tensor:
        """softmax(outputs): the probability of each class."""
        return torch.softmax(wide(outputs), dim=-1)

    def check_shapes(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.ndim != 2:
            raise InputError(f"the model's outputs must be [batch, classes], not {list(outputs.shape)}")
        if targets.ndim != 1 or targets.shape[0] != outputs.shape[0]:
            raise InputError(f"labels must be [{outputs.shape[0]}] for that batch, not {list(targets.shape)}")
        if targets.dtype.is_floating_point or targets.dtype.is_complex or targets.dtype == torch.bool:
            raise InputError(f"labels must be integers (class indices), not {targets.dtype}")

    def check_values(self, outputs: Tensor, targets: Tensor) -> None:
        classes = outputs.shape[1]
        bad = (targets < 0) | (targets >= classes)
        if bool(bad.any()):
            where = int(bad.int().argmax())
            raise InputError(
                f"label {int(targets[where])} of example {where} is out of range: "
                f"the model has {classes} outputs, so labels run from 0 to {classes - 1}"
            )


class RegressionLikelihood(Likelihood):
    """Shared by likelihoods of numbers: each sample predicts a location and a scale, in the units of the targets.

    `probs` is what is kept of a sample's outputs, from which `predict` and `noise` are made; both take any number of
    leading axes, so that the outputs of many samples [K, batch, …] go through at once.
    """

    task: ClassVar[str] = "regression"

    def probs(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        return wide(outputs)

    def predict(self, outputs: Tensor) -> Tensor:
        """The mean of the targets, in their units and shape."""
        raise NotImplementedError

    def noise(self, outputs: Tensor) -> Tensor:
        """The scale of the noise (its standard deviation, if it is Gaussian), shaped as `predict`."""
        raise NotImplementedError

    def degrees(self) -> float | None:
        """Degrees of freedom of Student-t noise; None where it is Gaussian."""
        return None

    def guess(self, targets: Tensor) -> Tensor:
        """Outputs of a network that knows nothing but the mean of the targets."""
        raise NotImplementedError

    def network(self, model: nn.Module) -> nn.Module:
        """What is sampled for `model`: itself, or with the noise as one more parameter."""
        return model

    def check_values(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
            raise InputError("the regression targets hold NaN or infinite values")


def wide(x: Tensor) -> Tensor:
    """x in float32 at least: bf16 has three digits, and a log-likelihood summed over a data set needs more."""
    return x if x.dtype == torch.float64 else x.float()
