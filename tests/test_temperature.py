"""docs/temperature.md says what results/temperature holds, and `benchmarks/temperature.py` measures what it says."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from atmc.chain import load_recipe, run
from atmc.chain.rundir import RunDir
from atmc.chain.settings import of_older_run, recipe_from_dict
from atmc.posterior import metrics

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names
tool = importlib.import_module("temperature")
PAGE = (ROOT / "docs" / "temperature.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    kept = json.loads((ROOT / "results" / "temperature" / "cpu.json").read_text(encoding="utf-8"))["rows"]
    return {row["row"]: row for row in kept}


def test_the_page_has_the_table_that_was_measured(rows):
    assert tool.table(list(rows.values())) in PAGE


def test_the_rows_are_those_that_the_benchmark_would_run_now(rows):
    now = tool.recipes()
    assert rows.keys() == now.keys()
    for name, recipe in now.items():
        # A setting that is younger than the rows has the value with which nothing is changed.
        kept, made = recipe_from_dict(of_older_run(rows[name]["recipe"])).to_dict(), recipe.to_dict()
        for values in (kept, made):
            values.pop("run")  # nothing there changes what is sampled
            values.pop("name")
        assert kept == made, name


def test_what_is_said_of_the_table_is_in_it(rows):
    hot, warm, zero = (rows[f"T = {t}"] for t in ("1", "0.3", "0"))
    one_chain = [row for row in rows.values() if row["recipe"]["chains"] == 1]
    usual = [row for row in one_chain if row["recipe"]["target"]["likelihood"] == "categorical"]
    assert warm["nll"] == min(row["nll"] for row in usual)
    surer, sure, unsure, clipped = (rows[f"T = 1, {name}"] for name in tool.SURE)
    assert sorted(one_chain, key=lambda row: row["nll"])[:2] == [surer, sure]
    both, alone = ([f"{row[key]:.3f}" for row in (surer, sure)] for key in ("nll", "single nll"))
    said = f"single chains, {' and '.join(both)}, and a sample alone has {' and '.join(alone)}, where"
    assert said.replace("0.", ".") in TEXT
    assert min(row["single nll"] for row in rows.values() if row is not sure and row is not surer) > 0.59
    assert f"far too unsure (ECE {unsure['ece']:.3f})".replace("0.", ".") in TEXT
    assert f"is too sure ({clipped['single nll']:.3f} alone)" in TEXT
    assert warm["ece"] == min(row["ece"] for row in rows.values())
    assert f"{warm['nll']:.3f} instead of {zero['nll']:.3f}".replace("0.", ".") in TEXT
    assert abs(warm["accuracy"] - zero["accuracy"]) < 0.003
    assert f"(training loss {zero['training_loss']:.3f})".replace("0.", ".") in TEXT
    assert f"(training loss {hot['training_loss']:.3f})".replace("0.", ".") in TEXT
    ensemble, short = rows[tool.ENSEMBLE], rows["T = 0.3, four chains"]
    said = f"have {100 * ensemble['accuracy']:.1f} / {ensemble['nll']:.3f} together".replace("0.4", ".4")
    assert said in TEXT
    assert f"(training loss {ensemble['training_loss']:.3f}; learning".replace("0.", ".") in TEXT
    assert f"(training loss {short['training_loss']:.3f})".replace(" 0.", " .") in TEXT
    for row in (warm, hot):
        assert f"({', '.join(f'{nll:.3f}' for nll in row['each nll'])})".replace("0.", ".") in TEXT
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"T = 0.3 has an NLL of {warm['nll']:.3f} where the same cycles without a sampler have {zero['nll']:.3f}"
        in readme
    )
    assert f"labels that were checked has {surer['nll']:.3f}; five" in readme
    assert f"five short SGD networks have {ensemble['nll']:.3f}" in readme


def test_the_figure_is_drawn_from_the_same_rows(rows):
    drawn = tool.figure(list(rows.values()))
    assert drawn == (ROOT / "results" / "temperature" / "nll.svg").read_text(encoding="utf-8")
    assert all(words in drawn for words in ("one sample", "all together, T = 0", tool.ENSEMBLE))


def test_a_row_is_measured_from_what_the_run_stored(tmp_path):
    short = ["schedule.epochs=6", "schedule.cycle_epochs=2", "schedule.burn_in_epochs=0", "model.width=2", "chains=2"]
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
