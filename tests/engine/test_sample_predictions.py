"""Scores of a progress line are those that `atmc evaluate` finds: two computations of one definition."""

import numpy as np
import pytest
import torch
from torch import nn

import atmc
from atmc.data import ImageData
from atmc.engine.sample_predictions import Evaluator
from atmc.posterior import metrics, regression


def data(x: torch.Tensor, y: torch.Tensor, classes: tuple[str, ...]) -> ImageData:
    return ImageData("made", "test", x, y, classes, (), (), "digest")


@pytest.mark.parametrize("size", [1.0, 300.0])  # at 300 wrong classes underflow to probabilities of exactly 0
def test_classes(size: float) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(200, 4), torch.randint(0, 3, (200,))
    model = nn.Linear(4, 3)
    judge = Evaluator(
        model, atmc.likelihoods.Categorical(), {"test": data(x, y, ("a", "b", "c"))}, torch.device("cpu"), 64
    )
    kept = []
    for _ in range(3):
        sample = {name: size * torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
        probs, scores = judge.add(sample)
        kept.append(probs["test"].numpy())
        expected = metrics.summary(np.stack(kept), y.numpy())
        for which in ("single", "predictive"):
            for name in ("accuracy", "nll"):
                assert scores["test"][which][name] == pytest.approx(expected[which][name], rel=1e-6)
    assert size == 1.0 or min(probs.min() for probs in kept) == 0


def test_numbers() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(50, 4), torch.randn(50, 1)
    model = nn.Linear(4, 1)
    judge = Evaluator(model, atmc.likelihoods.Gaussian(0.5), {"test": data(x, y, ())}, torch.device("cpu"), 64)
    outputs = []
    for _ in range(2):
        found, scores = judge.add({name: torch.randn_like(t) for name, t in model.state_dict().items()})
        outputs.append(found["test"])
    expected = regression.summary(torch.stack(outputs), y, 0.5)
    for which in ("single", "predictive"):
        assert scores["test"][which]["rmse"] == pytest.approx(expected[which]["rmse"], rel=1e-6)
