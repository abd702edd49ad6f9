"""The ordinary ResNet: known sizes, initialisation, precision, shortcuts, filter response normalisation."""

import math

import pytest
import torch
from torch import nn

from atmc.nn import FilterResponseNorm2d, resnet, resnetpp
from atmc.nn.resnet import PadShortcut


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("depth", "known"), [(20, 269_722), (56, 853_018), (110, 1_727_962)])
def test_cifar_sizes(depth: int, known: int) -> None:
    """The published 0.27 M, 0.85 M and 1.7 M, to the last parameter (parameter-free shortcuts)."""
    assert count(resnet(depth, 16)) == known


@pytest.mark.parametrize(("depth", "known"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160)])
def test_imagenet_sizes(depth: int, known: int) -> None:
    """Those of torchvision's networks."""
    with torch.device("meta"):
        assert count(resnet(depth, classes=1000)) == known


def test_resnet_d_is_its_formula_and_has_its_size() -> None:
    """25,576,264 parameters of ResNet-50-D; a stem of three convolutions, pooled shortcuts, odd sides too."""
    with torch.device("meta"):
        assert count(resnet(50, classes=1000, variant="d")) == 25_576_264
    torch.manual_seed(0)
    model = resnet(18, 8, variant="d").double().eval()
    images = torch.randn(2, 3, 45, 37, dtype=torch.float64)
    x = model.stem(images)
    for norm, conv in zip(model.stem_norms, model.stem_convs, strict=True):
        x = conv(norm(x).relu())
    x = nn.functional.max_pool2d(model.stem_norm(x).relu(), 3, 2, 1)
    for block in model.blocks:
        h = block.norms[1](block.convs[1](block.norms[0](block.convs[0](x)).relu()))
        if block.project is not None:
            x = nn.functional.avg_pool2d(x, 2, ceil_mode=True) if block.convs[0].stride == (2, 2) else x
            x = block.project_norm(block.project(x))
        x = (x + h).relu()
    torch.testing.assert_close(model(images), model.head(x.mean((2, 3))))


def test_resnetpp_sizes() -> None:
    """About the same as its sibling: a scale and a bias instead of BatchNorm's two, fewer biases, two projections."""
    assert count(resnetpp(56, 32)) == pytest.approx(count(resnet(56, 32)), rel=0.01)
    assert count(resnetpp(50, classes=1000)) == pytest.approx(25_557_032, rel=0.01)
    # 55 convolutions and 2 projections of direction and scale, 28 + 2 biases, the head.
    model = resnetpp(8, 4)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert shapes["blocks.1.convs.0.direction"] == (8, 4, 3, 3)
    assert shapes["blocks.1.convs.0.scale"] == shapes["blocks.1.convs.0.bias"] == (8,)
    assert shapes["blocks.1.project.direction"] == (8, 4, 1, 1)
    assert "blocks.1.convs.1.bias" not in shapes
    assert shapes["head.direction"] == (10, 16)


def test_xavier_start() -> None:
    torch.manual_seed(0)
    weight = resnet(20, 64).blocks[-1].convs[0].weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * (256 + 256))), rel=0.02)


@pytest.mark.parametrize("make", [resnet, resnetpp])
@pytest.mark.parametrize(("depth", "size"), [(8, 8), (14, 32), (18, 64), (50, 64)])
def test_shapes_and_precision(make, depth: int, size: int) -> None:
    model = make(depth, 4, classes=7, in_channels=1).eval()
    x = torch.randn(2, 1, size, size)
    with torch.no_grad():
        full = model(x)
        half = model(x.bfloat16())
    assert full.shape == (2, 7)
    assert full.dtype == half.dtype == torch.float32
    assert (full - half).abs().max() < 0.1 * full.abs().max() + 0.05
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_pad_shortcut_subsamples_and_pads() -> None:
    x = torch.randn(2, 3, 4, 4)
    y = PadShortcut(2, 3)(x)
    torch.testing.assert_close(y[:, 1:4], x[:, :, ::2, ::2])
    assert not y[:, 0].any()
    assert not y[:, 4:].any()


def test_small_input_changes_the_stem_only() -> None:
    assert resnet(18, 4, small_input=True).stem.kernel_size == (3, 3)
    assert resnet(18, 4).stem.kernel_size == (7, 7)
    assert resnetpp(18, 4, small_input=True).stem.kernel_size == (3, 3)


@pytest.mark.parametrize("depth", [7, 2, 21, 100])
def test_impossible_depths(depth: int) -> None:
    with pytest.raises(ValueError, match=r"6n\+2"):
        resnet(depth)


def test_batchnorm_couples_examples_and_frn_does_not() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    other = torch.cat([x[:1], torch.randn(3, 3, 8, 8)])
    with torch.no_grad():
        coupled = resnet(8, 4)
        assert (coupled(x)[0] - coupled(other)[0]).abs().max() > 1e-3
        for model in (resnet(8, 4, norm="frn"), resnetpp(8, 4), resnetpp(8, 4, norm="frn")):
            torch.testing.assert_close(model(x)[0], model(other)[0])


def test_batchnorm_learns_running_statistics() -> None:
    model = resnet(8, 4)
    x = 3 * torch.randn(16, 3, 8, 8)
    for _ in range(50):
        model(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.eval()(x), rtol=0.05, atol=0.1)


def test_filter_response_norm() -> None:
    layer = FilterResponseNorm2d(3)
    x = torch.randn(2, 3, 5, 5) * torch.tensor([0.1, 1.0, 10.0]).view(1, 3, 1, 1)
    normalised = x / x.square().mean((2, 3), keepdim=True).sqrt()
    torch.testing.assert_close(layer(x), normalised.clamp_min(0), rtol=1e-3, atol=1e-3)
    free = FilterResponseNorm2d(3, threshold=False, gain=0.5)
    torch.testing.assert_close(free(x), 0.5 * normalised, rtol=1e-3, atol=1e-3)
    assert torch.autograd.gradcheck(layer.double(), torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True))


def test_unknown_norm() -> None:
    with pytest.raises(ValueError, match="norm must be"):
        resnet(8, norm="layer")
    with pytest.raises(ValueError, match="norm must be"):
        resnetpp(8, norm="bn")
