"""The rule for networks with normalisation layers: which scale where, and what it means for the length of a filter."""

import math

import pytest
import torch
from torch import nn

from atmc.common.errors import InputError
from atmc.nn import ResNetFRN, WideResNet
from atmc.target import Potential, priors
from atmc.target.priors import Normal


def test_scales() -> None:
    given = priors.normalised().assign(WideResNet(10, 1))
    assert given["blocks.0.convs.0.weight"] == Normal(math.sqrt(2) / math.sqrt(16 * 9))
    assert given["stem.weight"] == Normal(math.sqrt(2) / math.sqrt(27))
    assert given["stem.gain"] == Normal(2.0)
    assert given["norm.gain"] == given["norm.bias"] == given["head.bias"] == Normal(1.0)
    assert given["head.weight"] == Normal(4 / 8)
    frn = priors.normalised(0.5, gain_scale=3.0).assign(ResNetFRN(8, 4))
    assert frn["stem.norm.threshold"] == frn["stem.norm.gain"] == frn["stem.conv.bias"] == Normal(3.0)
    assert frn["stem.conv.weight"] == Normal(0.5 * math.sqrt(2) / math.sqrt(27))


def test_heads_are_found_by_their_usual_names() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleDict({"fc": nn.Linear(16, 4), "other": nn.Linear(16, 4)})
            self.classifier = nn.Linear(16, 4)

    given = priors.normalised(head=2.0).assign(Net())
    assert given["body.fc.weight"] == given["classifier.weight"] == Normal(0.5)
    assert given["body.other.weight"] == Normal(math.sqrt(2) / math.sqrt(16))


def test_by_name() -> None:
    model = WideResNet(10, 1)
    assert priors.build("normalised").assign(model).priors == priors.normalised().assign(model).priors
    assert priors.build("normalised", 0.5).assign(model).priors == priors.normalised(0.5).assign(model).priors
    with pytest.raises(InputError, match="did you mean normalised"):
        priors.build("normalized")


def test_only_the_prior_pulls_at_the_length_of_a_filter() -> None:
    """So the posterior of the length is the prior's: a radius of √2 at T = 1, which is where a network starts."""
    torch.manual_seed(0)
    model = WideResNet(10, 1).double()
    potential = Potential(model, num_data=1000, prior=priors.normalised())
    x, y = torch.randn(8, 3, 8, 8, dtype=torch.float64), torch.randint(10, (8,))
    potential(x, y).backward()
    for block in model.blocks:
        w = block.convs[0].weight
        along = (w.grad * w).sum((1, 2, 3))
        torch.testing.assert_close(along, (w.detach() ** 2).sum((1, 2, 3)) * w[0].numel() / 2, rtol=1e-5, atol=1e-6)
    drawn = priors.normalised().assign(model).sample(torch.Generator().manual_seed(0))
    length = drawn["blocks.2.convs.1.weight"].flatten(1).norm(dim=1)
    assert length.mean().item() == pytest.approx(math.sqrt(2), rel=0.02)
    assert model.blocks[2].convs[1].weight.flatten(1).norm(dim=1).mean().item() == pytest.approx(math.sqrt(2), rel=0.02)
