"""The gradient of each example of our own networks, which may not depend on what a GPU wants of layouts."""

from typing import Any

import pytest
import torch

import atmc
from atmc.nn import build, norm_functions, standardisation
from atmc.target.example_gradients import example_gradients

NETWORKS: list[dict[str, Any]] = [
    {"name": "resnet-frn", "depth": 8, "width": 4},
    {"name": "wide-resnet", "depth": 10, "width": 1, "norm": "gn-ws"},
    {"name": "resnetpp", "depth": 8, "width": 4},
]


@pytest.mark.parametrize("settings", NETWORKS, ids=lambda settings: settings["name"])
def test_of_our_networks_also_as_on_a_gpu(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """There convolutions are given channels-last images, and torch.func knows no such layout."""
    torch.manual_seed(0)
    model, likelihood = build(**settings), atmc.likelihoods.Categorical()
    x, y = torch.randn(3, 3, 8, 8), torch.tensor([0, 3, 7])
    for module in (norm_functions, standardisation):
        monkeypatch.setattr(module, "enabled", False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    nll, _, found = example_gradients(model, likelihood, x, y, 2.0)
    monkeypatch.undo()
    (2.0 * likelihood.nll(model(x), y).sum()).backward()
    torch.testing.assert_close(nll, likelihood.nll(model(x), y))
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(found[name].sum(0), p.grad, rtol=1e-3, atol=1e-4, msg=name)
