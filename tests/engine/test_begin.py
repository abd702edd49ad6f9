"""A folder becomes a run once nothing of its recipe can be wrong any more, and stays one without recipe.toml."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import InputError
from atmc.data import ImageData
from atmc.engine import runner
from atmc.engine.run_data import RunData, load_data
from atmc.engine.runner import run
from atmc.recipe.build import build_model
from atmc.recipe.toml_files import recipe_to_toml
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir
from atmc.storage.run_recipe import load_recipe_or_run


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"target": {"prior": "custom"}}, 'target.prior = "custom" needs the rule'),
        ({"sampler": {"options": {"measure_every": "x"}}}, "measure_every must be a whole number"),
        ({"model": {"options": {"gian": 1}}}, "unknown key model.options.gian; there are none"),
        ({"model": {"name": "resnetpp", "depth": 8, "options": {"gian": 1}}}, "did you mean model.options.gain?"),
        ({"model": {"name": "resnetpp", "norm": "bn"}, "sampler": {"name": "sgd"}}, "model.norm"),
        ({"model": {"name": "rsnet"}}, "did you mean resnet?"),
        ({"target": {"likelihood": "dirclip", "likelihood_options": {"alhpa": 1}}}, "likelihood_options.alpha?"),
        ({"schedule": {"sample_every_steps": 10_000}}, "schedule.sample_every_steps"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("warm", [0, 2])
def test_a_mistake_found_late_leaves_no_run_behind(
    tiny: Any, change: Any, tmp_path: Path, sections: dict[str, dict[str, Any]], words: str, warm: int
) -> None:
    """Not even one that only the sampler can find, which in a warm start is made much later."""
    recipe = change(tiny, schedule={"warm_start_epochs": warm})
    if sections.get("sampler", {}).get("name") == "sgd":
        if warm:
            pytest.skip("SGD has no warm start")
        recipe = change(
            tiny, sampler={"mass": None, "friction": None, "inertia": None}, schedule={"epochs": 4, "cycle_epochs": 2}
        )
    with pytest.raises(InputError) as caught:
        run(change(recipe, **sections), tmp_path / "run", progress=None)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Manifest.exists(tmp_path / "run")
    assert run(tiny, tmp_path / "run", progress=None).status == "done"


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_a_run_without_a_checkpoint_gives_way_to_another_recipe(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fingerprint: Any, first: int, second: int
) -> None:
    """What a kill in the first moments leaves, or an older atmc that found the mistake too late."""
    folder = tmp_path / "run"
    with monkeypatch.context() as killed:
        killed.setattr(runner.Checkpointer, "begin", _die)
        with pytest.raises(SystemExit):
            run(change(tiny, chains=first, seed=4), folder, progress=None)
    assert Manifest.exists(folder)
    recipe = change(tiny, chains=second)
    run(recipe, folder, progress=None)
    run(recipe, tmp_path / "other", progress=None)
    assert fingerprint(folder) == fingerprint(tmp_path / "other")
    assert RunDir.open(folder).recipe == recipe
    assert len(Manifest.load(folder).values["sessions"]) == 1


def _die(keeper: Any) -> int:
    raise SystemExit


@pytest.mark.parametrize("chains", [1, 2])
def test_a_run_with_a_checkpoint_does_not(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chains: int
) -> None:
    recipe = change(tiny, chains=chains)
    begin: Callable[[Any], int] = runner.Checkpointer.begin

    def begin_and_die(keeper: Any) -> int:
        begin(keeper)
        raise SystemExit

    with monkeypatch.context() as killed:
        killed.setattr(runner.Checkpointer, "begin", begin_and_die)
        with pytest.raises(SystemExit):
            run(recipe, tmp_path / "run", progress=None)
    with pytest.raises(InputError, match="begun with seed = 3, not 4"):
        run(change(recipe, seed=4), tmp_path / "run", progress=None)


def test_a_run_goes_on_without_its_recipe_file(tiny: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(tiny, folder, progress=None)
    (folder / "recipe.toml").unlink()
    (folder / "manifest.json").unlink()
    for name in (folder, folder / "manifest.copy.json"):
        assert load_recipe_or_run(name) == tiny
    with pytest.raises(InputError, match=r"unknown key sampler\.temprature"):
        load_recipe_or_run(folder, ["sampler.temprature=1"])
    assert run(load_recipe_or_run(folder), folder, progress=None).status == "done"
    assert (folder / "recipe.toml").read_text() == recipe_to_toml(tiny)
    assert load_recipe_or_run(folder, ["seed=4"]).seed == 4  # from the file again
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no recipe"):
        load_recipe_or_run(tmp_path / "empty")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((torch.zeros(4, 1, 6, 6), torch.tensor([0, 1, 2, 3])), "test: label 3 of example 3 is out of range"),
        (
            (torch.zeros(4, 1, 5, 5), torch.zeros(4).long()),
            r"test: the network does not take examples of shape \[1, 5, 5\]",
        ),
    ],
)
def test_evaluation_sets_are_looked_at_before_the_folder_becomes_a_run(
    tiny: Any, tmp_path: Path, held: tuple[Any, Any], words: str
) -> None:
    examples = load_data(tiny)
    wrong = RunData(examples.train, {"test": ImageData.from_tensors(*held, split="test")})
    with pytest.raises(InputError, match=words):
        run(tiny, tmp_path / "run", progress=None, data=wrong)
    assert not (tmp_path / "run").exists()


def test_too_large_a_batch_is_not_blamed_on_the_schedule(tiny: Any, change: Any, tmp_path: Path) -> None:
    recipe = change(tiny, data={"batch_size": 5000}, schedule={"cycle_epochs": 1, "burn_in_epochs": 6})
    with pytest.raises(InputError, match=r"data\.batch_size = 5000 is larger than the 90 training examples"):
        run(recipe, tmp_path / "run", progress=None)


def test_chains_begin_at_networks_of_their_own(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = change(tiny, chains=2)
    examples = load_data(recipe)
    given = [build_model(recipe, examples.train.shape, examples.classes, seed) for seed in (7, 8)]
    found: list[dict[str, torch.Tensor]] = []
    begin: Callable[[Any], int] = runner.Checkpointer.begin

    def look(keeper: Any) -> int:
        found.append({name: tensor.clone() for name, tensor in keeper.chain.model.state_dict().items()})
        return begin(keeper)

    monkeypatch.setattr(runner.Checkpointer, "begin", look)
    assert run(recipe, tmp_path / "run", progress=None, model=given).status == "done"
    for own, network in zip(found, given, strict=True):
        for name, tensor in network.state_dict().items():
            assert torch.equal(own[name], tensor)
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 4))
    with pytest.raises(InputError, match="network 1 has other tensors than network 0"):
        run(recipe, tmp_path / "other", progress=None, model=[given[0], other])
    with pytest.raises(InputError, match="1 networks for 2 chains"):
        run(recipe, tmp_path / "other", progress=None, model=given[:1])
