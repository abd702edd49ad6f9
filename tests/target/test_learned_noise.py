"""Likelihoods with learned noise: densities in the user's units, shapes, and the prior of the noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from atmc import likelihoods, priors
from atmc.common.errors import InputError
from atmc.nn.with_noise import WithNoise
from atmc.target.likelihoods.learned_noise import LocationScale


def test_the_density_is_that_of_the_targets_themselves() -> None:
    torch.manual_seed(0)
    outputs, y = torch.randn(7, 4, dtype=torch.float64), 3 * torch.randn(7, 2, dtype=torch.float64)
    center, spread = torch.tensor([5.0, -2.0]), torch.tensor([0.1, 30.0])
    mean, scale = outputs[:, :2] * spread + center, outputs[:, 2:].exp() * spread
    known = {"center": center.tolist(), "spread": spread.tolist()}
    normal = -torch.distributions.Normal(mean, scale).log_prob(y).sum(1)
    student = -torch.distributions.StudentT(5.0, mean, scale).log_prob(y).sum(1)
    for law, want in (
        (likelihoods.LearnedNoise(**known), normal),
        (likelihoods.Heteroscedastic(**known), normal),
        (likelihoods.StudentT(**known, df=5), student),
        (likelihoods.InputNoise(**known, df=5), student),
    ):
        torch.testing.assert_close(law.nll(outputs, y), want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(law.predict(outputs), mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(law.noise(outputs), scale, rtol=1e-6, atol=1e-6)
        many = torch.stack([outputs, 2 * outputs])  # samples first
        torch.testing.assert_close(law.predict(many)[0], mean, rtol=1e-6, atol=1e-6)


def test_targets_of_one_number_have_no_axis_and_large_ones_keep_their_digits() -> None:
    law = likelihoods.LearnedNoise(center=1e7, spread=1.0)
    y = 1e7 + torch.tensor([0.25, -0.5], dtype=torch.float64)
    outputs = torch.zeros(2, 2)
    assert law.predict(outputs).shape == law.noise(outputs).shape == (2,)
    want = 0.5 * torch.tensor([0.25, -0.5]).square() + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(law.nll(outputs, y), want)
    torch.testing.assert_close(law.nll(outputs, y[:, None]), want)


def test_outputs_far_from_the_data_stay_finite() -> None:
    law = likelihoods.Heteroscedastic(center=0.0, spread=1.0)
    outputs = torch.tensor([[0.0, -500.0], [0.0, 500.0]], requires_grad=True)
    found = law.nll(outputs, torch.tensor([1.0, 1.0]))
    found.sum().backward()
    assert bool(torch.isfinite(found).all() and torch.isfinite(outputs.grad).all())


def test_the_network_gets_one_log_scale_for_each_number_with_a_weak_prior_of_its_own() -> None:
    law = likelihoods.LearnedNoise(center=[1.0, 2.0], spread=[1.0, 1.0])
    model = law.network(nn.Linear(3, 2))
    assert isinstance(model, WithNoise)
    assert law.network(model) is model
    x = torch.randn(5, 3)
    torch.testing.assert_close(model(x)[:, :2], model.network(x))
    assert model(x).shape == (5, 4)
    for rule in (priors.gaussian(0.1), priors.normalised(), priors.resnetpp()):
        assert rule.assign(model)["log_scale"] == priors.Normal(3.0)
    ours = priors.gaussian(0.1).override(priors.Normal(0.5), name="log_scale").assign(model)
    assert ours["log_scale"] == priors.Normal(0.5)
    assert ours["network.weight"] == priors.Normal(0.1)
    two = nn.Linear(3, 4)
    assert likelihoods.Heteroscedastic(center=0.0, spread=1.0).network(two) is two


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"center": 1.0}, "both be a number"),
        ({"center": [1.0, 2.0], "spread": [1.0]}, "lists of one length"),
        ({"center": 1.0, "spread": 0.0}, "must be positive"),
        ({"center": "x", "spread": 1.0}, "must be a number"),
        ({"center": float("nan"), "spread": 1.0}, "must be finite"),
    ],
)
def test_wrong_units_are_one_line(bad: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        likelihoods.LearnedNoise(**bad)  # type: ignore[arg-type]


def test_wrong_shapes_and_degrees_are_one_line() -> None:
    law: LocationScale = likelihoods.Heteroscedastic()
    with pytest.raises(InputError, match=r"takes outputs \[batch, 2D\]"):
        law.check_shapes(torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(InputError, match=r"they must be \[4, 2\]"):
        law.check_shapes(torch.zeros(4, 4), torch.zeros(4))
    with pytest.raises(InputError, match="above 2"):
        likelihoods.StudentT(df=2)
