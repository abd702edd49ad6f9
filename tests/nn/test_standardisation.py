"""Weight standardisation: what it does to a filter, how it starts, and all weights of a network at once."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.nn import WNConv2d, WSConv2d, effective_weights
from atmc.nn.standardisation import gain_for, standardise, standardised_weights
from atmc.nn.weightnorm import CastConv2d

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernels need a CUDA device")


def test_filters_are_centred_and_have_the_gain_for_their_length() -> None:
    layer = WSConv2d(5, 7, 3, gain=1.5)
    weight = layer.effective()
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.square().sum((1, 2, 3)), torch.full((7,), 2.25))


def test_the_function_ignores_length_and_mean_of_a_filter() -> None:
    layer, x = WSConv2d(3, 4, 3, padding=1), torch.randn(2, 3, 6, 6)
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(7).add_(0.3)
    torch.testing.assert_close(layer(x), before, rtol=1e-4, atol=1e-5)
    layer(x).square().sum().backward()
    inward = (layer.weight.grad * layer.weight).sum((1, 2, 3))  # along the filter itself the loss is flat
    assert inward.abs().max() < 1e-4 * layer.weight.grad.norm() * layer.weight.norm()


@pytest.mark.parametrize(("activation", "act"), [("relu", F.relu), ("silu", F.silu), ("identity", lambda z: z)])
def test_gains_keep_the_variance(activation: str, act) -> None:
    z = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    z = math.sqrt(2) * torch.erfinv(2 * z - 1)
    assert gain_for(activation) ** 2 * act(z).var().item() == pytest.approx(1, rel=0.02)


def test_gradients() -> None:
    weight, gain = torch.randn(3, 2, 2, 2).double(), torch.randn(3).double()
    assert torch.autograd.gradcheck(standardise, (weight.requires_grad_(), gain.requires_grad_()))


def test_reset_draws_anew_and_keeps_the_parameters() -> None:
    layer = WSConv2d(4, 4, 3, gain=1.2, bias=True)
    held = dict(layer.named_parameters())
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.gain.zero_()
    layer.reset_parameters()
    assert all(held[name] is parameter for name, parameter in layer.named_parameters())
    assert not torch.equal(before, layer.weight)
    torch.testing.assert_close(layer.gain.detach(), torch.full((4,), 1.2))


def test_a_filter_of_one_number_is_refused() -> None:
    with pytest.raises(ValueError, match="two numbers or more"):
        WSConv2d(1, 4, 1)


def assorted(device: str = "cpu") -> list[CastConv2d]:
    torch.manual_seed(0)
    layers = [WSConv2d(3, 8, 3), WSConv2d(64, 10, 1, 2), CastConv2d(5, 7, 3, bias=False), WSConv2d(200, 6, 3)]
    for layer in layers:
        layer.to(device)
        if isinstance(layer, WSConv2d):
            torch.nn.init.normal_(layer.gain)
    return layers


def test_all_at_once_is_layer_by_layer() -> None:
    layers = assorted()
    for layer, weight in zip(layers, standardised_weights(layers, torch.float32), strict=True):
        torch.testing.assert_close(weight, layer.effective())
    for layer, weight in zip(layers, effective_weights(layers), strict=True):  # what other networks call
        torch.testing.assert_close(weight, layer.effective())
    other = WNConv2d(3, 4, 3, scale=2.0)
    torch.testing.assert_close(standardised_weights([other], torch.float32)[0], other.effective())
    assert standardised_weights([], torch.float32) == []
    assert {w.dtype for w in standardised_weights(layers, torch.bfloat16)} == {torch.bfloat16}


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_fused_weights_and_gradients(dtype: torch.dtype, limit: float) -> None:
    layers = assorted("cuda")
    pairs = [(layer.weight, getattr(layer, "gain", None)) for layer in layers]
    leaves = [p for pair in pairs for p in pair if p is not None]
    outs = standardised_weights(layers, dtype)
    seeds = [torch.randn_like(out) for out in outs]
    got = [*outs, *torch.autograd.grad(outs, leaves, seeds, retain_graph=True)]
    doubled = [[None if p is None else p.detach().double().requires_grad_() for p in pair] for pair in pairs]
    reference = [standardise(*pair) for pair in doubled]
    wide = [p for pair in doubled for p in pair if p is not None]
    want = [*reference, *torch.autograd.grad(reference, wide, [seed.double() for seed in seeds])]
    for a, b in zip(got, want, strict=True):
        assert relative(a, b) < limit
    for out in outs:
        assert out.is_contiguous(memory_format=torch.channels_last)
    twice = torch.autograd.grad(outs, leaves, seeds, create_graph=True)
    for a, b, leaf in zip(twice, want[len(outs) :], leaves, strict=True):
        assert relative(a, b) < limit
        assert a.requires_grad is (leaf is not layers[2].weight)  # a weight that is only cast has a constant gradient


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach()).norm() / b.detach().norm())
