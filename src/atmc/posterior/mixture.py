"""The predictive of a regression as a mixture of one law per sample: density, distribution function, quantiles."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from atmc.target.likelihoods.learned_noise import log_normaliser

HALVINGS = 60  # of the interval in which a quantile is searched: to the last digits of float64


class Mixture(NamedTuple):
    """The predictive of some examples, and their targets where those are known: the input of a regression metric.

    All float64: `outputs` are the means, `scale` the scales of the noise, both `[K, n, numbers of one example]`.
    """

    outputs: Tensor
    targets: Tensor | None  # [n, numbers of one example]
    scale: Tensor
    weights: Tensor  # [K], with the sum 1
    degrees: float | None = None  # of freedom, of Student-t noise; None for Gaussian noise

    @property
    def known(self) -> Tensor:
        """The targets, which have to be known."""
        assert self.targets is not None
        return self.targets

    @property
    def z(self) -> Tensor:
        """The targets' distance from each sample's means, in units of its scale."""
        return (self.known - self.outputs) / self.scale

    @property
    def mean(self) -> Tensor:
        """f̄ of each number."""
        found: Tensor = torch.tensordot(self.weights, self.outputs, 1)
        return found

    @property
    def aleatoric(self) -> Tensor:
        """The mean variance of the noise."""
        wider = 1.0 if self.degrees is None else self.degrees / (self.degrees - 2)
        found: Tensor = torch.tensordot(self.weights, wider * self.scale.square(), 1)
        return found

    @property
    def epistemic(self) -> Tensor:
        """The variance of the means over samples."""
        found: Tensor = torch.tensordot(self.weights, (self.outputs - self.mean).square(), 1)
        return found

    def log_density(self) -> Tensor:
        """log p of each target under each sample, `[K, n, …]`."""
        if self.degrees is None:
            return -0.5 * self.z.square() - self.scale.log() - 0.5 * math.log(2 * math.pi)
        tail = 0.5 * (self.degrees + 1) * torch.log1p(self.z.square() / self.degrees)
        return -tail - self.scale.log() - log_normaliser(self.degrees)

    def below(self, values: Tensor) -> Tensor:
        """The predictive probability of a target below each of `values` `[n, …]`."""
        z = (values - self.outputs) / self.scale
        each = torch.special.ndtr(z) if self.degrees is None else student_cdf(z, self.degrees)
        found: Tensor = torch.tensordot(self.weights, each, 1)
        return found


def quantile(of: Mixture, share: float) -> Tensor:
    """The values `[n, …]` that this share of the predictive is below, by bisection."""
    # A quantile of a mixture lies between the smallest and the largest of its parts'.
    reach = _reach(share, of.degrees) * of.scale
    low, high = (of.outputs - reach).amin(0), (of.outputs + reach).amax(0)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        under = of.below(middle) < share
        low, high = torch.where(under, middle, low), torch.where(under, high, middle)
    return 0.5 * (low + high)


def _reach(share: float, degrees: float | None) -> float:
    """More standard scales than the quantiles of one part can be away from its mean."""
    tail = min(share, 1 - share)
    if degrees is None:
        return abs(float(torch.special.ndtri(torch.tensor(tail, dtype=torch.float64)))) + 1e-9
    far = 1.0
    while float(student_cdf(torch.tensor(-far, dtype=torch.float64), degrees)) > tail:
        far *= 2
    return far


def student_cdf(z: Tensor, degrees: float) -> Tensor:
    """The distribution function of Student's t, by integrating the density.

    With z = √ν tan θ the density is Z cos^(ν−1) θ, which is smooth on a finite interval: 64 nodes of Gauss-Legendre
    quadrature give it to 1e-12 for ν > 2.
    """
    import numpy as np

    nodes, shares = np.polynomial.legendre.leggauss(64)
    angle = torch.atan(z.abs() / math.sqrt(degrees))
    total = torch.zeros_like(angle)
    # From |z| to infinity, so that small tails keep their digits.
    half = 0.5 * (math.pi / 2 - angle)
    for node, share in zip(nodes.tolist(), shares.tolist(), strict=True):
        total += share * torch.cos(math.pi / 2 - half * (1 + node)).pow(degrees - 1)
    tail = half * total * math.sqrt(degrees) * math.exp(-log_normaliser(degrees))
    return torch.where(z > 0, 1 - tail, tail)
