"""`atmc.sample(model, data, only=…)`: a part of a network is sampled, and the rest is kept once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atmc import Posterior, sample
from atmc.common.errors import InputError
from atmc.nn import parts
from atmc.storage.run_directory import FIXED, RunDir

pytestmark = pytest.mark.filterwarnings("ignore")
MORE: dict[str, Any] = {"epochs": 12, "progress": None}


class Net(nn.Module):
    """A backbone with BatchNorm and dropout, and a head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.backbone(x))
        return out


def rings(count: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    return x, (x.square().sum(1) > 1.4).long()


def trained() -> Net:
    torch.manual_seed(0)
    model, (x, y) = Net(), rings()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model  # in training mode, as people forget to change


HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ("head", HEAD),
        ("head.weight", {"head.weight"}),
        ("*bias", {"head.bias", "backbone.0.bias", "backbone.1.bias"}),
        ("backbone.[01]", {f"backbone.{i}.{k}" for i in (0, 1) for k in ("weight", "bias")}),
        (["head", "backbone.0"], HEAD | {"backbone.0.weight", "backbone.0.bias"}),
    ],
)
def test_names_and_patterns(only: Any, found: set[str]) -> None:
    assert parts.choose(Net(), parts.names_of(Net(), only)) == found


def test_modules_are_named_by_where_they_are() -> None:
    model = Net()
    assert parts.names_of(model, [model.head, "backbone.0"]) == ["head", "backbone.0"]
    assert parts.choose(model, parts.names_of(model, model)) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("haed", r"only='haed' matches no parameter of the network: did you mean 'head'\?"),
        ("zzz", "only='zzz' matches no parameter of the network: it has backbone, head"),
        (nn.Linear(2, 2), "only: this Linear is no part of the network"),
        ([], "only must name layers or parameters of the network"),
        ([3], "only takes names, patterns and modules, not int"),
    ],
)
def test_what_names_nothing_is_one_line(only: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        sample(Net(), rings(), only=only, out=tmp_path / "run", **MORE)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("chains", [1, 2])
def test_the_head_of_a_trained_network(tmp_path: Path, chains: int) -> None:
    model, test = trained(), rings(300, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    posterior = sample(model, rings(), only="head", test=test, chains=chains, out=tmp_path / "run", **MORE)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training, "it is left as it was"
    run = RunDir.open(tmp_path / "run")
    assert set(run.bank[0]) == HEAD
    assert run.recipe.model.only == ["head"]
    assert run.manifest["data"]["shape"] == [2], "of the inputs, not of the features"
    assert run.manifest["network"]["class"].endswith(".Net")
    # What the run kept of the test set, made from features, is what the whole network says of the inputs.
    torch.testing.assert_close(run.predictions("test"), posterior.sample_probs(test[0]), atol=1e-5, rtol=1e-4)
    assert posterior.evaluate(*test)["predictive"]["accuracy"] > 0.9
    net = posterior[0]
    assert torch.equal(net.head.weight, run.bank[0]["head.weight"])
    assert torch.equal(net.backbone[1].running_mean, before["backbone.1.running_mean"])
    for again in (Posterior.from_run(tmp_path / "run", Net()), Posterior.load(posterior.save(tmp_path / "p"), Net())):
        torch.testing.assert_close(again.predict(test[0]).probs, posterior.predict(test[0]).probs)


def test_features_are_computed_once(tmp_path: Path) -> None:
    """Steps and samples do not go through the backbone: it sees each example once, and a few to look at."""
    model = trained()
    rows: list[int] = []
    model.backbone.register_forward_hook(lambda module, args, out: rows.append(len(args[0])))
    sample(model, rings(), only="head", **MORE)
    assert sum(rows) < 200 + 30
    rows.clear()
    sample(model, rings(), only="backbone.0", **MORE)
    assert sum(rows) > 200 * 12, "what is sampled is not last: every step goes through all of it"


def test_a_prediction_computes_features_once_for_all_samples() -> None:
    model, (x, _) = trained(), rings(300, 1)
    rows: list[int] = []
    model.backbone.register_forward_hook(lambda module, args, out: rows.append(len(args[0])))
    posterior = sample(model, rings(), only="head", **MORE)
    expected = torch.stack([torch.softmax(net(x), 1) for net in posterior]).mean(0).double()
    for strategy in ("loop", "together"):
        rows.clear()
        torch.testing.assert_close(posterior.predict(x, strategy=strategy).probs, expected, atol=1e-5, rtol=1e-4)
        assert sum(rows) <= 302
    assert sum(rows) < len(posterior) * 300


def test_a_part_in_the_middle_and_frozen_layers(tmp_path: Path) -> None:
    model = trained().eval()
    model.head.requires_grad_(False)
    posterior = sample(model, rings(), out=tmp_path / "run", **MORE)
    run = RunDir.open(tmp_path / "run")
    assert not HEAD & set(run.bank[0])
    assert "backbone.0.weight" in run.bank[0]
    assert set(run.top.values["files"]) >= {FIXED}
    again = Posterior.from_run(tmp_path / "run", Net())
    torch.testing.assert_close(again.predict(rings()[0]).probs, posterior.predict(rings()[0]).probs)
    middle = sample(trained(), rings(), only="backbone.0", **MORE)
    assert set(middle.state(0)) == {"backbone.0.weight", "backbone.0.bias"}
    assert middle.evaluate(*rings(300, 1))["predictive"]["accuracy"] > 0.85


def test_going_on_needs_the_same_network_and_part(tmp_path: Path) -> None:
    model = trained()
    more = MORE | {"out": tmp_path / "run"}
    shorter = sample(model, rings(), only="head", **more)
    with pytest.raises(InputError, match=r"begun with model\.only = \['head'\], not \['backbone'\]"):
        sample(model, rings(), only="backbone", **more)
    with pytest.raises(InputError, match=r"was begun with another backbone\.0\.bias, which is not sampled"):
        sample(Net(), rings(), only="head", **more)
    longer = sample(model, rings(), recipe=tmp_path / "run", epochs=20, out=tmp_path / "run", progress=None)
    assert len(longer) > len(shorter)
    assert set(longer.state(-1)) == HEAD, "the recipe of the run says which part"
    with pytest.raises(InputError, match=r"the network lacks backbone\.[a-z0-9._]+, a part that was not sampled"):
        Posterior.from_run(tmp_path / "run", nn.Linear(2, 2))


def test_a_sample_that_lacks_what_is_sampled_is_still_refused() -> None:
    model = Net()
    with pytest.raises(ValueError, match=r"lacks backbone\.0\.weight"):
        Posterior([model.head.state_dict(prefix="head.")], model)
    model.backbone.requires_grad_(False)
    one = Posterior([model.head.state_dict(prefix="head.")], model)
    other = Net()
    other.backbone.requires_grad_(False)
    with pytest.raises(ValueError, match=r"differ in backbone\.0\.weight"):
        Posterior.concat([one, Posterior([other.head.state_dict(prefix="head.")], other)])
