"""How the run of a row went is put into exploration.json as its metrics say it, and nothing else there changes."""

from __future__ import annotations

import json
import shutil

import pytest

from atmc.chain.rundir import RunDir
from atmc.errors import InputError

from .rescored import RESULTS, keeping, tool

BEFORE = {"what": "runs", "runs": [{"name": "another"}, {"name": "older words (the row x)"}]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "exploration.json").write_text(json.dumps(BEFORE), encoding="utf-8")
    return tmp_path


def test_what_is_kept_is_what_the_metrics_say(runs, folder):
    """Of two chains, from manifests and metrics alone, in place of what was there of this row before."""
    log = folder / "log"
    for file in runs.ensemble.rglob("*"):
        if file.name in ("manifest.json", "metrics.jsonl"):
            (log / file.relative_to(runs.ensemble)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, log / file.relative_to(runs.ensemble))
    assert tool.main(["keep", str(log), "--row", "x", "--called", "in words", "--out", str(folder)]) == 0
    other, found = json.loads((folder / "exploration.json").read_text(encoding="utf-8"))["runs"]
    assert other == BEFORE["runs"][0]
    assert found["name"] == "in words (the row x)"
    assert found["settings"] == {"recipe": "x.toml"}
    rows = RunDir.open(runs.ensemble).metrics()
    taken = sorted((row["chain"], row["scores"]["test"]["single"]["nll"]) for row in rows if row["event"] == "sample")
    assert [(sample["chain"], sample["single nll"]) for sample in found["samples"]] == [
        (chain, pytest.approx(nll, rel=1e-3)) for chain, nll in taken
    ]
    assert {key for sample in found["samples"] for key in sample} == {"epoch", "chain", "single accuracy", "single nll"}
    first = next(row for row in rows if row["event"] == "log" and row["chain"] == 0)
    epoch, loss, *_ = found["trace"]["rows"][0]
    assert (epoch, loss) == pytest.approx((first["epoch"], first["loss"]), rel=1e-3)


def test_readings_of_a_sampler_are_kept(runs, folder):
    found = keeping.keep(runs.one, "y", "in words", folder)
    rows = [row for row in RunDir.open(runs.one).metrics() if row["event"] == "sample"]
    for sample, row in zip(found["samples"], rows, strict=True):
        assert {key: sample[key] for key in keeping.READINGS} == pytest.approx(
            {key: row[key] for key in keeping.READINGS}, rel=1e-3
        )


def test_one_run_is_one_line():
    text = (RESULTS / "exploration.json").read_text(encoding="utf-8")
    assert keeping.in_lines(json.loads(text)) == text


def test_there_must_be_something_to_put_it_into(runs, tmp_path):
    with pytest.raises(InputError, match=r"exploration\.json"):
        keeping.keep(runs.one, "x", "in words", tmp_path)
