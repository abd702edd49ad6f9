"""Small real runs (the digits recipe shrunk to seconds) with the rows collected from them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from atmc.engine.runner import run
from atmc.recipe.toml_files import load_recipe

from .rescored import collecting, tabling

TINY = ["model.width=2", "schedule.epochs=6", "schedule.cycle_epochs=2", "schedule.burn_in_epochs=0", "run.device=cpu"]
TINY += ["schedule.warm_start_epochs=0", "schedule.warm_start_lr=0.05", "sampler.temperature=1.0"]
TINY += ["data.name=digits", "sampler.inertia=0.001", "sampler.speed=0.004", "sampler.max_speed=0.0133"]
SGD = ["data.name=digits", "model.width=2", "schedule.epochs=3", "run.device=cpu"]


@pytest.fixture(scope="package")
def runs(tmp_path_factory):
    """Two seeds of a chain, the first again without test predictions, four chains, two networks side by side."""
    folder = tmp_path_factory.mktemp("runs")

    def make(name: str, recipe: str, settings: list[str]) -> Path:
        return run(load_recipe(recipe, settings), folder / name, progress=None).path

    return SimpleNamespace(
        one=make("one", "digits-atmc", [*TINY, "seed=1"]),
        two=make("two", "digits-atmc", [*TINY, "seed=2"]),
        blind=make("blind", "digits-atmc", [*TINY, "seed=1", "data.validation=97", 'run.evaluate=["validation"]']),
        four=make("four", "digits-atmc", [*TINY, "chains=4", "schedule.epochs=4"]),
        ensemble=make("ensemble", "digits-sgd", [*SGD, "chains=2"]),
    )


@pytest.fixture(scope="package")
def stored(runs, tmp_path_factory):
    """Rows collected from these runs, with the table made of them."""
    folder = tmp_path_factory.mktemp("results")
    collecting.collect([runs.one, runs.two], "atmc", folder, ood=["noise"])
    collecting.collect([runs.four], "four", folder, ood=[])
    collecting.collect([runs.ensemble], "ensemble", folder, ood=[])
    collecting.collect([runs.ensemble], "sgd", folder, average="chain", ood=[])
    rows = tabling.build(folder)
    tabling.save(folder, rows)
    return SimpleNamespace(folder=folder, rows=rows)
