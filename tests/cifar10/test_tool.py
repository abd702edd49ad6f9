"""The tool that stores rows of the CIFAR-10 table changes nothing on the way.

It is run on small real runs (the digits recipe shrunk to seconds), and what comes out is compared with
`Posterior.evaluate` and with scores computed by independent lines of numpy (`rescored.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from atmc import data
from atmc.common.errors import InputError
from atmc.engine.runner import run
from atmc.posterior import Posterior
from atmc.recipe.toml_files import load_recipe
from atmc.storage.run_directory import RunDir

from .conftest import TINY
from .rescored import ROOT, collecting, drawing, paging, recompute, scoring, showing, storing, tabling, tool


def row_of(rows, run, kind):
    return next(row for row in rows if (row["run"], row["kind"]) == (run, kind))


@pytest.mark.parametrize(("kind", "which"), [("last sample", "single"), ("posterior predictive", "predictive")])
def test_scores_are_those_of_the_posterior(stored, runs, kind, which):
    test = data.load("digits", "test")
    each = [Posterior.from_run(path).evaluate(test.images, test.labels)[which] for path in (runs.one, runs.two)]
    row = row_of(stored.rows, "atmc", kind)
    for score, error in {"accuracy": 1e-12, "nll": 1e-3, "brier": 1e-4, "ece": 1e-4}.items():
        values = [scores[score] for scores in each]
        assert row[score] == pytest.approx(np.mean(values), abs=error)
        assert row["spread"][score] == pytest.approx(np.std(values, ddof=1), abs=2 * error)


def test_one_rule_gives_every_row(stored):
    rows = json.loads((stored.folder / "table.json").read_text())
    assert [(row["run"], row["kind"], row["samples"], row["chains"]) for row in rows] == [
        ("sgd", "network", 1, 1),
        ("atmc", "last sample", 1, 1),
        ("atmc", "posterior predictive", 3, 1),
        ("four", "last sample", 1, 1),
        ("four", "posterior predictive", 8, 4),
        ("ensemble", "ensemble", 2, 2),
    ]
    for row in rows:
        assert {score: row[score] for score in scoring.SCORES} == pytest.approx(recompute(stored.folder, row), abs=1e-5)


def test_averages_last_samples_and_curves_are_those_of_the_samples(stored, runs):
    """Four chains with two samples each, in the order of epochs."""
    own = RunDir.open(runs.four)
    probs = own.predictions("test").numpy().astype(np.float64)
    chains = np.array([own.bank.chain_of(i) for i in range(8)])
    row = json.loads((stored.folder / "four.row.json").read_text())
    [found] = storing.load_predictors(stored.folder, row)
    by_chain = np.stack([probs[chains == chain] for chain in range(4)])  # [chain, sample, …]
    assert found.probs == pytest.approx(by_chain.mean(1), rel=2**-6, abs=1e-7)
    assert found.last == pytest.approx(by_chain[:, -1], rel=2**-6, abs=1e-7)
    curves, rows = found.curves, np.arange(len(found.labels))
    assert curves["epoch"] == pytest.approx([2.0] * 4 + [4.0] * 4, abs=0.06)
    assert curves["chain"] == [0, 1, 2, 3] * 2
    in_order = by_chain.swapaxes(0, 1).reshape(probs.shape)
    costs = -np.log(in_order[:, rows, found.labels]).mean(1)
    assert curves["single"]["nll"] == pytest.approx(costs, abs=1e-4)
    growing = [-np.log(in_order[:n].mean(0)[rows, found.labels]).mean() for n in range(1, 9)]
    assert curves["average"]["nll"] == pytest.approx(growing, abs=1e-4)
    modes = curves["modes"]  # one sample of each cycle
    assert modes["nll"] == [pytest.approx(each, abs=1e-4) for each in costs.reshape(2, 4).T]
    pairs = [by_chain[[a, b]].mean(0) for a, b in itertools.combinations(range(4), 2)]
    two = np.mean([-np.log(pair[:, rows, found.labels]).mean() for pair in pairs])
    assert modes["2"]["nll"] == pytest.approx(two, abs=1e-4)
    a, b = modes["limit"]
    assert (a + b, a + b / 8) == pytest.approx((costs.mean(), growing[-1]), abs=1e-4)
    picks = in_order.argmax(-1)
    within = np.mean([np.mean(picks[i] != picks[i + 4]) for i in range(4)])
    assert modes["disagree"][0] == pytest.approx(within, abs=1e-5)


def test_a_row_says_how_it_was_made(stored, runs):
    row = json.loads((stored.folder / "atmc.row.json").read_text())
    assert (row["seeds"], row["epochs"], row["status"], row["temperature"]) == ([1, 2], 6, "done", 1.0)
    assert row["versions"]["torch"] == torch.__version__
    assert row["gpu_seconds"] > 0
    assert load_recipe(stored.folder / row["recipe"]) == RunDir.open(runs.one).recipe


def test_predictions_that_a_run_did_not_store_are_made(runs, tmp_path):
    row = collecting.collect([runs.blind], "blind", tmp_path, ood=[])
    [made] = storing.load_predictors(tmp_path, row)
    test = data.load("digits", "test")
    expected = Posterior.from_run(runs.blind).predict(test.images).probs.numpy()
    assert made.probs[0] == pytest.approx(expected, rel=2**-5, abs=1e-6)


def test_runs_averaged_together_are_chains_of_one_predictor(runs, tmp_path):
    row = collecting.collect([runs.one, runs.two], "both", tmp_path, average="all", ood=[])
    [found] = storing.load_predictors(tmp_path, row)
    assert found.curves["epoch"] == pytest.approx([2, 2, 4, 4, 6, 6], abs=0.1)
    assert found.curves["chain"] == [0, 1, 0, 1, 0, 1]
    both = np.stack([RunDir.open(path).predictions("test").numpy() for path in (runs.one, runs.two)])
    assert found.probs == pytest.approx(both.mean(1), rel=2**-6, abs=1e-7)
    last = row_of(tabling.build(tmp_path), "both", "last sample")
    assert last["probabilities"] == ["both-0.last0.npz", "both-0.last1.npz"]
    each = [recompute(tmp_path, {"probabilities": [file]})["nll"] for file in last["probabilities"]]
    assert last["nll"] == pytest.approx(np.mean(each))
    assert last["spread"]["nll"] == pytest.approx(np.std(each, ddof=1))  # of one network, not of their mean


def test_chains_with_unequal_numbers_of_samples_are_one_average():
    probs = np.random.default_rng(0).dirichlet(np.ones(3), (3, 5))
    assert np.allclose(scoring.averages(probs, np.array([0, 1, 0])), [probs.mean(0)])
    assert np.allclose(scoring.averages(probs[:2], np.array([1, 0])), probs[[1, 0]])


def test_chains_can_be_seeds(stored, runs):
    members = RunDir.open(runs.ensemble).predictions("test").numpy()
    row = row_of(stored.rows, "sgd", "network")
    assert row["seeds"] == ["0:0", "0:1"]
    for file, member in zip(row["probabilities"], members, strict=True):
        assert np.array_equal(np.load(stored.folder / file)["probs"], storing.rounded(member[None]))
    # one run, two ways to read it: its time is counted once in each
    assert row["gpu_seconds"] == pytest.approx(row_of(stored.rows, "ensemble", "ensemble")["gpu_seconds"], abs=0.2)


def test_auroc_is_that_of_fresh_predictions(stored, runs):
    from sklearn.metrics import roc_auc_score

    from atmc.report import ood_inputs

    home = data.load("digits", "test").images
    noise = ood_inputs.make("noise", home, collecting.SHOWN).images
    values = []
    for path in (runs.one, runs.two):
        posterior = Posterior.from_run(path)
        near, far = posterior.predict(home), posterior.predict(noise)
        marks = np.repeat([0, 1], [len(near), len(far)])
        values.append(roc_auc_score(marks, torch.cat([near.entropy, far.entropy])))
    found = row_of(stored.rows, "atmc", "posterior predictive")["ood"]["noise"]
    assert found["auroc"] == pytest.approx(np.mean(values), abs=1e-3)


def test_the_paired_error_is_over_images():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 200).astype(np.uint8)
    one, two = (storing.Predictor(rng.dirichlet(np.ones(3), (1, 200)), labels) for _ in range(2))
    less = np.log(one.probs[0][np.arange(200), labels]) - np.log(two.probs[0][np.arange(200), labels])
    assert scoring.against(one, two)["nll"] == pytest.approx((less.mean(), less.std(ddof=1) / 200**0.5))


def test_what_rounding_keeps():
    """The range of float32, and no ties among classes that compete."""
    rng = np.random.default_rng(3)
    probs = np.exp(-80 * rng.random(100_000)).astype(np.float32)
    kept = storing.rounded(probs)
    off = np.abs(kept / probs - 1)
    assert off[probs >= 1 / 16].max() <= 2**-15
    assert off[probs >= 2**-24].max() <= 2**-6
    assert off.max() <= 2**-2
    assert np.array_equal(storing.rounded(kept), kept)
    assert (storing.rounded(np.array([0.0, 1e-60, 1.0])) == np.float32([1e-45, 1e-45, 1.0])).all()
    confident = np.array([[1 - math.exp(-40), math.exp(-40)]])
    assert -np.log(storing.rounded(confident)[0, 1]) == pytest.approx(40, abs=0.25)


def test_files_are_the_same_bytes_each_time_and_read_by_numpy(tmp_path):
    probs = storing.rounded(np.random.default_rng(4).dirichlet(np.ones(10), (2, 50)))
    packed = [storing.packed(probs=probs, labels=np.zeros(50, np.uint8)) for _ in range(2)]
    assert packed[0] == packed[1]
    (tmp_path / "x.npz").write_bytes(packed[0])
    assert np.array_equal(np.load(tmp_path / "x.npz")["probs"], probs)


def test_what_came_back_without_its_samples_is_enough(stored, runs, tmp_path, capsys):
    part = tmp_path / "part"
    shutil.copytree(runs.one, part, ignore=shutil.ignore_patterns("samples", "checkpoint"))
    row = collecting.collect([part], "part", tmp_path / "out")
    assert "no OOD inputs" in capsys.readouterr().err
    kept = np.load(stored.folder / "atmc-0.npz")["probs"]
    assert np.array_equal(storing.load_predictors(tmp_path / "out", row)[0].probs, kept)


def test_an_unfinished_run_is_called_so(tmp_path):
    recipe = load_recipe("digits-atmc", [*TINY, "schedule.epochs=2000"])
    while not (tmp_path / "run").exists() or len(RunDir.open(tmp_path / "run").bank) < 2:
        run(recipe, tmp_path / "run", time_budget=2.0, progress=None)
    row = collecting.collect([tmp_path / "run"], "half", tmp_path / "out", ood=[])
    assert row["status"] == "unfinished"
    assert 4 <= row["epochs"] < 2000
    assert all(found["row"].endswith(", unfinished") for found in tabling.build(tmp_path / "out"))


def test_runs_that_are_no_seeds_of_each_other_are_refused(runs, tmp_path, capsys):
    where = ["--row", "x", "--out", str(tmp_path)]
    assert tool.main(["collect", str(runs.one), str(runs.ensemble), *where]) == 2
    assert "two rows, not one" in capsys.readouterr().err
    assert tool.main(["collect", str(runs.one), str(runs.one), *where]) == 2
    assert "same seed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_different_test_sets_are_refused(stored, tmp_path):
    shutil.copytree(stored.folder, tmp_path, dirs_exist_ok=True)
    row = json.loads((tmp_path / "atmc.row.json").read_text())
    second = storing.load_predictors(tmp_path, row)[1]
    storing.save_predictor(tmp_path, "atmc-1", dataclasses.replace(second, labels=second.labels[::-1]))
    with pytest.raises(InputError, match="different test sets"):
        tabling.build(tmp_path)


def test_collecting_needs_neither_plots_nor_pictures(runs, tmp_path):
    absent = ("matplotlib", "arviz_stats", "PIL", "jinja2", "onnx")
    words = ["collect", str(runs.one), "--row", "bare", "--out", str(tmp_path), "--ood", "noise"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent!r}))
sys.path.append({str(ROOT / "benchmarks")!r})
import cifar10
sys.exit(cifar10.main({words!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = ["bare-0.last0.npz", "bare-0.npz", "bare.row.json", "bare.toml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_a_page_is_filled_and_a_changed_digit_is_noticed(stored, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n<!-- cifar10 cost -->\nold\n<!-- /cifar10 cost -->\nB\n", encoding="utf-8")
    words = ["table", "--results", str(stored.folder), "--into", str(page)]
    assert tool.main(words) == 0
    text = page.read_text(encoding="utf-8")
    blocks = showing.blocks(stored.folder, stored.rows)
    assert text == f"# A\n<!-- cifar10 cost -->\n{blocks['cifar10 cost']}\n<!-- /cifar10 cost -->\nB\n"
    assert "| 2 × 3 | 1 |" in text  # the ensemble: epochs of two networks, one seed
    wrong = text.replace("| 2 × 3 |", "| 2 × 4 |")
    assert paging.fill(wrong, blocks) == text


def test_rows_of_the_paper_stand_beside_its_numbers():
    recipe = {"data": {"name": "cifar10"}, "model": {"depth": 56, "width": 32, "norm": "none"}}
    paper = {"accuracy": 0.939, "nll": 0.194}
    assert tabling.paper_numbers({**recipe, "sampler": {"name": "atmc"}}, "posterior predictive") == paper
    assert tabling.paper_numbers({**recipe, "sampler": {"name": "sghmc"}}, "posterior predictive") is None
    assert tabling.paper_numbers({**recipe, "sampler": {"name": "atmc", "temperature": 0}}, "last sample") is None
    assert tabling.paper_numbers({**recipe, "sampler": {"name": "sgd", "temperature": 0}}, "network") is not None
    smaller = {**recipe, "model": {"depth": 20, "width": 32, "norm": "none"}, "sampler": {"name": "atmc"}}
    assert tabling.paper_numbers(smaller, "posterior predictive") is None


def test_figures_are_drawn_from_what_is_stored(stored, tmp_path):
    written = {path.name: path.read_text() for path in drawing.save_figures(stored.folder, stored.rows, tmp_path)}
    assert written.keys() == {"calibration.svg", "nll-samples.svg", "nll-epochs.svg"}
    assert "ATMC, noisy Dirichlet, T = 1" in written["calibration.svg"]
    assert "Deep ensemble" not in written["calibration.svg"]  # the paper's figure: predictive and trained networks
    assert "Deep ensemble" in written["nll-samples.svg"]


def test_a_row_set_aside_is_not_in_the_figures(stored, tmp_path):
    folder = shutil.copytree(stored.folder, tmp_path / "results")
    for words, drawn in ((["--aside"], False), ([], False), (["--no-aside"], True)):
        assert tool.main(["join", str(folder), "--row", "atmc", "--out", str(folder), *words]) == 0
        rows = tabling.build(folder)
        assert "| ATMC, " in showing.blocks(folder, rows)["cifar10 predictions"]
        lines = drawing.lines_of(folder, rows, drawing.Ink.paper())
        assert any(len(line.predictors) == 2 and line.sampler == "atmc" for line in lines) == drawn


def test_samples_of_one_cycle_are_one_point(stored):
    row = json.loads((stored.folder / "four.row.json").read_text())
    found = storing.load_predictors(stored.folder, row)
    line = drawing.Line("four chains", "posterior predictive", "atmc", 4, found, "black", cycle=2)
    figure = drawing.against_epochs([line], drawing.Ink.paper())
    average, alone = ((drawn.get_xdata(), drawn.get_ydata()) for drawn in figure.axes[0].lines[:2])
    assert list(average[0]) == list(alone[0]) == pytest.approx([8, 16], abs=0.3)  # epochs of all chains
    curves = found[0].curves
    assert list(average[1]) == pytest.approx([curves["average"]["nll"][3], curves["average"]["nll"][7]])
    assert list(alone[1]) == pytest.approx([np.mean(curves["single"]["nll"][:4]), np.mean(curves["single"]["nll"][4:])])
