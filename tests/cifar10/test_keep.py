"""How the run of a row went is put into exploration.json as its metrics say it, and nothing else there changes."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import pytest

from atmc.common.errors import InputError
from atmc.engine.runner import run
from atmc.recipe.toml_files import load_recipe
from atmc.storage.run_directory import RunDir

from .conftest import TINY
from .rescored import RESULTS, keeping, tool

BEFORE = {"what": "runs", "runs": [{"name": "older words (the row x)"}, {"name": "another"}]}
ROLLBACK = {"chain": 1, "step": 3, "epoch": 0.2, "event": "rollback", "diverged_at": 7, "factor": 0.70001}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "exploration.json").write_text(json.dumps(BEFORE), encoding="utf-8")
    (tmp_path / "x.toml").write_text("", encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """Manifests and metrics alone, of two chains with three samples each; one of them fell back and took one again."""
    place = tmp_path_factory.mktemp("kept")
    made = run(load_recipe("digits-atmc", [*TINY, "chains=2"]), place / "run", progress=None).path
    for file in made.rglob("*"):
        if file.name in ("manifest.json", "metrics.jsonl"):
            (place / "log" / file.relative_to(made)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place / "log" / file.relative_to(made))
    metrics = place / "log" / "chains" / "1" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    first = next(number for number, row in enumerate(rows) if row["event"] == "sample")
    lost = {**rows[first], "scores": {"test": {"single": {"accuracy": 0.0, "nll": 99.0}}}}
    rows[first:first] = [lost, ROLLBACK]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return place / "log"


def test_what_is_kept_is_what_the_metrics_say(log, folder):
    assert tool.main(["keep", str(log), "--row", "x", "--called", "in words", "--out", str(folder)]) == 0
    found, other = json.loads((folder / "exploration.json").read_text(encoding="utf-8"))["runs"]
    assert other == BEFORE["runs"][1]
    assert found["name"] == "in words (the row x)"
    assert found["settings"] == {"recipe": "x.toml"}
    assert found["network"] == "resnetpp-8x2"
    assert "1,297 training images" in found["note"]
    rows = [RunDir.open(log).metrics(chain) for chain in (0, 1)]
    taken = [[row for row in each if row["event"] == "sample"] for each in rows]
    taken[1] = [row for row in taken[1] if row["scores"]["test"]["single"]["nll"] < 99.0]
    expected = [one for pair in zip(*taken, strict=True) for one in pair]  # by epoch, then by chain
    assert len(expected) == 6
    for sample, row in zip(found["samples"], expected, strict=True):
        alone = row["scores"]["test"]["single"]
        assert (sample["epoch"], sample["chain"]) == (pytest.approx(row["epoch"], abs=0.06), row["chain"])
        assert sample["single accuracy"] == pytest.approx(alone["accuracy"], rel=1e-3)
        assert sample["single nll"] == pytest.approx(alone["nll"], rel=1e-3)
        assert {key: sample[key] for key in keeping.READINGS} == pytest.approx(
            {key: row[key] for key in keeping.READINGS}, rel=1e-3
        )
    assert found["rollbacks"] == [{**ROLLBACK, "factor": 0.7}]
    logs = [[row for row in each if row["event"] == "log"] for each in rows]
    assert len(logs[0]) > keeping.EVERY
    for kept, row in zip(found["trace"]["rows"], logs[0][:: keeping.EVERY], strict=True):
        assert kept == pytest.approx([row[key] for key in keeping.COLUMNS], rel=1e-3)
    both = [*logs[0], *logs[1]]
    assert found["seconds"] == pytest.approx(max(row["seconds"] for row in both), abs=0.06)
    assert found["images_per_second"] == round(statistics.median(row["images_per_second"] for row in both))


def test_what_a_sampler_does_not_have_is_left_out(runs, folder):
    found = keeping.keep(runs.ensemble, "x", "in words", folder)
    assert {key for sample in found["samples"] for key in sample} == {"epoch", "chain", "single accuracy", "single nll"}


def test_one_run_is_one_line():
    text = (RESULTS / "exploration.json").read_text(encoding="utf-8")
    assert keeping.in_lines(json.loads(text)) == text


@pytest.mark.parametrize(
    ("path", "row", "words"),
    [("one", "y", r"no y\.toml"), ("one", "a/b", "names files"), ("blind", "x", "scored on the test set")],
)
def test_what_cannot_be_kept_is_said(runs, folder, path, row, words):
    before = (folder / "exploration.json").read_bytes()
    with pytest.raises(InputError, match=words):
        keeping.keep(getattr(runs, path), row, "in words", folder)
    assert (folder / "exploration.json").read_bytes() == before
