"""Wide and pre-activation ResNets and the network of the HMC benchmark: sizes, shapes, honesty, requests."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from atmc.common.errors import InputError
from atmc.nn import ResNetFRN, ResNetV2, WideResNet, build, check, resnet_frn, wide_resnet
from atmc.nn.normalisation import NormAct
from atmc.nn.standardisation import WSConv2d

NORMS = ["gn-ws", "evonorm-s0", "frn", "bn"]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("depth", "width", "known"), [(16, 4, 2_748_890), (28, 10, 36_479_194), (40, 2, 2_243_546)])
def test_published_sizes(depth: int, width: int, known: int) -> None:
    """The 2.7 M, 36.5 M and 2.2 M of the paper, to the last parameter."""
    with torch.device("meta"):
        assert count(WideResNet(depth, width, norm="bn")) == known


@pytest.mark.parametrize(("depth", "known"), [(18, 11_687_720), (34, 21_795_880), (50, 25_549_352), (101, 44_541_480)])
def test_imagenet_sizes(depth: int, known: int) -> None:
    """V1's sizes less what the norms differ by: none on shortcuts, one at the end instead of one after the stem."""
    with torch.device("meta"):
        assert count(ResNetV2(depth, classes=1000, norm="bn")) == known


def test_resnet_d_is_its_formula() -> None:
    """A stem of three convolutions, and shortcuts that are pooled where others have a stride; odd sides too."""
    torch.manual_seed(0)
    model = ResNetV2(18, 16, norm="gn-ws", variant="d").double()
    images = torch.randn(2, 3, 45, 37, dtype=torch.float64)
    x = model.stem(images)
    for norm, conv in zip(model.stem_norms, model.stem_convs, strict=True):
        x = conv(norm(x))
    x = F.max_pool2d(x, 3, 2, 1)
    for block in model.blocks:
        y = block.norms[0](x)
        if block.project is not None:
            assert block.project.stride == (1, 1)
            short = block.project(F.avg_pool2d(y, 2, ceil_mode=True) if block.convs[0].stride == (2, 2) else y)
        else:
            short = x
        x = short + block.convs[1](block.norms[1](block.convs[0](y)))
    torch.testing.assert_close(model(images), model.head(model.norm(x).mean((2, 3))))
    with torch.device("meta"):
        assert count(ResNetV2(50, classes=1000, norm="bn", variant="d")) == 25_549_352 + 19_232


def test_resnet_d_asks_for_a_network_that_it_can_be() -> None:
    with pytest.raises(InputError, match="variant 'd' is for depths 18, 34, 50 and 101"):
        build("resnet-v2", depth=14, variant="d")
    with pytest.raises(InputError, match="variant 'd' is for depths 18, 34, 50 and 101"):
        build("resnet-v2", depth=18, small_input=True, variant="d")
    with pytest.raises(InputError, match="variant must be 'd', or left out, not 'e'"):
        build("resnet", depth=18, variant="e")
    with pytest.raises(InputError, match="variant 'd' has shortcuts with projections"):
        build("resnet", depth=18, shortcut="pad", variant="d")


def test_the_network_of_the_hmc_benchmark() -> None:
    model = resnet_frn()
    assert count(model) == 274_042
    norms = [module for module in model.modules() if isinstance(module, NormAct)]
    assert len(norms) == 19 + 2
    assert all(norm.threshold is not None for norm in norms)
    assert all(module.bias is not None for module in model.modules() if isinstance(module, nn.Conv2d))


