"""The predictive of a regression against the mixture it is, and refusals both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from atmc.posterior import Posterior
from atmc.target.likelihoods import Gaussian


def lines(k: int) -> Posterior:
    torch.manual_seed(0)
    return Posterior([nn.Linear(3, 2) for _ in range(k)], nn.Linear(3, 2), likelihood=Gaussian(scale=0.5))


def test_moments_are_those_of_the_mixture() -> None:
    posterior = lines(4).weighted([1.0, 2.0, 3.0, 4.0])
    x = torch.randn(9, 3)
    found = posterior.regress(x, batch_size=4, device="cpu")
    outputs = np.stack([posterior[k](x).detach().double().numpy() for k in range(4)])
    w = np.array([0.1, 0.2, 0.3, 0.4])[:, None, None]
    np.testing.assert_allclose(found.mean, (w * outputs).sum(0), atol=1e-6)
    np.testing.assert_allclose(found.epistemic, (w * (outputs - (w * outputs).sum(0)) ** 2).sum(0), atol=1e-6)
    np.testing.assert_allclose(found.aleatoric, 0.25)
    # Draws from the mixture have the predicted standard deviation.
    rng = np.random.default_rng(0)
    drawn = outputs[rng.choice(4, size=200_000, p=w[:, 0, 0]), 0, 0] + 0.5 * rng.normal(size=200_000)
    assert float(found.std[0, 0]) == pytest.approx(drawn.std(), rel=0.01)


def test_one_sample_and_refusals() -> None:
    found = lines(1).regress(torch.randn(5, 3), device="cpu")
    assert float(found.epistemic.abs().max()) == 0.0
    assert found.samples == 1
    with pytest.raises(ValueError, match=r"use posterior\.regress"):
        lines(1).predict(torch.randn(5, 3))
    with pytest.raises(ValueError, match="use predict"):
        Posterior([nn.Linear(3, 2)], nn.Linear(3, 2)).regress(torch.randn(5, 3))
    with pytest.raises(ValueError, match="no samples"):
        lines(2)[:0].regress(torch.randn(5, 3))
    with pytest.raises(RuntimeError, match="NaN"):
        lines(1).regress(torch.full((2, 3), float("nan")), device="cpu")
