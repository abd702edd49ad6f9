"""How long `atmc.sample` samples classes where nobody says, and what that leaves alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atmc
from atmc.api import run_length
from atmc.api.run_length import CHAINS, WHOLE_STEPS, Length, class_length, length_of, own_starts
from atmc.data import ImageData
from atmc.nn.untrained import untrained
from atmc.storage.run_directory import RunDir

CNN = 5.4e5  # operations of a small convolutional network on 28 x 28 pixels


def rings(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(count, 20)
    return x, (x[:, :2].square().sum(1) > 1.4).long()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 256), nn.Tanh(), nn.Linear(256, 2))


def test_small_data_have_many_steps_with_all_of_them() -> None:
    for each, count in ((CNN, 200), (CNN, 400), (7e3, 1000)):
        found = class_length(each, count)
        assert found is not None
        assert (found.batch, found.chains, found.warm) == (count, 1, None)
        assert found.epochs >= (WHOLE_STEPS if count > 512 else 1600)  # 100 epochs of so few are 1,600 steps
        assert found.pilot == Length(count, found.epochs // 8)


def test_more_data_have_several_chains_of_mini_batches() -> None:
    for count, batch, chains in ((1000, 62, CHAINS), (5000, 64, 6)):
        found = class_length(CNN, count)
        assert found is not None
        assert (found.batch, found.chains) == (batch, chains)
        assert found.warm is not None
        assert found.chains * (found.epochs + found.warm) > 100
        assert found.pilot == Length(batch, found.epochs, 2, found.warm)


@pytest.mark.parametrize(("each", "count"), [(CNN, 50_000), (1e9, 5000), (1e9, 400), (1e3, 500)])
def test_nothing_becomes_shorter(each: float, count: int) -> None:
    """Many examples, or a large network: 100 epochs are more. A tiny one has a rule of its own, of 64,000 steps."""
    assert class_length(each, count) is None


def test_only_classes_without_a_word_of_the_schedule_have_it() -> None:
    x, y = rings(600)
    train = ImageData.from_tensors(x, y)
    assert length_of("atmc", net(), train, None, None, ()) is not None
    assert length_of("sgd", net(), train, None, None, ()) is None
    assert length_of("atmc", net(), train, None, None, ["schedule.kind=cyclic"]) is None
    assert length_of("atmc", net(), ImageData.from_tensors(x, x[:, 0]), None, None, ()) is None


@pytest.mark.filterwarnings("ignore")
def test_a_run_has_it_and_is_resumed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = rings(600)
    monkeypatch.setattr(run_length, "WHOLE_STEPS", 2000)
    monkeypatch.setattr(run_length, "WORK", 2000 * (run_length.STEP + 600 * 2 * 5890) + 1e6)
    how: dict[str, Any] = {"out": tmp_path / "run", "temperature": "auto", "progress": None}
    posterior = atmc.sample(net(), data, **how)
    made = RunDir.open(tmp_path / "run").recipe
    assert (made.data.batch_size, made.schedule.epochs, made.chains) == (600, 2000, 1)
    assert len(posterior) >= 100
    assert len(posterior.pilots) <= 5
    assert made.target.prior_scale == posterior.pilots[0]["prior_scale"]
    assert len(atmc.sample(net(), data, **how)) == len(posterior)
    atmc.sample(net(), data, epochs=4, out=tmp_path / "short", progress=None)
    assert RunDir.open(tmp_path / "short").recipe.schedule.epochs == 4  # the caller's word counts


@pytest.mark.filterwarnings("ignore")
def test_chains_begin_with_adam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = rings(600)
    monkeypatch.setattr(run_length, "WHOLE_STEPS", 1e9)
    monkeypatch.setattr(run_length, "EPOCHS", 10)
    monkeypatch.setattr(run_length, "WORK", 980 * (run_length.STEP + 37 * 2 * 5890))
    atmc.sample(net(), data, out=tmp_path, progress=None)
    made = RunDir.open(tmp_path).recipe
    assert (made.data.batch_size, made.chains, made.schedule.warm_start_optimizer) == (37, 2, "adam")
    assert (made.schedule.epochs, made.schedule.warm_start_epochs) == (15, 15)
    assert made.model.start == "fresh"
    plan = Length(37, 4, 2, 4)
    assert own_starts(plan, net(), None, None, None)
    assert not own_starts(plan, net(), "given", None, None)
    assert not own_starts(plan, net(), None, None, 1)
    assert not own_starts(Length(600, 2000), net(), None, None, None)


class Bare(nn.Module):
    """A layer that cannot draw its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))


def test_only_a_network_as_its_layers_drew_it_is_untrained() -> None:
    torch.manual_seed(0)
    for _ in range(50):
        new = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(72, 10))
        assert untrained(new)
    model = copy.deepcopy(new)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(16, 3, 5, 5)).square().mean().backward()
        optimizer.step()
    assert not untrained(model)
    model[3].reset_parameters()  # a trained body and a new head
    assert not untrained(model)
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("3."))
    assert untrained(model)  # what is not sampled is never drawn anew
    assert not untrained(nn.Sequential(nn.Linear(4, 4), Bare()))
