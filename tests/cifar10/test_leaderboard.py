"""`benchmarks/leaderboard.py`: its recipes, and every kind of training run from images to rows of the table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from atmc.data.corruptions import CORRUPTIONS
from atmc.posterior import metrics
from atmc.recipe.validation import check_recipe

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts there import each other by their bare names

import leaderboard
import leaderboard_rows as rows
import leaderboard_table as table

DATA = "synthetic:1x8x8?classes=4&train=276&test=60"
TINY = [
    rows.Training("sgd", "small", 2, chains=2, held_out=20),
    rows.Training("swa", "small", 8, held_out=20),
    rows.Training("dropout", "small", 1, held_out=20),
    rows.Training("atmc", "small", 8, temperature=0.0, cycle=4, held_out=20),
    rows.Training("atmc", "small", 8, temperature=0.05, cycle=4, held_out=20),
    rows.Training("atmc", "small", 8, temperature=0.2, cycle=4, held_out=20),
    rows.Training("sghmc", "small", 4, temperature=0.05, cycle=4, held_out=20),
]


def test_recipes_are_valid_and_names_differ() -> None:
    assert len({each.name for each in rows.TRAININGS}) == len(rows.TRAININGS)
    for each in rows.TRAININGS:
        recipe = check_recipe(rows.recipe_of(each))
        assert recipe.data.validation == (0 if each.network.startswith("wrn28") else 5000)
        assert recipe.run.evaluate == []


def test_the_ablation_differs_in_the_temperature_alone() -> None:
    hot, cold = (rows.recipe_of(rows.Training("atmc", "wrn16", 160, temperature=t)) for t in (0.05, 0.0))
    assert (hot.data, hot.model, hot.target, hot.run) == (cold.data, cold.model, cold.target, cold.run)
    same = {"temperature_schedule", "explore_fraction"}
    for part in ("sampler", "schedule"):
        one, two = getattr(hot, part).__dict__, getattr(cold, part).__dict__
        assert {key for key in one if one[key] != two[key]} <= same | {"temperature"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaderboard")
    options = argparse.Namespace(store=folder, data=DATA, time_budget=300.0, jobs=1, ood=["noise"], shift=8)
    for each in TINY:
        leaderboard.child(each, options)
    return folder


def test_every_training_run_ends_and_says_what_its_networks_predict(store: Path) -> None:
    expected = {"sgd": {"deep ensemble": 2, "last-layer Laplace": 16}, "swa": {"SWA": 1, "SWAG": 16}}
    expected |= {"dropout": {"MC dropout": 16}, "sghmc": {"SGHMC": 3}}
    for each in TINY:
        found = json.loads((store / f"{each.name}.json").read_text())
        assert found["status"] == "done"
        counts = {method: len(about["epoch"]) for method, about in found["methods"].items()}
        if each.kind in expected:
            assert counts == expected[each.kind]
        stored = np.load(store / f"{each.name}.npz")
        for method, count in counts.items():
            probs = stored[f"probs.test.{method}"]
            assert probs.shape[0] == count
            assert probs.dtype == np.float32
            np.testing.assert_allclose(probs.sum(-1), 1.0, atol=0.02)
            if method in ("SWAG", "MC dropout"):
                assert not np.array_equal(probs[0], probs[1])


def test_the_table_takes_prefixes_chooses_on_held_out_images_and_scores_the_rest(store: Path, tmp_path: Path) -> None:
    made = {row["row"]: row for row in table.make(store, tmp_path)}
    cycles = [row for row in made.values() if row["method"] == "cycles, T = 0"]
    assert {(row["epochs"], row["networks"]) for row in cycles if row["all"]} == {(4, 3), (8, 6)}
    atmc = [row for row in made.values() if row["method"] == "ATMC" and row["epochs"] == 8 and row["all"]]
    assert len(atmc) == 2
    best = min(atmc, key=lambda row: row["validation"]["nll"])
    for row in atmc:
        assert ("test" in row) == (row is best), "only what held-out images chose is scored on the test set"
    stored = np.load(store / f"small-atmc-T{best['temperature']:g}-8-s0.npz")
    mean = stored["probs.test.ATMC"].astype(float).mean(0)
    assert best["test"]["nll"] == pytest.approx(metrics.nll(mean, stored["labels.test"]), abs=1e-6)
    control = np.load(store / "small-atmc-T0-8-s0.npz")["probs.test.cycles, T = 0"].astype(float).mean(0)
    labels = stored["labels.test"]
    less = metrics.nll_each(control, labels) - metrics.nll_each(mean, labels)
    assert best["ahead_of_ablation"]["nll"] == pytest.approx((less.mean(), less.std(ddof=1) / len(less) ** 0.5))
    assert {"auroc", "aupr", "fpr95"} <= best["ood"]["noise"].keys()
    worst = [stored[f"shift.{kind}.5.ATMC"] for kind in CORRUPTIONS]
    assert best["shift"]["5"]["nll"] == pytest.approx(np.mean([metrics.nll(p, labels[:8]) for p in worst]))
    assert json.loads((tmp_path / "table.json").read_text())
    assert (tmp_path / "frontier-small.svg").exists()
