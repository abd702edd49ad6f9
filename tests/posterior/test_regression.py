"""The predictive of a regression against the mixture it is, and refusals both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from atmc.errors import InputError
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


def test_inputs_of_the_wrong_width_are_told_the_right_one() -> None:
    with pytest.raises(InputError, match=r"each input has the shape \[2\], but the network takes \[3\]"):
        lines(2).regress(torch.zeros(5, 2), device="cpu")


def test_evaluate_is_for_classes_and_names_regress() -> None:
    with pytest.raises(InputError, match=r"evaluate scores probabilities of classes.*use posterior\.regress"):
        lines(2).evaluate(torch.randn(5, 3), torch.randn(5, 2))


def test_printed_it_is_one_line_with_the_variances() -> None:
    found = lines(4).regress(torch.randn(300, 3), device="cpu")
    own = float(found.epistemic.mean())
    assert repr(found) == (
        "Estimate(300 examples, 2 outputs, 4 samples; "
        f"mean variance {0.25 + own:.3g}, of which aleatoric 0.25 and epistemic {own:.3g})"
    )
    single = Posterior([nn.Flatten(0)], nn.Flatten(0), likelihood=Gaussian(2.0)).regress(torch.zeros(1, 1))
    assert repr(single).startswith("Estimate(1 example, 1 output, 1 sample; mean variance 4,")
    assert len(found) == 300
