"""docs/temperature.md shows what results/temperature holds, and `benchmarks/temperature.py` measures what it says."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from atmc.engine import run
from atmc.posterior import metrics
from atmc.recipe import load_recipe
from atmc.recipe.settings import recipe_from_dict
from atmc.storage.run_directory import RunDir

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "temperature"
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names
tool, paging = map(importlib.import_module, ("temperature", "pages"))
KEPT, AGAIN = (
    json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"] for name in ("cpu.json", "calibrated.json")
)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    return {row["row"]: row for row in KEPT if row["recipe"]["seed"] == 0}


def test_generating_the_tables_again_changes_nothing(rows):
    found = tool.blocks(KEPT, AGAIN)
    text = (ROOT / "docs" / "temperature.md").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in text for name in found)
    assert paging.fill(text, found) == text


def test_the_rows_are_those_that_the_benchmark_would_run_now(rows):
    now = tool.recipes()
    assert rows.keys() == now.keys()
    assert len(KEPT) == len(rows) + len(tool.DECISIVE) * (len(tool.SEEDS) - 1)
    for row in KEPT:
        # A setting that is younger than the rows has the value with which nothing is changed.
        kept, made = recipe_from_dict(row["recipe"]).to_dict(), now[row["row"]].to_dict()
        for values in (kept, made):
            values.pop("run")  # nothing there changes what is sampled
            values.pop("name")
            values.pop("seed", None)
        assert kept == made, row["row"]


def test_the_figure_is_drawn_from_the_same_rows(rows):
    drawn = tool.figure(list(rows.values()))
    if f"matplotlib=={importlib.metadata.version('matplotlib')}\n" in (ROOT / "constraints.txt").read_text():
        assert drawn == (RESULTS / "nll.svg").read_text(encoding="utf-8")  # another version lays it out differently
    assert all(words in drawn for words in ("one sample", "all samples, T = 0", tool.ENSEMBLE))


def test_a_row_is_measured_from_what_the_run_stored(tmp_path):
    short = ["schedule.epochs=6", "schedule.cycle_epochs=2", "schedule.burn_in_epochs=0", "model.width=2", "chains=2"]
    short += ["data.name=digits", "schedule.warm_start_epochs=0", "schedule.warm_start_lr=0.05"]
    recipe = load_recipe(
        "digits-atmc", [*short, "data.validation=200", 'run.evaluate=["validation"]', "run.device=cpu"]
    )
    row = tool.measured("x", run(recipe, tmp_path / "run", progress=None).path)
    opened = RunDir.open(tmp_path / "run")
    probs, labels = opened.predictions("validation").numpy(), opened.labels("validation").numpy()
    assert row["samples"] == len(probs) == 6
    assert row["nll"] == pytest.approx(metrics.nll(metrics.predictive(probs), labels))
    assert row["single nll"] == pytest.approx(sum(metrics.nll(sample, labels) for sample in probs) / 6)
    losses = [[r["loss"] for r in opened.metrics() if r["event"] == "log" and r["chain"] == chain] for chain in (0, 1)]
    assert row["training_loss"] == pytest.approx((losses[0][-1] + losses[1][-1]) / 2)
    assert row["recipe"] == recipe.to_dict()
    assert row["calibrated nll"] < row["nll"]  # far from calibrated after six epochs


def test_the_benchmark_writes_and_prints_what_the_page_has(tmp_path, monkeypatch, capsys):
    """Its whole way, with runs of the same names that take a second, and twice: then it only reads."""
    short = "schedule.epochs=4 schedule.cycle_epochs=2 schedule.burn_in_epochs=0 model.width=2 data.validation=200"
    tiny = [*short.split(), 'run.evaluate=["validation"]', "run.device=cpu", "target.likelihood=categorical"]
    tiny += [
        "target.likelihood_options={}",
        "data.name=digits",
        "schedule.warm_start_epochs=0",
        "schedule.warm_start_lr=0.05",
    ]
    temperatures = {"T = 1": 1.0, "T = 0.3": 0.3, tool.BEST: 0.1, "T = 0": 0.0, tool.ENSEMBLE: 0.03}
    made = {name: load_recipe("digits-atmc", [*tiny, f"sampler.temperature={t}"]) for name, t in temperatures.items()}
    monkeypatch.setattr(tool, "recipes", lambda: made)
    monkeypatch.setattr(tool, "SEEDS", (0, 1))
    argv = [
        "temperature.py",
        "--out",
        str(tmp_path / "runs"),
        "--results",
        str(tmp_path / "results"),
        "--seeds",
        "0",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", argv)
    printed = []
    for _ in range(2):
        tool.main()
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    kept = json.loads((tmp_path / "results" / "cpu.json").read_text(encoding="utf-8"))["rows"]
    seeds = [(row["row"], row["recipe"]["seed"]) for row in kept]
    assert seeds == [(name, 0) for name in made] + [(name, 1) for name in made if name in tool.DECISIVE]
    assert len({row["nll"] for row in kept}) == len(kept)
    assert printed[0].endswith("\n\n".join(tool.blocks(kept, []).values()) + "\n")
    assert (tmp_path / "results" / "nll.svg").exists()
    monkeypatch.setattr(sys, "argv", [*argv, "--only", "T = 0"])
    tool.main()
    again = json.loads((tmp_path / "results" / "calibrated.json").read_text(encoding="utf-8"))["rows"]
    assert [row for row in kept if row["row"] == "T = 0"] == again
