"""The doctor on runs that were really made: well ones are called well, and each kind of sick one is found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atmc
from atmc.api.sampling import sample
from atmc.common.errors import InputError
from atmc.diagnose.doctor import doctor, examine
from atmc.diagnose.finding import Advice
from atmc.diagnose.traces import temperature_ratio
from atmc.engine.runner import run
from atmc.posterior import Posterior, metrics
from atmc.recipe.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)
from atmc.storage.run_directory import RunDir


def moons(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two interleaved half circles that overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    angle = torch.rand(n, generator=generator) * torch.pi
    x = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    x[y == 1] = torch.tensor([1.0, 0.4]) - x[y == 1]
    return x + 0.25 * torch.randn(n, 2, generator=generator), y


def examined(folder: Path, model: nn.Module, **how: Any) -> list[Advice]:
    """What the doctor says of a run of `model` in `folder`."""
    sample(model, moons(200, 0), out=folder, test=moons(500, 1), progress=None, **how)
    return doctor(folder)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def ailments(found: list[Advice]) -> dict[str, Advice]:
    return {advice.title: advice for advice in found[1:] if advice.level in ("warning", "problem")}


@pytest.mark.parametrize("chains", [1, 2])
def test_a_logistic_regression_with_time_enough_is_healthy(tmp_path: Path, chains: int) -> None:
    torch.manual_seed(0)
    moves = ["sampler.speed=0.02", "sampler.max_speed=0.067"]
    found = examined(tmp_path / "run", nn.Linear(2, 2), epochs=500, batch_size=50, chains=chains, overrides=moves)
    assert ailments(found) == {}
    assert found[0].level == "ok"
    assert "looks healthy" in found[0].title
    titles = {advice.title for advice in found if advice.level == "ok"}
    assert "The chain has the temperature it was given" in titles
    assert "The training loss has settled" in titles


def test_a_thermostat_that_is_too_heavy_leaves_the_chain_hot(tmp_path: Path) -> None:
    """Batches of four at twenty times the speed: more gradient noise than it absorbs within the run."""
    fast = ["sampler.inertia=10.0", "sampler.speed=0.05", "sampler.max_speed=0.2", "sampler.noise_rank=0"]
    found = examined(tmp_path / "run", network(), epochs=40, batch_size=4, overrides=fast)
    assert found[0].level == "problem"
    hot = ailments(found)["The chain is hotter than asked"]
    assert "sampler.inertia = 0.001 instead of 10" in hot.action


def test_samples_from_before_the_chain_has_arrived_are_found_out(tmp_path: Path) -> None:
    early = ["schedule.burn_in_epochs=0", "schedule.warm_start_epochs=0", "schedule.warm_start_lr=0.05"]
    slow = ["sampler.speed=0.01", "sampler.max_speed=0.033"]
    found = examined(tmp_path / "run", network(), epochs=40, batch_size=50, overrides=[*early, *slow])
    assert found[0].level == "warning"
    assert "The first and the second half of the chain do not predict alike" in ailments(found)
    assert "The last samples alone are better than all together" in ailments(found)


def test_inputs_that_were_not_standardised_heat_the_chain_and_the_cure_is_named(tmp_path: Path) -> None:
    """Targets around 1,000: the temperature is hundreds of thousands, and scatters as widely."""
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    how = {"likelihood": "learned-noise", "epochs": 40, "test": (x, x[:, :1]), "progress": None}
    sample(model, (x, 100 * x[:, :1] + 1000), out=tmp_path / "run", **how)
    found = doctor(tmp_path / "run")
    assert found[0].level == "problem"
    assert "Standardise" in ailments(found)["The chain is hotter than asked"].action
    assert any("predict alike" in advice.title for advice in found)  # a regression has outputs to compare


def test_a_short_chain_is_not_called_healthy_for_want_of_evidence(tmp_path: Path) -> None:
    """Fourteen samples of a network: what is large is told as a warning, or left open, and never ticked."""
    found = examined(tmp_path / "run", network(), epochs=60, batch_size=20)
    assert "healthy" not in found[0].title or "cannot be called healthy" in found[0].title
    for advice in found:
        if advice.level == "ok" and "R-hat" in advice.evidence:
            assert float(advice.evidence.split("R-hat is ")[1].split()[0]) <= 1.1
        if advice.level == "ok" and "training loss" in advice.title:
            assert float(advice.evidence.split("%")[0].split()[-1]) <= 10


def test_burn_in_begins_after_the_warm_start(tmp_path: Path) -> None:
    changes = ["schedule.warm_start_epochs=6", "schedule.burn_in_epochs=4", "schedule.cycle_epochs=1"]
    examined(tmp_path / "run", network(), epochs=10, overrides=changes)
    opened = RunDir.open(tmp_path / "run")
    late = [row for row in opened.metrics() if row["event"] == "log" and row["epoch"] > 10]
    assert 0 < len(late) < sum(row["event"] == "log" and row["epoch"] > 4 for row in opened.metrics())
    assert examine(opened).kinetic.rows == len(late)


def test_cycles_that_give_several_samples_are_judged_by_mode_and_where_they_are_warm(tmp_path: Path) -> None:
    """Momenta come from rest where T comes on. Rows from there on would tell of a chain that is too cold."""
    cycles = ["schedule.cycle_epochs=6", "schedule.samples_per_cycle=3", "schedule.lr_floor=0.2"]
    explore = ["schedule.temperature_schedule=explore", "schedule.explore_fraction=0.4", "run.log_steps=5"]
    found = examined(tmp_path / "run", network(), epochs=80, batch_size=10, overrides=[*cycles, *explore])
    run = RunDir.open(tmp_path / "run")
    seen = examine(run)
    assert seen.mixing is not None
    assert seen.samples == 3 * seen.mixing.samples
    assert f"the {seen.mixing.samples} modes at random" in " ".join(advice.evidence for advice in found)
    assert not any("colder" in advice.title for advice in found)
    rows = [row for row in run.metrics() if row["event"] == "log" and row["epoch"] > run.recipe.schedule.settled_epochs]
    whole = temperature_ratio(rows, by_time=True)
    assert whole.mean < 0.9, whole
    assert abs(seen.kinetic.mean - 1.0) < 0.1, seen.kinetic


def test_a_regression_is_judged_by_mode_too(tmp_path: Path) -> None:
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    data, noise = (x, x[:, :1]), atmc.likelihoods.Gaussian(0.5)
    changes = ["schedule.cycle_epochs=4", "schedule.samples_per_cycle=2", "schedule.burn_in_epochs=0"]
    sample(
        nn.Linear(2, 1),
        data,
        epochs=16,
        likelihood=noise,
        out=tmp_path / "run",
        test=data,
        progress=None,
        overrides=changes,
    )
    seen = examine(RunDir.open(tmp_path / "run"))
    assert seen.mixing is not None
    assert seen.samples == 2 * seen.mixing.samples == 2 * seen.units
    assert seen.units == 4
    assert not seen.neighbours > 0  # two samples of one mode lie close together, and say nothing of the chain
    assert f"There are only {seen.units} modes, of {seen.samples} samples" in {advice.title for advice in doctor(seen)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten samples of a small network on digits, taken far too early."""
    recipe = Recipe(
        name="small",
        data=DataSection(name="digits", batch_size=200, validation=97),
        model=ModelSection(name="mlp", depth=2, width=8),
        target=TargetSection(prior="gaussian", prior_scale=1.0),
        sampler=SamplerSection(name="atmc", lr=0.002, speed=0.002, momentum=0.9, inertia=1e-3),
        schedule=ScheduleSection(epochs=10, kind="cyclic", cycle_epochs=1),
        run=RunSection(device="cpu", evaluate=["validation", "test"]),
    )
    path = tmp_path_factory.mktemp("run") / "small"
    assert run(recipe, path).status == "done"
    return path


