"""`convert` keeps the function: BatchNorm folded into weight-normalised layers, or left as a fixed affine map."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn import FrozenAffine, WNConv2d, WNLinear, check, convert, resnet, resnetpp


def with_history(model: nn.Module) -> nn.Module:
    """Every norm with statistics and an affine map as training would leave them, some gains negative."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            shape = module.running_mean.shape
            module.running_mean.copy_(torch.randn(shape, generator=generator))
            module.running_var.copy_(torch.rand(shape, generator=generator) + 0.5)
            if module.affine:
                module.weight.data.copy_(torch.randn(shape, generator=generator) * 0.5 + 0.7)
                module.bias.data.copy_(torch.randn(shape, generator=generator))
    return model


def vgg() -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width in (8, "pool", 16, 16, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    layers += [nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 5)]
    return nn.Sequential(*layers)


def outputs(model: nn.Module, converted: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return converted.train()(x), model.eval()(x)  # train() must make no difference to what was converted


def kinds(model: nn.Module) -> set[type]:
    return {type(module) for module in model.modules()}


@pytest.mark.parametrize("shortcut", ["pad", "projection"])
def test_resnet(shortcut: str) -> None:
    torch.manual_seed(0)
    model = with_history(resnet(20, 8, shortcut=shortcut))
    converted = convert(model)
    torch.testing.assert_close(*outputs(model, converted, torch.randn(4, 3, 16, 16)), rtol=1e-4, atol=1e-4)
    assert check(converted.train()) == []
    assert not kinds(converted) & {nn.BatchNorm2d, FrozenAffine}
    assert sum(isinstance(module, WNConv2d) for module in converted.modules()) == 19 + (shortcut == "projection") * 2
    assert isinstance(converted.head, WNLinear)


@pytest.mark.parametrize("follows", [True, False])
def test_a_channel_that_hardly_varied_is_divided_as_batchnorm_divides(follows: bool) -> None:
    """By √(variance + ε), folded or left as an affine map: without ε a dead channel would be thrown to infinity."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, eps=1e-3)
    model = with_history(nn.Sequential(nn.Conv2d(4, 4, 3), norm) if follows else nn.Sequential(norm, nn.ReLU()))
    norm.running_var.copy_(torch.tensor([0.0, 1e-6, 1e-3, 1.0]))
    torch.testing.assert_close(*outputs(model, convert(model), torch.randn(2, 4, 6, 6)), rtol=1e-4, atol=1e-4)


def test_vgg() -> None:
    torch.manual_seed(0)
    model = with_history(vgg())
    x = torch.randn(4, 3, 8, 8)
    converted = convert(model, x)
    torch.testing.assert_close(*outputs(model, converted, x), rtol=1e-4, atol=1e-4)
    assert check(converted.train(), x) == []
    assert not kinds(converted) & {nn.BatchNorm2d, nn.BatchNorm1d, nn.Dropout, FrozenAffine, nn.Conv2d, nn.Linear}
    converted(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in converted.parameters())


def test_the_original_is_left_alone() -> None:
    model = with_history(vgg()).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert convert(model).training
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("layers", "frozen"),
    [
        ([nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3)], 0),
        ([nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=1)], 1),  # Zeros of the padding would need folding, too.
        ([nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")], 0),
        ([nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding="same")], 1),
        ([nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6, affine=False)], 0),
        ([nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 1)], 1),
        ([nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)], 0),
        ([WNConv2d(4, 6, 3), nn.BatchNorm2d(6)], 0),
        ([nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, 3)], 0),
        ([nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.BatchNorm2d(6)], 1),
    ],
)
def test_pairs(layers: list[nn.Module], frozen: int) -> None:
    model = with_history(nn.Sequential(*layers))
    converted = convert(model)
    torch.testing.assert_close(*outputs(model, converted, torch.randn(3, 4, 6, 6)), rtol=1e-4, atol=1e-4)
    assert sum(isinstance(module, FrozenAffine) for module in converted.modules()) == frozen
    assert check(converted) == []


def test_other_dimensions() -> None:
    model = with_history(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Conv1d(4, 2, 1)))
    torch.testing.assert_close(*outputs(model, convert(model), torch.randn(2, 3, 9)), rtol=1e-4, atol=1e-4)
    model = with_history(nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4)))
    torch.testing.assert_close(*outputs(model, convert(model), torch.randn(2, 3, 4, 4, 4)), rtol=1e-4, atol=1e-4)


class Branching(nn.Module):
    """A norm used twice, a convolution seen by two, a value-dependent branch if asked for."""

    def __init__(self, dynamic: bool) -> None:
        super().__init__()
        self.dynamic = dynamic
        self.a = nn.Conv2d(3, 4, 3)
        self.a_norm = nn.BatchNorm2d(4)
        self.b = nn.Conv2d(4, 4, 1, bias=False)
        self.b_norm = nn.BatchNorm2d(4)
        self.twice = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a_norm(self.a(x))
        if self.dynamic and x.sum() > 1e9:
            return x
        y = self.b(x)
        return self.twice(self.b_norm(y) + y) + self.twice(x)


def test_only_exact_folds() -> None:
    model = with_history(Branching(False))
    converted = convert(model)
    torch.testing.assert_close(*outputs(model, converted, torch.randn(2, 3, 5, 5)), rtol=1e-4, atol=1e-4)
    assert isinstance(converted.a_norm, nn.Identity)
    assert isinstance(converted.b_norm, FrozenAffine)
    assert isinstance(converted.twice, FrozenAffine)


def test_what_cannot_be_traced_is_paired_by_order_and_verified() -> None:
    x = torch.randn(2, 3, 5, 5)
    with pytest.raises(RuntimeError, match="differ by"):  # b's output is seen twice, which order cannot show
        convert(with_history(Branching(True)), x)

    class Fine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x)) if x.sum() < 1e9 else x

    model = with_history(Fine())
    torch.testing.assert_close(*outputs(model, convert(model, x), x), rtol=1e-4, atol=1e-4)
    with pytest.warns(UserWarning, match="paired by their order"):
        convert(model)


def test_shared_layers_and_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.again = self.same = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.same(self.second(self.first(x))))

    model = Tied()
    converted = convert(model)
    torch.testing.assert_close(*outputs(model, converted, torch.randn(2, 4)))
    assert converted.first.weight is converted.second.weight
    assert converted.same is converted.again
    assert isinstance(converted.same, WNLinear)


def test_refusals() -> None:
    class OddBatchNorm(nn.BatchNorm2d):
        pass

    class FunctionalNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.batch_norm(x, None, None, training=True)

    class FunctionalDropout(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, self.training)

    with pytest.raises(ValueError, match=r"layer '1' has batch statistics of an unknown kind \(OddBatchNorm\)"):
        convert(nn.Sequential(nn.Conv2d(1, 2, 1), OddBatchNorm(2)))
    with pytest.raises(ValueError, match="no running statistics"):
        convert(nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)))
    with pytest.raises(ValueError, match="track_running_stats=False"):
        convert(nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True)))
    with pytest.raises(ValueError, match="run one batch"):
        convert(nn.Sequential(nn.LazyLinear(2)))
    with pytest.raises(ValueError, match=r"F\.batch_norm"):
        convert(FunctionalNorm())
    with pytest.warns(UserWarning, match="dropout as a function"):
        convert(FunctionalDropout())


def test_a_network_that_needs_no_conversion_keeps_its_function() -> None:
    model = resnetpp(8, 4)
    torch.testing.assert_close(*outputs(model, convert(model), torch.randn(2, 3, 8, 8)))


def test_precision_and_dropout_inside_layers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double()
    converted = convert(model)
    assert all(parameter.dtype == torch.float64 for parameter in converted.parameters())
    lstm = convert(nn.Sequential(nn.LSTM(3, 3, 2, dropout=0.5)))
    assert lstm[0].dropout == 0


def test_a_norm_over_the_second_dimension_is_not_folded_into_a_layer_of_the_last() -> None:
    """[batch, 8, 8] after a linear layer: widths agree, dimensions do not."""
    model = with_history(nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8)))
    x = torch.randn(6, 8, 7)
    converted = convert(model, x)
    torch.testing.assert_close(*outputs(model, converted, x), rtol=1e-4, atol=1e-4)
    assert isinstance(converted[1], FrozenAffine)
    with pytest.raises(ValueError, match="give convert an example"):  # without one it cannot know, but it can tell
        convert(model)(x)
    flat = torch.randn(6, 7)
    torch.testing.assert_close(*outputs(model, convert(model, flat), flat), rtol=1e-4, atol=1e-4)


def test_a_weight_that_the_forward_reads_is_left_as_it_is() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(input=self.conv(x)) * self.conv.weight.abs().mean()

    model = with_history(Reads())
    torch.testing.assert_close(*outputs(model, convert(model), torch.randn(2, 3, 5, 5)), rtol=1e-4, atol=1e-4)


def test_a_single_layer_is_converted_too() -> None:
    assert isinstance(convert(nn.Linear(3, 2)), WNLinear)
    assert isinstance(convert(nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4)), FrozenAffine)


def test_what_is_frozen_stays_frozen() -> None:
    """A frozen backbone gets no prior and is not sampled; a trained norm makes the layer it is folded into trained."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    model.extend([nn.Conv1d(4, 2, 1), nn.BatchNorm1d(2), nn.Linear(1, 2)])
    for layer in (model[0], model[1], model[2], model[4], model[5]):
        layer.requires_grad_(False)
    model[6].bias.requires_grad_(False)
    trained = {name for name, p in convert(model).named_parameters() if p.requires_grad}
    assert trained == {"2.direction", "2.scale", "2.bias", "6.direction", "6.scale"}
