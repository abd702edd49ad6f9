"""Noise that depends on the input: the layer, the network that gets it, and where it has no place."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import atmc
from atmc import priors
from atmc.api.likelihood_choice import default_noise
from atmc.data import ImageData
from atmc.engine.optimizer_state import new_adam
from atmc.nn import ValueAndScale
from atmc.nn.scale_output import values_and_scales, with_scale_output


class Squeezed(nn.Module):
    """A network of one's own whose answers are [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(3, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.inside(x)))
        return out.squeeze(-1)


class Positive(Squeezed):
    """Its answers are not those of its last layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).exp()


def data(numbers: int = 1, count: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, :numbers] * 2).squeeze(1)


def test_values_are_the_networks_own_and_the_noise_begins_equal_for_all_inputs() -> None:
    x, _ = data()
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))
    before = copy.deepcopy(net.state_dict())
    wide = with_scale_output(net, 2)
    assert wide is not None
    assert type(net[2]) is nn.Linear  # a copy was changed
    torch.testing.assert_close(wide(x), torch.cat([net(x), torch.zeros(40, 2)], dim=1))
    layer = wide[2]  # type: ignore[index]
    assert isinstance(layer, ValueAndScale)
    nn.init.constant_(layer.log_scale, -1.0)
    nn.init.normal_(layer.scale_weight)
    hidden = torch.relu(net[0](x))
    torch.testing.assert_close(wide(x)[:, 2:], hidden @ layer.scale_weight.T - 1)
    assert set(wide.state_dict()) == {*before, "2.scale_weight", "2.log_scale"}
    assert with_scale_output(wide, 2) is wide
    layer.reset_parameters()
    assert not layer.scale_weight.any()
    assert not layer.log_scale.any()


def test_every_rule_keeps_the_priors_of_the_noise() -> None:
    net = with_scale_output(nn.Sequential(nn.Linear(3, 16), nn.Linear(16, 1)), 1)
    assert net is not None
    for rule in (priors.gaussian(0.1), priors.gaussian(fan_in=True), priors.normalised()):
        found = rule.assign(net)
        assert found["1.log_scale"] == priors.Normal(3.0)
        assert found["1.scale_weight"] == priors.Normal(0.25)


@pytest.mark.parametrize(
    ("net", "numbers", "expected"),
    [
        (nn.Linear(3, 1), 1, "input-noise"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 2, "input-noise"),
        (Squeezed(), 1, "input-noise"),
        (Positive(), 1, "learned-noise"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 1, "learned-noise"),
        (nn.Sequential(nn.Linear(3, 1), nn.Softplus()), 1, "learned-noise"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1), nn.Flatten(0)), 1, "learned-noise"),
        (nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 1, 3), nn.Flatten()), 1, "learned-noise"),
    ],
)
def test_it_is_the_default_where_the_last_layer_gives_the_answers(net: nn.Module, numbers: int, expected: str) -> None:
    x, y = data(numbers)
    assert default_noise(net, ImageData.from_tensors(x, y)) == expected


def test_a_warm_start_fits_the_values_first() -> None:
    net = with_scale_output(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), 1)
    assert net is not None
    net[0].requires_grad_(False)  # type: ignore[index]
    values, late = values_and_scales(net)
    assert [name for name, _ in values] == ["2.weight", "2.bias", "2.log_scale"]
    assert [name for name, _ in late] == ["2.scale_weight"]
    lr = torch.tensor(0.1)
    adam = new_adam(values, lr, 0.9, late)
    for p in net[2].parameters():  # type: ignore[index]
        p.grad = torch.ones_like(p)
    adam.step()
    assert bool(values[0][1].any())
    assert not late[0][1].any()
    adam.param_groups[1]["lr"].fill_(0.1)
    adam.step()
    assert late[0][1].abs().min() > 0.05


NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_noise_that_grows_with_the_input_is_found_and_kept(device: str, tmp_path: object) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(300, 1, generator=generator) - 2
    y = 50 + 10 * (x[:, 0] + torch.exp(x[:, 0] - 1) * torch.randn(300, generator=generator))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    posterior = atmc.sample(net, (x, y), epochs=250, device=device, progress=None)
    found = posterior.regress(torch.tensor([[-1.5], [1.5]]))
    low, high = found.aleatoric.sqrt().tolist()
    assert 0.3 < low < 2.5  # 0.8 of the user's units
    assert 8 < high < 35  # 16.5
    posterior.save(f"{tmp_path}/saved")
    again = atmc.Posterior.load(f"{tmp_path}/saved")
    torch.testing.assert_close(again.regress(x).std, posterior.regress(x).std)
    with pytest.raises(atmc.InputError, match='pass likelihood="learned-noise"'):
        atmc.sample(Positive(), data(), likelihood="input-noise", epochs=5, progress=None)
