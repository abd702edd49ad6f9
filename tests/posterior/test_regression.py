"""The predictive of a regression against the mixture it is, and refusals both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from atmc.common.errors import InputError
from atmc.posterior import Posterior
from atmc.posterior.regression import summary
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


def test_scores_are_those_of_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """RMSE and density written out, coverage by the quantiles of draws."""
    posterior = lines(4).weighted([1.0, 2.0, 3.0, 4.0])
    x, y = torch.randn(40, 3), 1.5 * torch.randn(40, 2)
    found = posterior.evaluate(x, y, device="cpu", batch_size=7)
    w, f = np.array([0.1, 0.2, 0.3, 0.4]), np.stack([m(x).detach().double().numpy() for m in posterior])
    true = y.double().numpy()

    def density(of: np.ndarray) -> np.ndarray:
        return (np.exp(-(((true - of) / 0.5) ** 2) / 2) / np.sqrt(2 * np.pi * 0.25)).prod(axis=1)

    assert found["samples"] == 4
    assert found["predictive"]["rmse"] == pytest.approx(np.sqrt(((np.tensordot(w, f, 1) - true) ** 2).mean()), rel=1e-5)
    assert found["single"]["rmse"] == pytest.approx(np.sqrt(((f[-1] - true) ** 2).mean()), rel=1e-5)
    mixed = sum(w[k] * density(f[k]) for k in range(4))
    assert found["predictive"]["nll"] == pytest.approx(-np.log(mixed).mean(), rel=1e-5)
    assert found["single"]["nll"] == pytest.approx(-np.log(density(f[-1])).mean(), rel=1e-5)
    rng = np.random.default_rng(0)
    drawn = f[rng.choice(4, size=40_000, p=w)] + 0.5 * rng.normal(size=(40_000, 40, 2))
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    assert abs(found["predictive"]["coverage90"] - ((low <= true) & (true <= high)).mean()) <= 1 / 80
    wide = 1.6448536 * 0.5
    assert found["single"]["coverage90"] == pytest.approx((np.abs(true - f[-1]) <= wide).mean())
    alone = [posterior[k : k + 1].evaluate(x, y, device="cpu")["single"] for k in range(4)]
    for name, value in found["mean_single"].items():
        assert value == pytest.approx(sum(w[k] * alone[k][name] for k in range(4)))
    monkeypatch.setattr("atmc.posterior.regression.AT_ONCE", 30)  # some examples at a time: the same scores
    again = posterior.evaluate(x, y, device="cpu")["predictive"]
    assert again == pytest.approx(found["predictive"])


def test_the_interval_is_that_of_the_weighted_mixture() -> None:
    """At two σ of the one that counts: 0.99 Φ(2) > 0.95, though half of the samples are far above."""
    outputs, targets = np.array([[0.0], [10.0]]), np.array([2.0])
    assert summary(outputs, targets, 1.0, [99.0, 1.0])["predictive"]["coverage90"] == 0.0
    assert summary(outputs, targets, 1.0)["predictive"]["coverage90"] == 1.0


def test_the_density_is_the_likelihoods_own() -> None:
    posterior = lines(1)
    x, y = torch.randn(30, 3), torch.randn(30, 2)
    own = posterior.likelihood.nll(posterior[0](x), y).mean().detach()
    assert posterior.evaluate(x, y, device="cpu")["predictive"]["nll"] == pytest.approx(float(own), rel=1e-5)


def test_targets_that_obey_the_model_are_covered_and_the_right_noise_has_the_best_density() -> None:
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    x = torch.randn(4000, 3)
    y = model(x).detach() + 0.5 * torch.randn(4000, 1)
    scores = {
        s: Posterior([model], model, likelihood=Gaussian(s)).evaluate(x, y)["predictive"] for s in (0.4, 0.5, 0.6)
    }
    assert abs(scores[0.5]["coverage90"] - 0.9) < 4 * (0.9 * 0.1 / 4000) ** 0.5
    assert min(scores, key=lambda s: scores[s]["nll"]) == 0.5
    assert scores[0.4]["coverage90"] < 0.87
    assert scores[0.6]["coverage90"] > 0.93


def test_outputs_without_a_second_axis_and_far_targets() -> None:
    flat = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    posterior = Posterior([flat, flat], flat, likelihood=Gaussian(0.1))
    far = posterior.evaluate(torch.randn(5, 3), torch.full((5,), 1e3), device="cpu")["predictive"]
    assert far["nll"] == pytest.approx(0.5 * (1e3 / 0.1) ** 2, rel=0.01)  # no underflow to infinity
    assert far["coverage90"] == 0


def test_evaluate_refuses_targets_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"targets of shape \[5\] for outputs of shape \[5, 2\]"):
        lines(2).evaluate(torch.randn(5, 3), torch.randn(5))
    with pytest.raises(InputError, match="targets hold NaN"):
        lines(2).evaluate(torch.randn(5, 3), torch.full((5, 2), float("nan")))


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
