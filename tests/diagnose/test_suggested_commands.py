"""The doctor's prescriptions, followed to the letter: every command runs, and changes what its sentence says."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import atmc
from atmc.cli.main import run as command_line
from atmc.common.errors import RunError
from atmc.diagnose import suggested_commands
from atmc.diagnose.doctor import doctor, examine
from atmc.diagnose.run_measurements import RunMeasurements
from atmc.engine import run as run_recipe
from atmc.recipe.settings import Recipe
from atmc.recipe.toml_files import recipe_from_values
from atmc.storage import RunDir

EXPLORE = {"temperature_schedule": "explore", "explore_fraction": 0.5, "hold_fraction": 0.2}


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """Twelve short cycles on digits, of the kind whose settings are hardest to change."""
    return recipe_from_values({
        "name": "short",
        "data": {"name": "digits", "batch_size": 250},
        "model": {"name": "mlp", "depth": 1, "width": 4},
        "target": {"prior": "gaussian"},
        "sampler": {"lr": 1e-3, "speed": 3e-3, "max_speed": 1e-2, "momentum": 0.9, "inertia": 1e-3},
        "schedule": {"epochs": 12, "cycle_epochs": 1, "burn_in_epochs": 2, **EXPLORE},
        "run": {"device": "cpu"},
    })  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


@pytest.fixture(scope="module", params=["recipe", "python"])
def made(request: pytest.FixtureRequest, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of either kind; made once, and never changed."""
    place = tmp_path_factory.mktemp("made") / "run"
    if request.param == "recipe":
        run_recipe(recipe, place, progress=None)
    else:
        changes = ["schedule.cycle_epochs=1", "schedule.burn_in_epochs=2"]
        changes += [f"schedule.{key}={value}" for key, value in EXPLORE.items()]
        atmc.sample(network(), data(0), epochs=12, out=place, test=data(1), overrides=changes, progress=None)
    return place


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, in a folder whose name a shell would take apart."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "my run")
    return Path("my run")


def follow(action: str) -> None:
    """Do what it says: in Python, where it is a call, or in a shell."""
    _, command = suggested_commands.split_command(action)
    if command.startswith("atmc.sample("):
        x, y = data(1)
        names = {"atmc": atmc, "model": network(), "data": data(0), "test": (x, y), "x": x, "y": y}
        assert isinstance(eval(command, names), atmc.Posterior)
        return
    program, *words = shlex.split(command)
    assert program == "atmc"
    assert command_line(words) == 0


def test_longer_goes_on_from_where_the_run_is(folder: Path) -> None:
    before = examine(RunDir.open(folder))
    follow(suggested_commands.go_on(before, "Run longer"))
    after = RunDir.open(folder)
    assert after.recipe.schedule.epochs == 24
    assert len(after.bank) == before.samples + 12
    assert not Path("my run-2").exists()


def test_a_run_that_was_stopped_is_to_finish_before_it_is_made_longer(folder: Path, recipe: Recipe) -> None:
    """What stood first was to double schedule.epochs, of a run that was half way to those it had."""
    place = Path("half way")
    if RunDir.open(folder).recipe.model.name == "custom":
        changes = ["schedule.cycle_epochs=1", "schedule.burn_in_epochs=2"]
        with pytest.raises(RunError, match="out of time"):
            atmc.sample(
                network(), data(0), epochs=12, out=place, test=data(1), overrides=changes, time_budget=1e-6,
                progress=None,
            )  # fmt: skip
    else:
        assert run_recipe(recipe, place, time_budget=1e-6, progress=None).status == "budget"
    before = examine(RunDir.open(place))
    follow(suggested_commands.go_on(before, "Run longer"))
    after = RunDir.open(place)
    assert (after.status, after.recipe.schedule.epochs) == ("done", 12)
    assert len(after.bank) > before.samples


def test_other_settings_begin_another_run(folder: Path) -> None:
    v = examine(RunDir.open(folder))
    follow(suggested_commands.longer_burn_in(v))
    plan = RunDir.open("my run-2").recipe.schedule
    assert (plan.epochs, plan.burn_in_epochs) == (24, 12)
    follow(suggested_commands.slower(v, "Halve"))  # in yet another folder
    before, after = v.recipe, RunDir.open("my run-3").recipe
    assert before is not None
    assert after.sampler.lr == pytest.approx(before.sampler.lr / 2)
    assert after.sampler.speed == pytest.approx((before.sampler.speed or 0) / 2, rel=1e-3)
    assert RunDir.open(folder).recipe == before


def test_a_constant_step_takes_as_many_samples_as_cycles_did(folder: Path) -> None:
    v = examine(RunDir.open(folder))
    follow(suggested_commands.constant_steps(v))
    made = RunDir.open("my run-2")
    plan = made.recipe.schedule
    assert (plan.kind, plan.cycle_epochs, plan.temperature_schedule) == ("constant", None, "constant")
    assert abs(len(made.bank) - v.samples) <= 1


def test_a_run_without_held_out_examples_gets_them(folder: Path, recipe: Recipe) -> None:
    place = Path("bare")
    if RunDir.open(folder).recipe.model.name == "custom":
        changes = ["schedule.cycle_epochs=1", "schedule.burn_in_epochs=2"]
        atmc.sample(network(), data(0), epochs=12, out=place, overrides=changes, progress=None)
    else:
        run_recipe(replace(recipe, run=replace(recipe.run, evaluate=[])), place, progress=None)
    found = next(advice for advice in doctor(place) if "whether the chain mixes" in advice.title)
    follow(found.action)
    assert RunDir.open(place).splits == ["test"]
    assert not any("whether the chain mixes" in advice.title for advice in doctor(place))


def test_a_command_is_given_once(folder: Path) -> None:
    commands = [suggested_commands.split_command(advice.action)[1] for advice in doctor(folder)]
    given = [command for command in commands if command]
    assert given
    assert len(given) == len(set(given))


def test_a_run_of_no_folder_gets_the_sentence_alone() -> None:
    v = RunMeasurements(sampler="atmc")
    prescribed = (
        suggested_commands.longer_burn_in(v),
        suggested_commands.slower(v, "Halve"),
        suggested_commands.constant_steps(v),
    )
    for action in (*prescribed, suggested_commands.go_on(v, "Run longer"), suggested_commands.held_out(v)):
        assert suggested_commands.split_command(action)[1] == ""
        assert action.endswith(".")


def test_a_run_that_one_stands_in_is_begun_anew_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood there was `--out .-2`: a run inside the run, hidden."""
    (tmp_path / "run/samples").mkdir(parents=True)
    (tmp_path / "run-2").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    assert Path(suggested_commands.another(".")).resolve() == tmp_path / "run-3"
    monkeypatch.chdir(tmp_path / "run/samples")
    assert Path(suggested_commands.another("..")).resolve() == tmp_path / "run-3"
    assert suggested_commands.another(str(tmp_path / "run") + "/") == str(tmp_path / "run-3")
