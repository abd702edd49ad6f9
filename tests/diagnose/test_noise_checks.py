"""Mini-batch noise that bends the law is told of, with the batch that cures it; a chain at T is left in peace."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atmc import likelihoods, sample
from atmc.diagnose.complaints import complaints, loss_of_cycles
from atmc.diagnose.doctor import doctor
from atmc.diagnose.noise_checks import large_kicks, noise_directions, outside, said
from atmc.diagnose.run_measurements import RunMeasurements
from atmc.diagnose.traces import Level, level, noise_ratio
from atmc.recipe.settings import DataSection, ModelSection, Recipe
from atmc.storage.run_directory import RunDir


def log(step: int, **values: Any) -> dict[str, Any]:
    return {"event": "log", "chain": 0, "step": step, "epoch": step, "cycle": step, "temperature": 0.5, **values}


def test_readings_are_averaged_as_they_are() -> None:
    """Rows count as often as they have readings, and their temperature is held against the one asked."""
    rows = [log(1, noise_temperature=0.5, noise_readings=9), log(2), log(3, noise_temperature=1.5, noise_readings=3)]
    assert noise_ratio(rows).mean == pytest.approx((9 * 1.0 + 3 * 3.0) / 12)


def test_a_chain_at_its_temperature_is_hardly_ever_called_off() -> None:
    """Rows of three readings each, χ² with one degree of freedom; 300 runs."""
    rng = np.random.default_rng(0)
    for rows in (12, 40, 100):
        alarms = [outside(level(rng.chisquare(1, (rows, 3)).mean(1))) for _ in range(300)]
        assert sum(alarms) <= 3
    hot = [outside(level(1.6 * rng.chisquare(1, (100, 3)).mean(1))) for _ in range(100)]
    assert sum(hot) >= 80


def test_the_error_of_a_reading_is_said_in_a_way_that_agrees_with_the_judgement() -> None:
    assert said(Level(1.02, 0.03, 50)) == "1.02 ± 0.03"
    assert said(Level(31.5, 19.3, 50)) == "32 (95 % interval 9.5 to 105)"  # not ± 19: 1 is far outside
    assert said(Level(2.0, float("nan"), 1)) == "2.00"


def test_the_batch_that_is_suggested_is_as_large_as_the_reading_asks_for() -> None:
    recipe = Recipe(data=DataSection(batch_size=32), model=ModelSection(name="custom"))

    def advice(mean: float, examples: int = 10_000) -> str:
        many = examples / 32
        v = RunMeasurements(
            "atmc", noise=Level(mean, 0.02, 50, 6.0), recipe=recipe, steps_per_epoch=many, path="runs/x"
        )
        return noise_directions(v)[0].action

    assert "data.batch_size = 128" in advice(1.4)
    assert "data.batch_size = 512" in advice(2.5)
    assert "data.batch_size = 300 (all the data)" in advice(5.0, 300)
    assert 'overrides=["data.batch_size=512"]' in advice(2.5)
    assert "Halve sampler.lr" in advice(5.0, 32)


def test_kicks_that_friction_cannot_balance_are_told_of() -> None:
    recipe = Recipe(data=DataSection(batch_size=32), model=ModelSection(name="custom"))

    def advice(share: float) -> list[Any]:
        return large_kicks(RunMeasurements("atmc", kick_excess=share, recipe=recipe, path="runs/x"))

    assert advice(float("nan")) == advice(0.01) == []
    (found,) = advice(0.08)
    assert found.level == "warning"
    assert found.evidence.startswith("8.0% of the examples of a step")
    assert "Halve sampler.lr" in found.action


def test_losses_are_lined_up_by_chain() -> None:
    rows = [{**log(step), "chain": c, "cycle": step, "loss": 10 * c + step} for step in range(1, 5) for c in (0, 1)]
    assert loss_of_cycles(rows[:-1]).tolist() == [[2, 3, 4], [11, 12, 13]]


def points(alike: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Where inputs resemble each other, gradients of all weights share most of their noise."""
    rng = torch.Generator().manual_seed(1)
    x = alike * torch.randn(400, 1, generator=rng) + torch.randn(400, 6, generator=rng)
    return x, x @ torch.linspace(-1, 1, 6)[:, None] + 0.3 * torch.randn(400, 1, generator=rng)


def drawn(out: Path, alike: float, **more: Any) -> list[str]:
    """The warnings of a call of `atmc.sample`."""
    torch.manual_seed(0)
    x, y = points(alike)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sample(nn.Linear(6, 1), (x, y), likelihood=likelihoods.Gaussian(0.3), out=out, progress=None, **more)
    return [str(each.message) for each in said]


def test_small_batches_at_high_speed_are_told_of(tmp_path: Path) -> None:
    fast = ["sampler.speed=0.0016", "sampler.max_speed=0.006", "sampler.noise_rank=0"]
    said = drawn(tmp_path / "run", 3.0, epochs=60, batch_size=8, overrides=fast)
    line = next(text for text in said if "along the noise of mini-batch gradients" in text)
    assert "pass batch_size=" in line
    assert "\n" not in line
    found = next(a for a in doctor(tmp_path / "run") if "noise heats" in a.title)
    assert found.level == "warning"
    assert "data.batch_size = " in found.action


@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_run_is_not_complained_of(tmp_path: Path, seed: int) -> None:
    slow = ["sampler.speed=0.004", "sampler.max_speed=0.02", "schedule.cycle_epochs=25"]
    said = drawn(tmp_path / "run", 0.0, epochs=1000, batch_size=100, overrides=slow, seed=seed)
    assert said == []
    assert complaints(RunDir.open(tmp_path / "run")) == []
    found = doctor(tmp_path / "run")
    assert not [a for a in found if "noise" in a.title.lower() and a.level != "ok"]
    assert not [a for a in found if "same network" in a.title]
