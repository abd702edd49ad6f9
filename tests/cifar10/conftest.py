"""Small real runs (the digits recipe shrunk to seconds) with the rows collected from them, and the long ones kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atmc.chain.recipe import load_recipe
from atmc.chain.runner import run

from .rescored import RESULTS, collecting, tabling

TINY = ["model.width=2", "schedule.epochs=6", "schedule.cycle_epochs=2", "schedule.burn_in_epochs=0", "run.device=cpu"]
TINY += ["data.name=digits", "schedule.warm_start_epochs=0", "sampler.speed=0.004", "sampler.max_speed=0.0133"]
HELD = ["data.validation=97", 'run.evaluate=["test", "validation"]']
SGD = ["data.name=digits", "model.width=2", "schedule.epochs=3", "run.device=cpu"]


@pytest.fixture(scope="package")
def runs(tmp_path_factory):
    """Two seeds of a chain, the first again without test predictions, and two networks trained side by side."""
    folder = tmp_path_factory.mktemp("runs")

    def make(name: str, recipe: str, settings: list[str]) -> Path:
        return run(load_recipe(recipe, settings), folder / name, progress=None).path

    return SimpleNamespace(
        one=make("one", "digits-atmc", [*TINY, *HELD, "seed=1"]),
        two=make("two", "digits-atmc", [*TINY, *HELD, "seed=2"]),
        blind=make("blind", "digits-atmc", [*TINY, *HELD, "seed=1", 'run.evaluate=["validation"]']),
        ensemble=make("ensemble", "digits-sgd", [*SGD, "chains=2"]),
    )


@pytest.fixture(scope="package")
def labels() -> np.ndarray:
    """Those of CIFAR-10's test set, as every kept row has them."""
    return np.load(RESULTS / "atmc-settled-0.npz")["labels"]


@pytest.fixture(scope="package")
def stored(runs, tmp_path_factory):
    """Rows collected from these runs, with the table made of them."""
    folder = tmp_path_factory.mktemp("results")
    collecting.collect([runs.one, runs.two], "atmc", folder, outside=["noise"])
    collecting.collect([runs.ensemble], "ensemble", folder, outside=[])
    collecting.collect([runs.ensemble], "sgd", folder, average="chain", outside=[])
    rows = tabling.build(folder)
    tabling.save(folder, rows)
    return SimpleNamespace(folder=folder, rows=rows)


@pytest.fixture(scope="package")
def explored() -> dict[str, dict[str, Any]]:
    """The runs of exploration.json at full size, by name."""
    runs = json.loads((RESULTS / "exploration.json").read_text(encoding="utf-8"))["runs"]
    return {run["name"]: run for run in runs if run["network"] == "resnetpp-56x32"}


@pytest.fixture(scope="package")
def rows() -> dict[tuple[str, str], dict[str, Any]]:
    """Those of table.json, by run and kind."""
    found = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    return {(row["run"], row["kind"]): row for row in found}
