"""The tool that stores rows of the CIFAR-10 table changes nothing on the way.

It is run on small real runs (the digits recipe shrunk to seconds), and what comes out is compared with
`Posterior.evaluate` and with scores computed by independent lines of numpy (`rescored.py`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from atmc import data
from atmc.common.errors import InputError
from atmc.engine.runner import run
from atmc.posterior import Posterior, metrics
from atmc.recipe.toml_files import load_recipe
from atmc.storage.run_directory import RunDir

from .conftest import TINY
from .rescored import ROOT, collecting, drawing, recompute, storing, tabling, tool


def row_of(rows, run, kind):
    return next(row for row in rows if (row["run"], row["kind"]) == (run, kind))


@pytest.mark.parametrize(("kind", "which"), [("last sample", "single"), ("posterior predictive", "predictive")])
def test_scores_are_those_of_the_posterior(stored, runs, kind, which):
    test = data.load("digits", "test")
    each = [Posterior.from_run(path).evaluate(test.images, test.labels)[which] for path in (runs.one, runs.two)]
    row = row_of(stored.rows, "atmc", kind)
    # A sample by itself is kept as it was. In an average float16 moves a probability by at most 1/2048 of itself, and
    # may move an image into the next bin of the ECE.
    errors = {"accuracy": 0.0, "nll": 2e-4, "brier": 2e-4, "ece": 5e-3} if which == "predictive" else {}
    for score in storing.SCORES:
        values, error = [scores[score] for scores in each], max(errors.get(score, 1e-6), 1e-12)
        assert row[score] == pytest.approx(np.mean(values), abs=error)
        assert row["spread"][score] == pytest.approx(np.std(values, ddof=1), abs=2 * error)


def test_one_rule_gives_every_row(stored):
    rows = json.loads((stored.folder / "table.json").read_text())
    assert [(row["run"], row["kind"], row["samples"]) for row in rows] == [
        ("sgd", "network", 1),
        ("atmc", "last sample", 1),
        ("atmc", "posterior predictive", 3),
        ("ensemble", "ensemble", 2),
    ]
    for row in rows:
        assert {score: row[score] for score in storing.SCORES} == pytest.approx(recompute(stored.folder, row))
        assert len(np.load(stored.folder / row["probabilities"][0])["probs"]) == row["samples"]


def test_epochs_are_those_of_all_chains_that_are_averaged(stored):
    found = {(row["run"], row["kind"]): row["chains"] for row in stored.rows}
    assert found["ensemble", "ensemble"] == 2
    assert found["sgd", "network"] == found["atmc", "posterior predictive"] == 1
    ensemble = row_of(stored.rows, "ensemble", "ensemble")
    assert f"| 2 × {ensemble['epochs']:g} |" in tabling.blocks(stored.rows)["cifar10 table"]


def test_a_row_says_how_it_was_made(stored, runs):
    row = json.loads((stored.folder / "atmc.row.json").read_text())
    assert (row["seeds"], row["epochs"], row["status"], row["temperature"]) == ([1, 2], 6, "done", 1.0)
    assert row["versions"]["torch"] == torch.__version__
    assert row["gpu_seconds"] > 0
    again = load_recipe(stored.folder / row["recipe"])
    assert again == RunDir.open(runs.one).recipe
    events = [r for r in RunDir.open(runs.one).metrics() if r["event"] == "sample"]
    noted = row["validation"][0]
    assert noted["epoch"] == [event["epoch"] for event in events]
    assert noted["predictive nll"] == [event["scores"]["validation"]["predictive"]["nll"] for event in events]
    logged = [r["loss"] for r in RunDir.open(runs.one).metrics() if r["event"] == "log"]
    assert storing.load_predictors(stored.folder, row)[0].trace[:, 2] == pytest.approx(logged)


def test_predictions_that_a_run_did_not_store_are_made(stored, runs, tmp_path):
    row = collecting.collect([runs.blind], "blind", tmp_path, outside=[])
    made = storing.load_predictors(tmp_path, row)[0].probs
    kept = storing.load_predictor(stored.folder, ["atmc-0.npz"]).probs
    assert made.astype(float) == pytest.approx(kept.astype(float), abs=1e-3)


def test_averaging_runs_together_orders_samples_by_epoch(runs, tmp_path):
    row = collecting.collect([runs.one, runs.two], "both", tmp_path, average="all", outside=[])
    found = storing.load_predictors(tmp_path, row)
    assert [len(one.probs) for one in found] == [6]
    assert found[0].epochs == pytest.approx([2, 2, 4, 4, 6, 6], abs=0.1)
    both = [RunDir.open(path).predictions("test").numpy() for path in (runs.one, runs.two)]
    expected = np.stack(both, axis=1).reshape(found[0].probs.shape)
    half = expected.astype(np.float16)
    assert np.array_equal(found[0].probs, np.where(half == 0, np.float16(2.0**-24), half))
    assert found[0].last.dtype == np.float32
    assert np.array_equal(found[0].last, expected[-2:])  # one of each run


def test_the_last_sample_of_several_chains_is_the_mean_over_them(runs, tmp_path):
    """Whichever chain comes last in the file has no right to speak for all."""
    collecting.collect([runs.one, runs.two], "both", tmp_path, average="all", outside=[])
    rows = tabling.build(tmp_path)
    tabling.save(tmp_path, rows)
    row = row_of(rows, "both", "last sample")
    assert row["probabilities"] == ["both-0.last0.npz", "both-0.last1.npz"]
    test = data.load("digits", "test")
    each = [Posterior.from_run(path).evaluate(test.images, test.labels)["single"] for path in (runs.one, runs.two)]
    for score in storing.SCORES:
        assert row[score] == pytest.approx(np.mean([scores[score] for scores in each]), abs=1e-6)
    assert row["spread"] is None  # of seeds, and this is one predictor
    cells = tabling.blocks(rows)["cifar10 table"].splitlines()[2].split(" | ")
    assert cells[-5:-2] == ["1", "6", "1"]  # samples, epochs, seeds
    assert {score: row[score] for score in storing.SCORES} == pytest.approx(recompute(tmp_path, row))


def test_chains_can_be_seeds(stored, runs):
    members = RunDir.open(runs.ensemble).predictions("test").numpy()
    row = row_of(stored.rows, "sgd", "network")
    assert row["seeds"] == ["0:0", "0:1"]
    for file, member in zip(row["probabilities"], members, strict=True):
        assert np.array_equal(np.load(stored.folder / file)["probs"], member[None])
    # one run, two ways to read it: its time is counted once in each
    assert row["gpu_seconds"] == pytest.approx(row_of(stored.rows, "ensemble", "ensemble")["gpu_seconds"], abs=0.2)


def test_curve_ends_at_the_predictive(stored):
    row = row_of(stored.rows, "atmc", "posterior predictive")
    assert row["by_samples"]["samples"] == [1, 2, 3]
    for score in storing.SCORES:
        assert row["by_samples"][score][-1] == pytest.approx(row[score], abs=1e-12)


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
        doubt = {kind: torch.cat([near.doubt(kind), far.doubt(kind)]) for kind in ("entropy", "confidence")}
        values.append({kind: roc_auc_score(marks, scores) for kind, scores in doubt.items()})
    found = row_of(stored.rows, "atmc", "posterior predictive")["outside"]["noise"]
    for kind, auroc in found.items():
        assert auroc == pytest.approx(np.mean([value[kind] for value in values]), abs=1e-3)


@pytest.mark.parametrize(("kind", "bits"), [(np.float16, 24), (np.float32, 149)])
def test_a_confident_mistake_costs_what_its_type_can_show(kind, bits):
    for probs in (np.array([[[1.0, 0.0], [0.5, 0.5]]]), np.array([[[1.0, 1e-60], [0.5, 0.5]]])):
        for stored in (probs.astype(kind), storing.positive(probs, kind)):
            found = storing.Predictor(stored, np.array([1, 0], np.uint8), np.zeros(1), np.zeros((0, 3)))
            assert stored.dtype == kind
            assert found.scores()["nll"] == pytest.approx((bits + 1) * math.log(2) / 2)
    assert np.array_equal(storing.positive(probs, kind) == probs.astype(kind), probs > 1e-60)


@pytest.mark.parametrize(
    ("path", "average", "name"), [("ensemble", "chain", "x-1.npz"), ("one", "run", "x-0.last.npz")]
)
def test_a_mistake_of_40_nats_costs_40_nats(runs, path, average, name, tmp_path, monkeypatch):
    probs = RunDir.open(getattr(runs, path)).predictions("test").numpy()
    labels = data.load("digits", "test").labels.numpy()
    wrong = (labels[0] + 1) % 10
    probs[:, 0] = 0.0
    probs[:, 0, [wrong, labels[0]]] = 1.0, math.exp(-40)
    monkeypatch.setattr(collecting.Run, "test_probs", probs)
    collecting.collect([getattr(runs, path)], "x", tmp_path, average=average, outside=[])
    rows = tabling.build(tmp_path)
    tabling.save(tmp_path, rows)
    row = next(row for row in rows if name in row["probabilities"])
    file = np.load(tmp_path / name)
    costs = -np.log(file["probs"][0, np.arange(len(labels)), file["labels"]])
    assert costs[0] == pytest.approx(40, abs=1e-5)
    true = -np.log(probs[:, np.arange(len(labels)), labels].astype(np.float64)).mean(axis=1)
    assert costs.mean(dtype=np.float64) == pytest.approx(true[-1], rel=1e-6)
    assert row["nll"] == pytest.approx(true.mean() if average == "chain" else true[-1], rel=1e-6)
    assert {score: row[score] for score in storing.SCORES} == pytest.approx(recompute(tmp_path, row))
    if path == "one":  # its samples share the mistake: so does their average
        mean = np.load(tmp_path / "x-0.npz")["probs"].astype(np.float64).mean(0)
        assert -np.log(mean[0, labels[0]]) == pytest.approx(40, abs=2**-11)  # the digits of float16


def test_other_data_is_rounded_as_the_test_set_is():
    probs = np.array([[[1.0, 1e-20]] * 5], np.float32)  # float16 has no such number
    outside = {"same": storing.positive(probs[0], np.float16)}
    found = storing.Predictor(probs, np.zeros(5, np.uint8), np.zeros(1), np.zeros((0, 3)), outside)
    assert found.detection()["same"] == {"entropy": 0.5, "confidence": 0.5}


def test_samples_are_halved_only_where_the_score_stays():
    """All of them sure of the same mistake, beyond what float16 can show: then they keep the range of float32."""
    labels = np.zeros(50, np.uint8)
    mild = np.tile(np.array([0.7, 0.3], np.float32), (3, 50, 1))
    assert storing.stored(mild, labels).dtype == np.float16
    assert storing.stored(mild[:1], labels).dtype == np.float32
    wrong = mild.copy()
    wrong[:, 0] = (1e-12, 1.0)
    kept = storing.stored(wrong, labels)
    assert kept.dtype == np.float32
    expected = -(49 * np.log(0.7) + np.log(1e-12)) / 50
    assert metrics.nll(metrics.predictive(kept), labels) == pytest.approx(expected, rel=2**-11)
    assert not (kept.view(np.uint32) & 0x1FFF).any()  # the digits of float16, in its range the same numbers
    assert (kept[:, 1:] == storing.stored(mild, labels)[:, 1:]).all()
    faintest = np.finfo(np.float32).smallest_subnormal
    assert (storing.shortened(np.array([faintest, 1.0], np.float32)) == [faintest, 1.0]).all()
    assert storing.stored(wrong, 1 - labels).dtype == np.float16  # right about it: nothing is lost


def test_large_files_are_split_and_read_as_one(tmp_path):
    rng = np.random.default_rng(0)
    whole = storing.Predictor(
        probs=rng.dirichlet(np.ones(10), (7, 100)).astype(np.float16),
        labels=rng.integers(0, 10, 100).astype(np.uint8),
        epochs=np.arange(7, dtype=np.float32),
        trace=np.ones((5, 3), np.float32),
        outside={"mnist": rng.dirichlet(np.ones(10), 20).astype(np.float16)},
        last=rng.dirichlet(np.ones(10), (2, 100)).astype(np.float32),
    )
    names = storing.save_predictor(tmp_path, "row-0", whole, limit=12_000)
    assert len(names) > 1
    assert max((tmp_path / name).stat().st_size for name in names) <= 12_000
    assert ["last" in np.load(tmp_path / name) for name in names] == [True] + [False] * (len(names) - 1)
    assert storing.by_predictor([*names, "row-1.npz"]) == [names, ["row-1.npz"]]
    back = storing.load_predictor(tmp_path, names)
    for one, two in zip(vars(whole).values(), vars(back).values(), strict=True):
        assert np.array_equal(one, two) if isinstance(one, np.ndarray) else np.array_equal(one["mnist"], two["mnist"])


def test_what_came_back_without_its_samples_is_enough(stored, runs, tmp_path, capsys):
    part = tmp_path / "part"
    shutil.copytree(runs.one, part, ignore=shutil.ignore_patterns("samples", "checkpoint"))
    row = collecting.collect([part], "part", tmp_path / "out")
    assert "no images from elsewhere" in capsys.readouterr().err
    kept = storing.load_predictor(stored.folder, ["atmc-0.npz"])
    assert np.array_equal(storing.load_predictors(tmp_path / "out", row)[0].probs, kept.probs)


def test_an_unfinished_run_is_called_so(tmp_path):
    recipe = load_recipe("digits-atmc", [*TINY, "schedule.epochs=2000"])
    while not (tmp_path / "run").exists() or len(RunDir.open(tmp_path / "run").bank) < 2:
        run(recipe, tmp_path / "run", time_budget=2.0, progress=None)
    row = collecting.collect([tmp_path / "run"], "half", tmp_path / "out", outside=[])
    assert row["status"] == "unfinished"
    assert 4 <= row["epochs"] < 2000
    assert all(found["row"].endswith(", unfinished") for found in tabling.build(tmp_path / "out"))


def test_runs_that_are_no_seeds_of_each_other_are_refused(runs, tmp_path, capsys):
    where = ["--row", "x", "--out", str(tmp_path)]
    assert tool.main(["collect", str(runs.one), str(runs.ensemble), *where]) == 2
    assert "two rows, not one" in capsys.readouterr().err
    assert tool.main(["collect", str(runs.one), str(runs.blind), *where]) == 2
    assert "same seed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_sampler_at_zero_is_called_what_it_is(stored, tmp_path):
    shutil.copytree(stored.folder, tmp_path, dirs_exist_ok=True)
    recipe = tmp_path / "atmc.toml"
    recipe.write_text(recipe.read_text().replace("temperature = 1.0\n", "temperature = 0.0\n", 1))
    text = tabling.table_markdown(tabling.build(tmp_path))
    assert "SGD in cycles, ResNet++-8×2, noisy Dirichlet, average |" in text
    assert "last network |" in text
    assert "posterior" not in text
    full = {"data": {"name": "cifar10"}, "model": {"depth": 56, "width": 32, "norm": "none"}}
    assert tabling.paper_numbers({**full, "sampler": {"name": "atmc", "temperature": 0}}, "last sample") is None
    assert tabling.paper_numbers({**full, "sampler": {"name": "sgd", "temperature": 0}}, "network") is not None


def test_different_test_sets_are_refused(stored, tmp_path):
    shutil.copytree(stored.folder, tmp_path, dirs_exist_ok=True)
    second = storing.load_predictor(tmp_path, ["atmc-1.npz"])
    other = storing.Predictor(second.probs, second.labels[::-1], second.epochs, second.trace)
    storing.save_predictor(tmp_path, "atmc-1", other)
    with pytest.raises(InputError, match="different test sets"):
        tabling.build(tmp_path)


def test_collecting_needs_neither_plots_nor_pictures(runs, tmp_path):
    absent = ("matplotlib", "arviz_stats", "PIL", "jinja2", "onnx")
    words = ["collect", str(runs.one), "--row", "bare", "--out", str(tmp_path), "--outside", "noise"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent!r}))
sys.path.append({str(ROOT / "benchmarks")!r})
import cifar10
sys.exit(cifar10.main({words!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare-0.npz", "bare.row.json", "bare.toml"]


def test_a_page_that_differs_in_one_digit_is_noticed(stored):
    page = tabling.fill("# A\n<!-- cifar10 table -->\nold\n<!-- /cifar10 table -->\nB\n", stored.rows)
    assert page.startswith("# A\n<!-- cifar10 table -->\n| CIFAR-10 | T |")
    assert page.endswith("\n<!-- /cifar10 table -->\nB\n")
    expected = tabling.blocks(stored.rows)["cifar10 table"]
    assert tabling.found_blocks(page) == {"cifar10 table": expected}
    assert tabling.fill(page, stored.rows) == page
    accuracy = re.search(r"(\d)(\.\d\d ± )", page)
    wrong = page.replace(accuracy[0], f"{(int(accuracy[1]) + 1) % 10}{accuracy[2]}", 1)
    assert tabling.found_blocks(wrong)["cifar10 table"] != expected


def test_rows_of_the_paper_stand_beside_its_numbers():
    recipe = {"data": {"name": "cifar10"}, "model": {"depth": 56, "width": 32, "norm": "none"}}
    assert tabling.paper_numbers({**recipe, "sampler": {"name": "atmc"}}, "posterior predictive") == {
        "accuracy": 0.939,
        "nll": 0.194,
    }
    assert tabling.paper_numbers({**recipe, "sampler": {"name": "sghmc"}}, "posterior predictive") is None
    smaller = {**recipe, "model": {"depth": 20, "width": 32, "norm": "none"}, "sampler": {"name": "atmc"}}
    assert tabling.paper_numbers(smaller, "posterior predictive") is None


def test_figures_are_drawn_from_what_is_stored(stored, tmp_path):
    written = {path.name: path.read_bytes() for path in drawing.save_figures(stored.folder, tmp_path)}
    names = ("calibration", "accuracy-samples", "accuracy-epochs", "nll-samples", "nll-epochs", "loss-epochs")
    assert written.keys() == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert all(written[f"{name}.png"].startswith(b"\x89PNG") for name in names)
    calibration = written["calibration.svg"].decode()
    assert "ATMC, noisy Dirichlet, T = 1" in calibration
    assert "Deep ensemble" not in calibration  # the paper's figure: predictive and trained networks
    assert "Deep ensemble" in written["nll-samples.svg"].decode()


def test_a_row_set_aside_is_in_the_long_table_only(stored, tmp_path):
    folder = shutil.copytree(stored.folder, tmp_path / "results")
    assert tool.main(["join", str(folder), "--row", "atmc", "--out", str(folder), "--aside"]) == 0
    blocks = tabling.blocks(tabling.build(folder))
    assert "| ATMC, " in blocks["cifar10 table"]
    assert "| ATMC, " not in blocks["cifar10 main"]
    assert "| SGD, " in blocks["cifar10 main"]
    assert all("ATMC" not in line.name for line in drawing.lines_of(folder, drawing.Ink.paper()))
    again = ["join", str(folder), "--row", "atmc", "--out", str(folder)]
    for words, shown in (([], False), (["--no-aside"], True)):
        assert tool.main([*again, *words]) == 0
        assert ("| ATMC, " in tabling.blocks(tabling.build(folder))["cifar10 main"]) == shown


def test_samples_of_one_time_or_one_cycle_are_one_point(stored):
    row = next(row for row in storing.load_rows(stored.folder) if row["row"] == "atmc")
    found = dataclasses.replace(storing.load_predictors(stored.folder, row)[0], epochs=np.float32([2, 2, 4]))
    line = drawing.Line("two chains", "posterior predictive", "atmc", "categorical", 2, [found], "black")
    figure = drawing.against_epochs([line], "nll", drawing.Ink.paper())
    average, alone = ((drawn.get_xdata(), drawn.get_ydata()) for drawn in figure.axes[0].lines[:2])
    assert list(average[0]) == list(alone[0]) == [4, 8]  # epochs of both
    growing, singles = found.growing()["nll"], found.singles()["nll"]
    assert list(average[1]) == pytest.approx([growing[1], growing[2]])
    assert list(alone[1]) == pytest.approx([np.mean(singles[:2]), singles[2]])
    found = dataclasses.replace(found, epochs=np.float32([9.01, 10, 20]))
    figure = drawing.against_epochs(
        [dataclasses.replace(line, predictors=[found], cycle=10)], "nll", drawing.Ink.paper()
    )
    average, alone = ((drawn.get_xdata(), drawn.get_ydata()) for drawn in figure.axes[0].lines[:2])
    assert list(average[0]) == list(alone[0]) == [20, 40]  # samples of a cycle are one point as well
    assert list(alone[1]) == pytest.approx([np.mean(singles[:2]), singles[2]])
