"""docs/temperature.md says what results/temperature holds, and `benchmarks/temperature.py` measures what it says."""

from __future__ import annotations

import importlib
import json
import statistics
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
KEPT = json.loads((ROOT / "results" / "temperature" / "cpu.json").read_text(encoding="utf-8"))["rows"]


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    return {row["row"]: row for row in KEPT if row["recipe"]["seed"] == 0}


@pytest.fixture(scope="module")
def seeds() -> dict[str, list[dict[str, Any]]]:
    """The rows that decide, by seed."""
    found = {name: [row for row in KEPT if row["row"] == name] for name in tool.DECISIVE}
    assert all([row["recipe"]["seed"] for row in of] == list(tool.SEEDS) for of in found.values())
    return found


def test_the_page_has_the_tables_that_were_measured(rows):
    assert tool.table(list(rows.values())) in PAGE
    assert tool.of_seeds(KEPT) in PAGE


def test_the_rows_are_those_that_the_benchmark_would_run_now(rows):
    now = tool.recipes()
    assert rows.keys() == now.keys()
    assert len(KEPT) == len(rows) + len(tool.DECISIVE) * (len(tool.SEEDS) - 1)
    for row in KEPT:
        # A setting that is younger than the rows has the value with which nothing is changed.
        kept, made = recipe_from_dict(of_older_run(row["recipe"])).to_dict(), now[row["row"]].to_dict()
        for values in (kept, made):
            values.pop("run")  # nothing there changes what is sampled
            values.pop("name")
            values.pop("seed", None)
        assert kept == made, row["row"]


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
    assert min(row["single nll"] for row in rows.values() if row is not sure and row is not surer) > 0.57
    assert f"far too unsure (ECE {unsure['ece']:.3f})".replace("0.", ".") in TEXT
    assert f"is too sure ({clipped['single nll']:.3f} alone)" in TEXT
    assert warm["ece"] == min(row["ece"] for row in rows.values())
    assert f"{warm['nll']:.3f} instead of {zero['nll']:.3f}".replace("0.", ".") in TEXT
    assert abs(warm["accuracy"] - zero["accuracy"]) < 0.003
    assert f"(training loss {zero['training_loss']:.3f})".replace("0.", ".") in TEXT
    assert f"(training loss {hot['training_loss']:.3f})".replace("0.", ".") in TEXT
    ensemble, short = rows[tool.ENSEMBLE], rows["T = 0.3, four chains"]
    apart = [rows[f"{name}, five chains"]["nll"] for name in ("T = 0.3", tool.BEST)]
    said = (
        f"have {short['nll']:.3f} (training loss {short['training_loss']:.3f}), five of one cycle of 60 epochs, as the"
    )
    assert f"{said} ensemble has them, {apart[0]:.3f}, and {apart[1]:.3f} with".replace(" 0.", " .") in TEXT
    said = f"have {100 * ensemble['accuracy']:.1f} / {ensemble['nll']:.3f} together".replace("0.4", ".4")
    assert said in TEXT
    assert f"(training loss {ensemble['training_loss']:.3f}; learning".replace("0.", ".") in TEXT
    for row in (warm, hot):
        assert f"({', '.join(f'{nll:.3f}' for nll in row['each nll'])})".replace("0.", ".") in TEXT


def test_what_is_said_of_the_seeds_is_in_them(seeds):
    nll = {name: [row["nll"] for row in of] for name, of in seeds.items()}
    warm, sure, zero, ensemble = nll.values()
    less = [cold - hot for cold, hot in zip(zero, warm, strict=True)]
    assert "each time, by {:.3f}, {:.3f} and {:.3f}.".format(*less).replace("0.", ".") in TEXT
    lucky = seeds["T = 0"][2]["each nll"]
    assert f"second sample has {lucky[1]:.3f} after {lucky[0]:.3f}".replace("0.", ".") in TEXT
    assert all(row["each nll"] == sorted(row["each nll"]) for row in seeds["T = 0"][:2])
    behind = [[own - best for own, best in zip(other, ensemble, strict=True)] for other in (sure, warm)]
    of_each = ["(by {:.3f}, {:.3f} and {:.3f})".format(*less).replace("0.", ".").replace("-", "−") for less in behind]
    said = (
        f"with each seed {of_each[1]} and of T = 1 with the noisy Dirichlet likelihood with two of three {of_each[0]}."
    )
    assert said in TEXT
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    words = [f"{statistics.mean(of):.3f} ± {statistics.stdev(of):.3f}" for of in (warm, zero, sure, ensemble)]
    said = (
        "T = 0.3 has an NLL of {} where the same cycles without a sampler have {}; T = 1 with a likelihood for labels"
    )
    assert f"{said} that were checked has {{}}; five short SGD networks have {{}}.".format(*words) in readme


def test_the_figure_is_drawn_from_the_same_rows(rows):
    drawn = tool.figure(list(rows.values()))
    assert drawn == (ROOT / "results" / "temperature" / "nll.svg").read_text(encoding="utf-8")
    assert all(words in drawn for words in ("one sample", "all together, T = 0", tool.ENSEMBLE))


def test_a_row_is_measured_from_what_the_run_stored(tmp_path):
    short = ["schedule.epochs=6", "schedule.cycle_epochs=2", "schedule.burn_in_epochs=0", "model.width=2", "chains=2"]
    short += ["data.name=digits", "schedule.warm_start_epochs=0"]
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


def test_the_benchmark_writes_and_prints_what_the_page_has(tmp_path, monkeypatch, capsys):
    """Its whole way, with runs of the same names that take a second, and twice: then it only reads."""
    short = "schedule.epochs=4 schedule.cycle_epochs=2 schedule.burn_in_epochs=0 model.width=2 data.validation=200"
    tiny = [*short.split(), 'run.evaluate=["validation"]', "run.device=cpu", "target.likelihood=categorical"]
    tiny += ["target.likelihood_options={}", "data.name=digits", "schedule.warm_start_epochs=0"]
    temperatures = {"T = 1": 1.0, "T = 0.3": 0.3, tool.BEST: 0.1, "T = 0": 0.0, tool.ENSEMBLE: 0.03}
    made = {name: load_recipe("digits-atmc", [*tiny, f"sampler.temperature={t}"]) for name, t in temperatures.items()}
    monkeypatch.setattr(tool, "recipes", lambda: made)
    monkeypatch.setattr(tool, "SEEDS", (0, 1))
    argv = ["temperature.py", "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
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
    assert printed[0].endswith(f"{tool.table(kept[: len(made)])}\n\n{tool.of_seeds(kept)}\n")
    assert (tmp_path / "results" / "nll.svg").exists()
