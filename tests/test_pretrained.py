"""docs/tutorials/pretrained.md says what results/pretrained holds, and the benchmark measures it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from atmc.engine.run_data import load_data
from atmc.posterior import Posterior, metrics
from atmc.recipe import load_recipe
from atmc.recipe.settings import recipe_from_dict

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names
tool = importlib.import_module("pretrained")
PAGE = (ROOT / "docs" / "tutorials" / "pretrained.md").read_text(encoding="utf-8")
TINY = (
    "data.name=digits data.augment=none data.validation=1200 data.batch_size=50 model.depth=8 model.width=4 "
    "schedule.epochs=3 schedule.warmup_epochs=1 run.precision=float32 run.compile=false run.threads=1"
)


def test_the_page_has_the_table_that_was_measured():
    kept = json.loads((ROOT / "results" / "pretrained" / "cpu.json").read_text(encoding="utf-8"))
    assert tool.table(kept["rows"]) in PAGE
    names = [tool.NETWORK, tool.SCALED, *(f"T = {t:g}" for t in tool.TEMPERATURES), tool.ENSEMBLE]
    assert list(kept["rows"]) == names
    assert all(list(kept["rows"][name]) == [str(seed) for seed in tool.SEEDS] for name in names[:-1])
    now = load_recipe(tool.RECIPE, [*tool.SMALL.split(), 'run.evaluate=["test"]', f"seed={tool.SEEDS[-1]}"]).to_dict()
    kept["recipe"] = recipe_from_dict(kept["recipe"]).to_dict()  # with the defaults of keys that are newer
    for recipe in (kept["recipe"], now):
        del recipe["run"]  # nothing there changes what is sampled, and settings are added
    assert kept["recipe"] == now
    mean = {
        name: {score: np.mean([row[score] for row in seeds.values()]) for score in tool.SCORES}
        for name, seeds in kept["rows"].items()
    }
    net, _, zero, _, one, _ = mean.values()
    text = " ".join(PAGE.split())
    assert f"It costs {100 * (net['accuracy'] - one['accuracy']):.1f} points of accuracy" in text
    assert "Continuing with SGD (T = 0) makes both worse." in text
    assert zero["nll"] > net["nll"]
    assert zero["ece"] > net["ece"]
    more = [kept["rows"][name][seed]["more"] for name, seed in ((tool.ENSEMBLE, "all"), ("T = 1", "0"))]
    assert "with {} further epochs instead of {}".format(*more) in text


@pytest.mark.filterwarnings("ignore:only")
@pytest.mark.filterwarnings("ignore:the chain was at")
def test_the_benchmark_measures_what_it_says(tmp_path, monkeypatch, capsys):
    words = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "found.json"), "--epochs", "2"]
    settings = [word for setting in TINY.split() for word in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", *words, "--temperatures", "0.5", "--seeds", "0", "1", *settings])
    tool.main()
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert list(rows) == [tool.NETWORK, tool.SCALED, "T = 0.5", tool.ENSEMBLE]
    assert tool.table(rows) in capsys.readouterr().out
    recipe = load_recipe(tool.RECIPE, [*TINY.split(), 'run.evaluate=["test"]'])
    test = load_data(recipe).evaluate["test"]
    labels = np.asarray(test.labels)
    nets = [Posterior.from_run(tmp_path / "runs" / seed / "sgd") for seed in ("0", "1")]
    probs = [np.asarray(net.predict(test.images).probs, dtype=np.float64) for net in nets]
    assert rows[tool.NETWORK]["1"]["nll"] == pytest.approx(metrics.nll(probs[1], labels))
    assert rows[tool.ENSEMBLE]["all"]["nll"] == pytest.approx(metrics.nll((probs[0] + probs[1]) / 2, labels))
    assert rows[tool.ENSEMBLE]["all"]["more"] == 3
    sampled = rows["T = 0.5"]["0"]
    assert sampled["more"] == 3  # the warm start is one more
    assert sampled["samples"] == len(list((tmp_path / "runs" / "0" / "T0.5" / "samples").glob("*.safetensors")))
    # It began where the network was: after one epoch of SGD and two of sampling it is no worse than a guess.
    assert sampled["nll"] < np.log(10)
