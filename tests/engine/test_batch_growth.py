"""Batches that grow until T along the gradient noise is right."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import atmc
from atmc.api import defaults
from atmc.engine.batch_growth import PILOTS, choose_batch
from atmc.engine.progress import Progress
from atmc.storage.run_directory import RunDir


def excess(strength: float, seen: list[tuple[int, float]]) -> Any:
    """A pilot whose reading follows the theory: the excess goes with rate/batch."""

    def read(batch: int, rate: float) -> tuple[float, float]:
        seen.append((batch, rate))
        return 1.0 + strength * rate / batch, 0.02

    return read


@pytest.mark.parametrize(
    ("strength", "most", "batch", "rate", "pilots"),
    [
        (60.0, 4096, 32, 0.1, 1),  # an excess of .19 at the full step: nothing to do
        (500.0, 4096, 256, 0.1, 2),  # 1.6 asks for eight times the batch, at once
        (16000.0, 65536, 8192, 0.1, 3),  # 50: the first answer is capped, the second is not
        (600.0, 64, 64, 0.021, 3),  # the batch cannot grow so far: the rate falls for the rest
    ],
)
def test_the_batch_is_as_large_as_the_reading_asks(
    strength: float, most: int, batch: int, rate: float, pilots: int
) -> None:
    seen: list[tuple[int, float]] = []
    found = choose_batch(excess(strength, seen), 32, most, 0.1)
    assert (found.batch, found.rate) == (batch, rate)
    assert len(seen) == pilots
    assert not found.off
    assert found.reading < 1.25


def test_what_cannot_be_read_counts_as_too_much_and_is_said() -> None:
    found = choose_batch(lambda batch, rate: (math.nan, math.nan), 32, 64, 0.1)
    assert found.off
    assert found.batch == 64
    assert found.rate == pytest.approx(0.1 / 16 ** (PILOTS - 2), rel=0.05)
    assert "give more epochs" in found.said


class Told(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def line() -> tuple[torch.Tensor, torch.Tensor]:
    """A regression whose first input is large and never 0: its gradients are noisy along one direction."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 4, generator=draw)
    x[:, 0] += 3
    return x, x @ torch.ones(4, 1) + torch.randn(2000, 1, generator=draw)


def call(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[Any, list[str]]:
    monkeypatch.setattr(defaults, "WHOLE", 0)
    monkeypatch.setattr(defaults, "CHEAP", 0.0)  # as if a step on all data cost too much
    monkeypatch.setattr(defaults, "LEAST_STEPS", 20)  # not to wait for long runs
    torch.manual_seed(0)
    told = Told()
    law = {"likelihood": atmc.likelihoods.Gaussian(1.0), "prior": atmc.priors.gaussian(1.0)}
    atmc.sample(nn.Linear(4, 1), line(), out=tmp_path, progress=told, seed=0, **law, **how)
    return RunDir.open(tmp_path).recipe, [text for text in told.lines if "gradient noise" in text]


def test_a_call_lets_its_batches_grow_and_says_so(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "NOISE_RANK", 1)  # leaves most directions of the noise to the batch
    recipe, said = call(tmp_path, monkeypatch, epochs=8)
    assert 64 < recipe.data.batch_size <= 8 * 2000 // 20
    assert len(said) == 1
    assert said[0].startswith(f"batches of {recipe.data.batch_size}")
    again, said = call(tmp_path, monkeypatch, epochs=9)
    assert again.data.batch_size == recipe.data.batch_size, "a run that goes on keeps its batch"
    assert said == []


@pytest.mark.parametrize("how", [{"batch_size": 50}, {"overrides": ["data.batch_size=50"]}])
def test_a_batch_that_was_asked_for_stays(how: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "NOISE_RANK", 1)
    recipe, said = call(tmp_path, monkeypatch, epochs=4, **how)
    assert recipe.data.batch_size == 50
    assert said == []
