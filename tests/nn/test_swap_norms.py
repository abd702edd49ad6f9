"""GroupNorm and weight standardisation for BatchNorm: what is kept, how near the new network begins, and refusals."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from atmc.nn import NormAct, WideResNet, WSConv2d, check, convert, resnet


def trained(model: nn.Module, steps: int = 30) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network that knows two classes of noisy images."""
    torch.manual_seed(0)
    y = torch.arange(64) % 2
    x = torch.randn(64, 3, 16, 16) + (2.0 * y - 1).view(-1, 1, 1, 1) * torch.linspace(-1, 1, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, x, y


@pytest.mark.parametrize("make", [lambda: resnet(8, 16, classes=2), lambda: WideResNet(10, 1, classes=2, norm="bn")])
@pytest.mark.parametrize("with_example", [False, True])
def test_starts_near_and_tunes_fast(make, with_example: bool) -> None:
    torch.manual_seed(0)
    model, x, y = trained(make())
    new = convert(model, x if with_example else None, to="gn-ws")
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in new.modules())
    assert not check(new, x)
    assert not hasattr(new, "made_by")
    # It has the old filters, so a few small steps, which teach a fresh network nothing, bring it back.
    optimizer = torch.optim.SGD(new.parameters(), lr=0.005, momentum=0.9)
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(new(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        assert (new(x).argmax(1) == y).float().mean() > 0.95


def test_weights_are_kept() -> None:
    model, _, _ = trained(resnet(8, 16, classes=2), 5)
    model.blocks[0].convs[0].weight.requires_grad_(False)
    new = convert(model, to="gn-ws")
    conv, norm = new.blocks[0].convs[0], new.blocks[0].norms[0]
    assert isinstance(conv, WSConv2d)
    assert isinstance(norm, NormAct)
    torch.testing.assert_close(conv.weight.data, model.blocks[0].convs[0].weight.data)
    torch.testing.assert_close(norm.gain, model.blocks[0].norms[0].weight)
    torch.testing.assert_close(norm.bias, model.blocks[0].norms[0].bias)
    assert not conv.weight.requires_grad
    assert conv.gain.requires_grad
    assert isinstance(model.blocks[0].norms[0], nn.BatchNorm2d)  # the original is untouched
    assert new.training == model.training


def test_an_example_normalises_the_channels() -> None:
    """On the example, every convolution that a norm follows has outputs of mean 0 and variance 1."""
    model, x, _ = trained(resnet(8, 16, classes=2))
    new = convert(model, x, to="gn-ws")
    seen = []
    for block in new.blocks:
        # From the layer's own weight: a network that hands it another would show here.
        block.convs[0].register_forward_hook(lambda conv, given, _: seen.append(conv.forward(given[0])))
    with torch.no_grad():
        new(x)
    for out in seen:
        torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(out.shape[1]), atol=1e-3, rtol=0)
        torch.testing.assert_close(out.var((0, 2, 3)), torch.ones(out.shape[1]), atol=2e-2, rtol=0)


def test_torchs_own_layers_and_dropout() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten()
    )
    with pytest.warns(UserWarning, match="dropout was switched off"):
        new = convert(model, to="gn-ws")
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(new(x), new(x))
    assert not check(new, x)


class Twice(nn.Module):
    """The same convolution and the same norm at two places."""

    def __init__(self) -> None:
        super().__init__()
        conv, norm = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.first, self.again = nn.Sequential(conv, norm), nn.Sequential(conv, norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.again(self.first(x)), 0.1, self.training)


def test_shared_layers_stay_shared() -> None:
    with pytest.warns(UserWarning, match="calls dropout as a function"):
        new = convert(Twice(), to="gn-ws")
    assert new.first[0] is new.again[0]
    assert new.first[1] is new.again[1]
    assert isinstance(new.first[0], WSConv2d)
    assert isinstance(new.first[1], NormAct)
    assert not [found for found in check(new, torch.randn(4, 3, 8, 8)) if "BatchNorm" in str(found)]


class Calls(nn.Sequential):
    """BatchNorm as a function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(super().forward(x), None, None, training=True)


@pytest.mark.parametrize(
    ("model", "to", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "gn-ws", r"'1' \(BatchNorm1d\) cannot become GroupNorm"),
        (nn.Linear(4, 4), "gn-ws", "no BatchNorm to exchange"),
        (Calls(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), "gn-ws", "calls F.batch_norm itself"),
        (nn.Linear(4, 4), "layernorm", "to must be 'weight-norm' or 'gn-ws', not 'layernorm'"),
    ],
)
def test_refusals(model: nn.Module, to: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(model, to=to)