def test_a_real_run_is_examined(folder: Path) -> None:
    vitals = examine(RunDir.open(folder))
    assert vitals.samples == 10
    assert vitals.split == "validation"
    assert vitals.friction == pytest.approx(-np.log(0.9) / 0.002)
    assert np.isfinite(vitals.kinetic.mean)
    assert np.isfinite(vitals.thermostat).all()
    assert vitals.scores is not None
    assert 0.0 < vitals.distance < 1.0
    before = sorted(p.name for p in folder.rglob("*"))
    found = doctor(folder)
    assert sorted(p.name for p in folder.rglob("*")) == before
    assert found[0].level in ("warning", "problem")  # ten epochs are no burn-in
    assert any("still falling" in a.title or "do not predict alike" in a.title for a in found)
    with pytest.raises(InputError, match="not a run directory"):
        doctor(folder / "nothing")


def test_a_real_run_predicts_what_it_stored(folder: Path, tmp_path: Path) -> None:
    from atmc import data

    test = data.load("digits", "test")
    posterior = Posterior.from_run(folder)
    stored = RunDir.open(folder).predictions("test")
    torch.testing.assert_close(posterior.sample_probs(test, device="cpu"), stored, rtol=0, atol=2e-6)
    found = posterior.predict(test, device="cpu")
    np.testing.assert_allclose(found.probs, metrics.predictive(stored.numpy()), atol=2e-6)
    assert posterior.classes == tuple("0123456789")
    assert posterior.shape == (1, 8, 8)
    posterior.save(tmp_path / "p")
    again = Posterior.load(tmp_path / "p")  # the recipe's network needs no code of the user's
    assert torch.equal(again.predict(test, device="cpu").probs, found.probs)
    assert again.shape == (1, 8, 8)
    own = Posterior.from_run(folder, model=RunDir.open(folder).model())
    assert isinstance(own[0], nn.Module)
