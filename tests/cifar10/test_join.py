"""Rows that were stored one by one are joined to what collecting them together gives, or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from atmc.recipe.toml_files import load_recipe, recipe_to_toml

from .rescored import collecting, storing, tabling, tool


@pytest.fixture
def apart(runs, tmp_path):
    """The two seeds, each collected where it ran."""
    for number, path in enumerate((runs.one, runs.two)):
        collecting.collect([path], "atmc", tmp_path / str(number), outside=["noise"])
    return [tmp_path / "0", tmp_path / "1"]


def test_rows_of_two_days_are_the_row_of_one(stored, apart):
    """Joined into the folder of the first, as one does with results/."""
    first = apart[0]
    assert tool.main(["join", *map(str, apart), "--row", "atmc", "--out", str(first)]) == 0
    found, expected = (json.loads((folder / "atmc.row.json").read_text()) for folder in (first, stored.folder))
    assert found.pop("gpu_seconds") == pytest.approx(expected.pop("gpu_seconds"), abs=0.11)  # rounded twice
    assert found == expected
    assert load_recipe(first / "atmc.toml") == load_recipe(stored.folder / "atmc.toml")
    for file in expected["probabilities"]:
        one, two = np.load(first / file), np.load(stored.folder / file)
        assert one.files == two.files
        assert all(np.array_equal(one[name], two[name]) for name in two.files)


def test_networks_of_two_days_are_an_ensemble(runs, apart, tmp_path):
    expected = collecting.collect([runs.one, runs.two], "both", tmp_path / "all", average="all", outside=["noise"])
    words = ["--row", "atmc", "--name", "both", "--average", "all", "--out", str(tmp_path / "out")]
    assert tool.main(["join", *map(str, apart), *words]) == 0
    row = json.loads((tmp_path / "out" / "both.row.json").read_text())
    assert row.pop("made_of") == "atmc"
    assert row.keys() == expected.keys()
    for key in row.keys() - {"gpu_seconds", "validation", *storing.SCORES}:
        assert row[key] == expected[key], key
    assert {score: row[score] for score in storing.SCORES} == pytest.approx({s: expected[s] for s in storing.SCORES})
    one, two = (storing.load_predictors(tmp_path / folder, expected)[0] for folder in ("out", "all"))
    for name in ("probs", "labels", "epochs", "last"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert one.outside["noise"].astype(float) == pytest.approx(two.outside["noise"].astype(float), abs=1e-3)
    assert np.array_equal(one.trace, two.trace)
    assert sorted(np.unique(one.trace[:, 0])) == [0, 1]  # the chains 0 of two runs are two chains
    noted, known = row["validation"][0], expected["validation"][0]
    assert {key: sorted(values) for key, values in noted.items()} == {key: sorted(known[key]) for key in known}


def by_hand(folder, seed, *, samples=2, times=(1.0, 2.0), **changes):
    """A row of a network with one example and one class of doubt, as another machine may have stored it."""
    folder.mkdir()
    sure = np.tile(np.float32([[1e-12, 1.0]]), (samples, 1, 1))  # and wrong: float16 has no such number
    found = storing.Predictor(
        probs=sure,
        labels=np.zeros(1, np.uint8),
        epochs=np.float32(times),
        trace=np.float32([[0, 1, 0.5]]),
        outside={"noise": np.full((1, 2), 0.5 + 0.1 * seed, np.float16)},
        last=sure[-1:],
    )
    row = {
        **{"row": "x", "label": None, "temperature": 1.0, "augment": "none", "samples": samples, "epochs": times[-1]},
        **{"chains": 1, "status": "done", "seeds": [seed], "gpu_seconds": 1.5, "rollbacks": seed, "device": ["here"]},
        **{"versions": {"atmc": "1"}, "data": {"digest": "a"}, "recipe": "x.toml", "validation": [{"nll": [1.0]}]},
        **dict.fromkeys(storing.SCORES, 0.0),
        "probabilities": storing.save_predictor(folder, "x-0", found),
        **changes,
    }
    storing.save_json(folder / "x.row.json", row)
    recipe = load_recipe("digits-atmc", [f"seed={seed}"])
    (folder / "x.toml").write_text(recipe_to_toml(recipe))
    return folder


@pytest.mark.parametrize("together", [False, True])
def test_what_differs_between_joined_rows_is_said(together, tmp_path):
    first = by_hand(tmp_path / "a", 1)
    unlike = {"status": "unfinished", "device": ["there"], "versions": {"atmc": "2"}, "label": "Other"}
    second = by_hand(tmp_path / "b", 2, samples=3, times=(0.5, 1.0, 1.5), **unlike)
    words = ["--row", "x", "--label", "Both", "--name", "y", "--average", "all" if together else "run"]
    assert tool.main(["join", str(first), str(second), "--out", str(tmp_path), *words]) == 0
    row = json.loads((tmp_path / "y.row.json").read_text())
    said = {key: row[key] for key in ("label", "status", "epochs", "seeds", "gpu_seconds", "rollbacks", "device")}
    assert said == {
        **{"label": "Both", "status": "unfinished", "epochs": 1.5, "seeds": [1, 2], "gpu_seconds": 3.0},
        **{"rollbacks": 3, "device": ["here", "there"]},
    }
    assert row["versions"] == {"atmc": "1 and 2"}
    assert (row["samples"], row["chains"]) == ((5, 2) if together else (2, 1))
    assert row["validation"] == ([{"nll": [1.0, 1.0]}] if together else [{"nll": [1.0]}] * 2)
    assert row["nll"] == pytest.approx(-math.log(1e-12), rel=1e-5)
    found = storing.load_predictors(tmp_path, row)
    if together:
        assert found[0].probs.dtype == np.float32
        assert list(found[0].epochs) == [0.5, 1.0, 1.0, 1.5, 2.0]
        assert len(found[0].final) == 1  # the first row's: the second has not come as far
        assert found[0].outside["noise"][0, 0] == pytest.approx((2 * 0.6 + 3 * 0.7) / 5, abs=1e-3)


def test_rows_that_do_not_belong_together_are_refused(stored, apart, tmp_path, capsys):
    def refused(*folders: Path, row: str = "atmc", more: tuple[str, ...] = ()) -> str:
        words = ["--row", row, "--out", str(tmp_path / "no"), *more]
        assert tool.main(["join", *map(str, folders), *words]) == 2
        return capsys.readouterr().err

    assert "two runs have the same seed" in refused(apart[0], apart[0])
    assert "a seed comes twice" in refused(stored.folder, apart[1])
    assert "holds no row atmc" in refused(apart[0], tmp_path)
    assert "it names files" in refused(*apart, more=("--name", "../up"))
    assert "an ensemble needs a --name" in refused(*apart, more=("--average", "all", "--out", str(apart[0])))
    assert "has seed 2, which would be lost" in refused(apart[0], more=("--out", str(apart[1])))
    one = by_hand(tmp_path / "one", 1)
    assert "different test sets" in refused(one, by_hand(tmp_path / "set", 2, data={"digest": "b"}), row="x")
    assert "different labels" in refused(one, by_hand(tmp_path / "label", 2, label="B"), row="x")
    assert "collect them in the same way" in refused(one, by_hand(tmp_path / "part", 2, seeds=["2:0"]), row="x")
    assert "collect them in the same way" in refused(one, by_hand(tmp_path / "chains", 2, chains=4), row="x")
    recipe = apart[1] / "atmc.toml"
    recipe.write_text(recipe.read_text().replace("cycle_epochs = 2\n", "cycle_epochs = 3\n"))
    assert "schedule.cycle_epochs = 3" in refused(*apart)
    recipe.unlink()
    assert "atmc.toml is missing" in refused(*apart)
    assert not (tmp_path / "no").exists()


def test_files_of_an_earlier_row_of_that_name_go(stored, apart):
    first = apart[0]
    for name in ("atmc-0.part1.npz", "atmc-7.npz", "atmc-0.last3.npz", "atmc-cold-0.npz"):
        (first / name).write_bytes(b"")
    assert tool.main(["join", *map(str, apart), "--row", "atmc", "--out", str(first)]) == 0
    assert {path.name for path in first.glob("*.npz")} == {"atmc-0.npz", "atmc-1.npz", "atmc-cold-0.npz"}


def test_the_time_of_an_ensemble_and_of_its_members_is_counted_once(apart, tmp_path):
    first = apart[0]
    assert tool.main(["join", *map(str, apart), "--row", "atmc", "--out", str(first)]) == 0
    words = ["--row", "atmc", "--name", "both", "--average", "all", "--out", str(first)]
    assert tool.main(["join", str(first), *words]) == 0
    rows = tabling.build(first)
    seconds = {row["run"]: row["gpu_seconds"] for row in rows}
    assert seconds["both"] == seconds["atmc"] > 0
    assert tabling.total_seconds(rows) == seconds["atmc"]
    assert tabling.total_seconds([row for row in rows if row["run"] == "both"]) == seconds["both"]
