"""`benchmarks/leaderboard.py`: its recipes, and every kind of training run from images to rows of the table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from atmc.data.corruptions import CORRUPTIONS
from atmc.engine.schedule import make_schedule
from atmc.posterior import metrics
from atmc.recipe.validation import check_recipe

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts there import each other by their bare names

import leaderboard
import leaderboard_rows as rows
import leaderboard_table as table

DATA = "synthetic:1x8x8?classes=4&train=276&test=60"
TINY = {each.kind + each.way: each for each in rows.tiny()}
KINDS = ("cycles", "atmc", "cyclesmean", "sgd", "swa", "dropout")  # every path through the code; `run` tries them all


def test_recipes_are_valid_and_names_differ() -> None:
    assert len({each.name for each in rows.TRAININGS}) == len(rows.TRAININGS)
    for each in rows.TRAININGS:
        for temperature in each.temperatures:
            recipe = check_recipe(rows.recipe_of(each, temperature))
            assert recipe.data.validation == 50_000 - each.images
            assert recipe.run.evaluate == []
        assert each.before is None or rows.TRAININGS.index(each.before) < rows.TRAININGS.index(each)


def test_a_sampler_differs_from_its_ablation_in_the_temperature_alone() -> None:
    """Where chains begin, T = 0 has as many steps left as they make, of the same size."""
    cold = rows.Training("cycles", "wrn16", 160)
    hot = rows.sampled(cold)[0]
    recipes = rows.recipe_of(cold), rows.recipe_of(hot, 0.05)
    one, two = (make_schedule(recipe, cold.images) for recipe in recipes)
    start = one.sample_after[rows.KEPT - 1]
    end = one.cycle_ends[0]
    assert abs((end - start) - two.steps) <= 1
    assert torch.allclose(one.lr[start:end], two.lr[: end - start])
    assert abs(one.sample_after[rows.KEPT] - start - two.sample_after[0]) <= 1
    for key in ("speed", "max_speed", "lr", "momentum"):
        assert getattr(recipes[0].sampler, key) == getattr(recipes[1].sampler, key)
    assert cold.total == hot.total == 160


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaderboard")
    options = argparse.Namespace(store=folder, data=DATA, time_budget=300.0, jobs=1, ood=["noise"], shift=2)
    for kind in KINDS:
        leaderboard.child(TINY[kind], options)
    return folder


def test_every_training_run_ends_and_says_what_its_networks_predict(store: Path) -> None:
    expected = {
        "cycles": {"cycles, T = 0": 6, "cycles, T = 0, means of modes": 2},
        "atmc": {"ATMC": 6, "ATMC, means of modes": 2},
        "cyclesmean": {"cycles, T = 0 from the mean": 6, "cycles, T = 0 from the mean, means of modes": 2},
        "sgd": {"deep ensemble": 2, "last-layer Laplace": 16},
        "swa": {"SWA": 1, "SWAG": 16},
        "dropout": {"MC dropout": 16},
    }
    for kind in KINDS:
        name = TINY[kind].name
        found = json.loads((store / f"{name}.json").read_text())
        assert found["status"] == "done"
        assert {method: len(about["epoch"]) for method, about in found["methods"].items()} == expected[kind]
        stored = np.load(store / f"{name}.npz")
        for method, count in expected[kind].items():
            probs = stored[f"probs.test.{method}"]
            assert probs.shape[0] == count
            assert probs.dtype == np.float32
            np.testing.assert_allclose(probs.sum(-1), 1.0, atol=0.02)
            if count > 1:
                assert not np.array_equal(probs[0], probs[1])


def test_the_temperature_is_chosen_on_held_out_images(store: Path) -> None:
    found = json.loads((store / f"{TINY['atmc'].name}.json").read_text())
    assert [temperature for temperature, _ in found["tried"]] == list(TINY["atmc"].temperatures)
    best, score = min(found["tried"], key=lambda each: each[1]["nll"])
    assert found["temperature"] == best
    stored = np.load(store / f"{TINY['atmc'].name}.npz")
    mean = stored["probs.validation.ATMC"].astype(float).mean(0)
    assert metrics.nll(mean, stored["labels.validation"]) == pytest.approx(score["nll"], abs=1e-4)


def test_the_table_has_prefixes_and_paired_differences(store: Path, tmp_path: Path) -> None:
    made = table.make(store, tmp_path)
    cycles = [row for row in made if row["method"] == "cycles, T = 0"]
    assert {(row["epochs"], row["networks"]) for row in cycles if row["all"]} == {(8, 3), (16, 6)}
    (atmc,) = [row for row in made if row["method"] == "ATMC" and row["epochs"] == 16 and row["all"]]
    stored = np.load(store / f"{TINY['atmc'].name}.npz")
    mean, labels = stored["probs.test.ATMC"].astype(float).mean(0), stored["labels.test"]
    assert atmc["test"]["nll"] == pytest.approx(metrics.nll(mean, labels), abs=1e-6)
    control = np.load(store / f"{TINY['cycles'].name}.npz")["probs.test.cycles, T = 0"].astype(float).mean(0)
    less = metrics.nll_each(control, labels) - metrics.nll_each(mean, labels)
    assert atmc["ahead_of_ablation"]["nll"] == pytest.approx((less.mean(), less.std(ddof=1) / len(less) ** 0.5))
    assert {"auroc", "aupr", "fpr95"} <= atmc["ood"]["noise"].keys()
    worst = [stored[f"shift.{kind}.5.ATMC"] for kind in CORRUPTIONS]
    assert atmc["shift"]["5"]["nll"] == pytest.approx(np.mean([metrics.nll(p, labels[:2]) for p in worst]))
    (half,) = [row for row in made if row["method"] == "ATMC" and row["epochs"] == 8 and row["all"]]
    assert half["ood"] == half["shift"] == {}, "OOD inputs were shown to all networks together"
    assert json.loads((tmp_path / "table.json").read_text())
    assert (tmp_path / "epochs-small.svg").exists()


@pytest.mark.parametrize(
    ("method", "control"),
    [
        ("ATMC", "cycles, T = 0"),
        ("SGHMC, means of modes", "cycles, T = 0, means of modes"),
        ("ATMC for long, means of modes", "cycles, T = 0 for long, means of modes"),
        ("cycles, T = 0 from the mean", "cycles, T = 0"),
        ("ATMC, noisy Dirichlet", "cycles, T = 0"),
        ("SWAG", "cycles, T = 0"),
    ],
)
def test_every_row_has_its_ablation(method: str, control: str) -> None:
    assert table.ablation_of(method) == control
