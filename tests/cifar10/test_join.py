"""Rows that were stored one by one are joined to what collecting them together gives, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from atmc.recipe.toml_files import load_recipe, recipe_to_toml

from .rescored import collecting, scoring, storing, tabling, tool


@pytest.fixture
def apart(runs, tmp_path):
    """The two seeds, each collected where it ran."""
    for number, path in enumerate((runs.one, runs.two)):
        collecting.collect([path], "atmc", tmp_path / str(number), ood=["noise"])
    return [tmp_path / "0", tmp_path / "1"]


def test_rows_of_two_days_are_the_row_of_one(stored, apart):
    """Joined into the folder of the first, as one does with results/."""
    first = apart[0]
    assert tool.main(["join", *map(str, apart), "--row", "atmc", "--out", str(first)]) == 0
    found, expected = (json.loads((folder / "atmc.row.json").read_text()) for folder in (first, stored.folder))
    assert found.pop("gpu_seconds") == pytest.approx(expected.pop("gpu_seconds"), abs=0.11)  # rounded twice
    assert found == expected
    assert load_recipe(first / "atmc.toml") == load_recipe(stored.folder / "atmc.toml")
    for file in [*expected["probabilities"], *(name for last in expected["last"] for name in last)]:
        assert (first / file).read_bytes() == (stored.folder / file).read_bytes()


def by_hand(folder: Path, seed: int, epoch: float = 2.0, samples: int = 1, **changes) -> Path:
    """A row of a network with one example, as another machine may have stored it."""
    folder.mkdir()
    probs = np.float32([[[0.1 * seed, 1 - 0.1 * seed]]])
    times, labels = [epoch] * samples, np.zeros(1, np.uint8)
    curves = scoring.curves(np.repeat(probs, samples, 0), labels, np.array(times), np.zeros(samples), None)
    row = {
        **{"row": "x", "label": None, "temperature": 1.0, "augment": "none", "samples": samples, "epochs": epoch},
        **{"chains": 1, "status": "done", "seeds": [seed], "gpu_seconds": 1.5, "rollbacks": seed, "device": ["here"]},
        **{"versions": {"atmc": "1"}, "data": {"digest": "a"}, "recipe": "x.toml"},
        **changes,
    }
    storing.save_row(folder, row, [storing.Predictor(probs, labels, curves=curves)])
    (folder / "x.toml").write_text(recipe_to_toml(load_recipe("digits-atmc", [f"seed={seed}"])))
    return folder


@pytest.mark.parametrize("together", [False, True])
def test_what_differs_between_joined_rows_is_said(together, tmp_path):
    first = by_hand(tmp_path / "a", 1)
    unlike = {"status": "unfinished", "device": ["there"], "versions": {"atmc": "2"}, "label": "Other"}
    second = by_hand(tmp_path / "b", 2, epoch=1.5, **unlike)
    words = ["--row", "x", "--label", "Both", "--name", "y", "--average", "all" if together else "run"]
    assert tool.main(["join", str(first), str(second), "--out", str(tmp_path), *words]) == 0
    row = json.loads((tmp_path / "y.row.json").read_text())
    said = {key: row[key] for key in ("label", "status", "epochs", "seeds", "gpu_seconds", "rollbacks", "device")}
    assert said == {
        **{"label": "Both", "status": "unfinished", "epochs": 1.5, "seeds": [1, 2], "gpu_seconds": 3.0},
        **{"rollbacks": 3, "device": ["here", "there"]},
    }
    assert row["versions"] == {"atmc": "1 and 2"}
    assert row["made_of"] == "x"
    assert (row["samples"], row["chains"]) == ((2, 2) if together else (1, 1))
    expected = -np.log(0.15) if together else -np.log([0.1, 0.2]).mean()
    assert row["nll"] == pytest.approx(expected, rel=1e-5)
    if together:
        [found] = storing.load_predictors(tmp_path, row)
        assert found.curves["epoch"] == [1.5, 2.0]
        assert found.probs[:, 0, 0] == pytest.approx([0.2, 0.1])


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
    assert "only averages are stored" in refused(*apart, more=("--average", "all", "--name", "both"))
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


def test_files_of_an_earlier_row_of_that_name_go(apart):
    first = apart[0]
    for name in ("atmc-7.npz", "atmc-0.last3.npz", "atmc-cold-0.npz"):
        (first / name).write_bytes(b"")
    assert tool.main(["join", *map(str, apart), "--row", "atmc", "--out", str(first)]) == 0
    kept = {"atmc-0.npz", "atmc-1.npz", "atmc-0.last0.npz", "atmc-1.last0.npz", "atmc-cold-0.npz"}
    assert {path.name for path in first.glob("*.npz")} == kept


def test_the_time_of_an_ensemble_and_of_its_members_is_counted_once(stored, tmp_path):
    words = ["--row", "sgd", "--name", "both", "--average", "all", "--out", str(tmp_path)]
    assert tool.main(["join", str(stored.folder), "--row", "sgd", "--out", str(tmp_path)]) == 0
    assert tool.main(["join", str(tmp_path), *words]) == 0
    rows = tabling.build(tmp_path)
    seconds = {row["run"]: row["gpu_seconds"] for row in rows}
    assert seconds["both"] == seconds["sgd"] > 0
    assert tabling.total_seconds(rows) == seconds["sgd"]
    assert tabling.total_seconds([row for row in rows if row["run"] == "both"]) == seconds["both"]