def test_the_hmc_network_is_its_formula() -> None:
    """Against the same layers written with torch's own operations, one after the other."""
    torch.manual_seed(0)
    model = resnet_frn(8, 8).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))

    def layer(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        z = part.conv(x)
        z = z / (z.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
        z = z * part.norm.gain.view(1, -1, 1, 1) + part.norm.bias.view(1, -1, 1, 1)
        return torch.maximum(z, part.norm.threshold.view(1, -1, 1, 1))

    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x = F.silu(layer(model.stem, images))
    for block in model.blocks:
        shortcut = x if block.project is None else layer(block.project, x)
        x = F.silu(shortcut + layer(block.second, F.silu(layer(block.first, x))))
    torch.testing.assert_close(model(images), model.head(x.mean((2, 3))))


@pytest.mark.parametrize("norm", ["evonorm-s0", "frn", "bn", "gn-ws"])
def test_a_wide_resnet_is_its_formula(norm: str) -> None:
    torch.manual_seed(0)
    model = WideResNet(16, 1, norm=norm).double()
    x = model.stem(images := torch.randn(2, 3, 8, 8, dtype=torch.float64))
    for block in model.blocks:
        y = block.norms[0](x)
        x = (x if block.project is None else block.project(y)) + block.convs[1](block.norms[1](block.convs[0](y)))
    torch.testing.assert_close(model(images), model.head(model.norm(x).mean((2, 3))))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("make", [lambda n: WideResNet(10, 1, norm=n), lambda n: ResNetV2(14, 8, norm=n)])
def test_precision_and_independence(make, norm: str) -> None:
    torch.manual_seed(0)
    model = make(norm)
    x = torch.randn(4, 3, 32, 32)
    other = torch.cat([x[:1], torch.randn(3, 3, 32, 32)])
    with torch.no_grad():
        logits = model(x)
        apart = (logits[0] - model(other)[0]).abs().max()
        half = model.eval()(x.bfloat16())
    assert logits.shape == (4, 10)
    assert half.dtype == torch.float32
    assert (apart > 1e-3) if norm == "bn" else (apart < 1e-5)
    assert bool(check(model.train(), x)) == (norm == "bn")
    if norm != "bn":
        assert (half - logits).abs().max() < 0.1 * logits.abs().max()


@pytest.mark.parametrize("depth", [18, 50])
def test_large_images_shrink_by_thirty_two(depth: int) -> None:
    keep: list[torch.Tensor] = []
    assert ResNetV2(depth, 4, classes=7)(torch.randn(2, 3, 64, 64), keep).shape == (2, 7)
    assert [keep[0].shape[-1], keep[-1].shape[-1]] == [16, 2]


def test_all_inputs_of_a_standardised_layer_have_unit_variance_at_the_start() -> None:
    """A stream that starts at variance one, to which every block adds one."""
    torch.manual_seed(0)
    keep: list[torch.Tensor] = []
    WideResNet(16, 4)(torch.randn(8, 3, 32, 32), keep)
    assert [round(s.var().item()) for s in keep] == [1, 2, 3, 2, 3, 2, 3]


@pytest.mark.parametrize("model", [WideResNet(10, 1), ResNetV2(8, 4, norm="frn", activation="tlu"), ResNetFRN(8, 4)])
def test_a_network_remembers_how_it_was_made(model: nn.Module) -> None:
    made = json.loads(json.dumps(model.made_by))
    twin = build(made["build"], **made["args"])
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(twin(x), model(x))


def test_learns() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(32, 3, 8, 8), torch.randint(10, (32,))
    for norm in NORMS:
        model = wide_resnet(10, 1, norm=norm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        assert loss < 1.0, norm


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wide-resnet", {"depth": 20}, r"6n\+4"),
        ("wide-resnet", {"width": 0}, "at least 1"),
        ("wide-resnet", {"norm": "layer"}, "norm must be one of gn-ws, evonorm-s0, frn, bn, not 'layer'"),
        ("resnetpp", {"depth": 8, "norm": "gn-ws"}, "norm must be one of None, frn, not 'gn-ws'"),
        ("wide-resnet", {"activation": "selu"}, "activation must be one of"),
        ("wide-resnet", {"activation": "tlu"}, "belongs to norm 'frn'"),
        ("wide-resnet", {"nrom": "bn"}, "has no option 'nrom'; did you mean norm"),
        ("resnet-v2", {"depth": 9}, r"6n\+2"),
        ("resnet-frn", {"depth": 50}, r"6n\+2"),
        ("wide-resnett", {}, "did you mean wide-resnet"),
    ],
)
def test_bad_requests(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernels need a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "model", [WideResNet(10, 2), WideResNet(10, 2, norm="evonorm-s0"), ResNetV2(8, norm="frn"), ResNetFRN(8)]
)
def test_gradients_on_the_gpu(model: nn.Module, compiled: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    wide, own = copy.deepcopy(model).double(), copy.deepcopy(model).cuda()
    F.cross_entropy(wide(x.double()), y).backward()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(own(x), y)

    with torch.backends.cudnn.flags(allow_tf32=False):
        (torch.compile(loss, dynamic=False, fullgraph=True) if compiled else loss)(x.cuda(), y.cuda()).backward()
    for (name, p), q in zip(own.named_parameters(), wide.parameters(), strict=True):
        assert (p.grad.double().cpu() - q.grad).norm() / q.grad.norm() < 1e-3, name
    assert any(isinstance(module, WSConv2d | NormAct) for module in own.modules())
