"""The weight-normalised layers: formula, gradients, start, and agreement with torch's layers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from atmc.nn import WNConv2d, WNLinear
from atmc.nn.weightnorm import CastConv2d, effective_weight


def test_weight_is_scale_times_unit_direction() -> None:
    layer = WNConv2d(5, 7, 3)
    with torch.no_grad():
        layer.direction.mul_(3.7)  # Its length must not matter.
        layer.scale.copy_(torch.linspace(-1, 2, 7))
    rows = layer.weight.flatten(1)
    torch.testing.assert_close(rows.norm(dim=1), layer.scale.abs())
    cosine = F.cosine_similarity(rows, layer.direction.flatten(1))
    torch.testing.assert_close(cosine, layer.scale.sign())


@pytest.mark.parametrize("shape", [(4, 3, 3, 2), (4, 6)])
def test_gradients(shape: tuple[int, ...]) -> None:
    direction = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(shape[0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(effective_weight, (direction, scale))
    assert torch.autograd.gradgradcheck(effective_weight, (direction, scale))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"padding": "same", "dilation": 2},
        {"groups": 2, "bias": False},
        {"padding": (1, 2), "padding_mode": "reflect"},
        {"padding": "same", "padding_mode": "circular"},
        {"padding": "same", "padding_mode": "replicate", "kernel_size": (2, 4)},
    ],
)
def test_convolution_agrees_with_torch(options: dict) -> None:
    options = {"kernel_size": 3, **options}
    plain = nn.Conv2d(4, 6, **options)
    ours = WNConv2d(4, 6, **options)
    ours.set_weight_(plain.weight, plain.bias)
    x = torch.randn(2, 4, 9, 8)
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-5, atol=1e-6)


def test_linear_agrees_with_torch_and_zero_rows_survive() -> None:
    plain = nn.Linear(5, 4)
    with torch.no_grad():
        plain.weight[2] = 0
    ours = WNLinear(5, 4)
    ours.set_weight_(plain.weight, plain.bias)
    x = torch.randn(3, 5)
    torch.testing.assert_close(ours(x), plain(x))
    ours(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters())


def test_scalar_bias_and_fixed_scale() -> None:
    layer = WNConv2d(3, 8, 3, bias="scalar", learn_scale=False)
    assert {name: p.numel() for name, p in layer.named_parameters()} == {"direction": 216, "bias": 1}
    with torch.no_grad():
        layer.bias.fill_(2.0)
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight) + 2.0)


def test_a_fresh_layer_keeps_the_mean_square() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 300) * 1.7 + 0.5  # Neither centred nor of unit variance.
    layer = WNLinear(300, 4000)
    torch.testing.assert_close(layer.direction.norm(dim=1), torch.ones(4000))  # where its prior is densest
    y = layer(x)
    assert (y.square().mean() / x.square().mean()).item() == pytest.approx(1, rel=0.05)
    g = torch.randn(64, 4000)
    back = g @ WNLinear(300, 4000).weight  # and, backwards, the sum of squares
    assert (back.square().sum() / g.square().sum()).item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("groups", [1, 4])
def test_a_plain_convolution_starts_as_xavier_says(groups: int) -> None:
    """√(2/(fan-in + fan-out)), of which groups have their share; 5 % are six standard errors of 9,216 draws."""
    torch.manual_seed(0)
    weight = CastConv2d(64, 64, 3, groups=groups).weight.detach()
    assert float(weight.std()) == pytest.approx((2 / (2 * 64 // groups * 9)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("layer", [WNConv2d(3, 4, 3), CastConv2d(3, 4, 3)])
def test_parameters_stay_float32_under_bf16(layer: nn.Module) -> None:
    x = torch.randn(2, 3, 6, 6, dtype=torch.bfloat16)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in layer.parameters())
    torch.testing.assert_close(y.float(), layer(x.float()), rtol=0.05, atol=0.05)


def test_a_given_weight_is_used() -> None:
    layer = WNConv2d(3, 4, 1, bias=False)
    x = torch.randn(1, 3, 2, 2)
    torch.testing.assert_close(layer(x, 2 * layer.weight), 2 * layer(x))


def test_state_dict_round_trip_and_deepcopy() -> None:
    layer = WNConv2d(3, 4, 3, learn_scale=False)
    other = WNConv2d(3, 4, 3, learn_scale=False)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.weight, copy.deepcopy(layer).weight)
    assert set(layer.state_dict()) == {"direction", "scale", "bias"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": "both"}, "bias must be"),
        ({"groups": 2}, "groups=2 must divide"),
        ({"padding": "full"}, "padding must be"),
    ],
)
def test_bad_arguments(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WNConv2d(3, 4, 3, **options)


def test_set_weight_wants_the_right_shape() -> None:
    with pytest.raises(ValueError, match="weight has shape"):
        WNLinear(3, 4).set_weight_(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="no bias"):
        WNLinear(3, 4, bias=False).set_weight_(torch.zeros(4, 3), torch.zeros(4))
