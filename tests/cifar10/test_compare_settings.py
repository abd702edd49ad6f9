"""`benchmarks/compare_settings.py` on digits: runs in a row, what is kept of them, and how they are stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from .rescored import comparing

SMALL = [f"--set={s}" for s in ("data.validation=200", "schedule.epochs=4", "schedule.cycle_epochs=2")]
SMALL += ["--set=schedule.burn_in_epochs=0", "--set=model.width=8"]
SMALL += ["--set=data.name=digits", "--set=schedule.warm_start_epochs=0", "--set=schedule.warm_start_lr=0.05"]
SMALL += ["--set=sampler.temperature=1.0"]


def compare(monkeypatch: Any, out: Path, *arguments: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["compare_settings.py", "digits-atmc", "--out", str(out), *SMALL, *arguments])
    comparing.main()
    return json.loads((out / "compared.json").read_text())


def test_every_try_is_scored_on_held_out_images(monkeypatch, tmp_path, capsys):
    tries = ("sampler.temperature=0.5", "sampler.temperature=0.1 sampler.speed=0.001")
    found = compare(monkeypatch, tmp_path, *(f"--try={t}" for t in tries))
    assert tuple(found) == tries
    for name, result in found.items():
        assert result["status"] == "done"
        assert len(result["samples"]) == 2
        assert f"sampler.temperature={result['recipe']['sampler']['temperature']:g}" in name
        assert set(result["samples"][0]) >= {"epoch", "single", "predictive"}
        assert comparing.limit(result) is not None
    said = capsys.readouterr().out
    assert said.count("many: ") == 2
    assert "lowest NLL on held-out images: sampler.temperature=" in said


def test_samples_of_several_chains_are_averaged_together(monkeypatch, tmp_path, capsys):
    found = compare(monkeypatch, tmp_path, "--set=chains=2")["as it is"]
    assert [(sample["epoch"], sample["chain"]) for sample in found["samples"]] == [(2, 0), (2, 1), (4, 0), (4, 1)]
    run = comparing.RunDir.open(tmp_path / "00")
    probs, labels = run.predictions("validation").double(), run.labels("validation")
    own = probs[:, range(len(labels)), labels]
    nll = [float(-own[:n].mean(0).log().mean()) for n in (1, 2, 3, 4)]
    assert [sample["predictive"]["nll"] for sample in found["samples"]] == pytest.approx(nll)
    alone = -own.log().mean(1)
    saved = (
        float(alone[[0, 2]].mean() + own[[0, 2]].mean(0).log().mean()),
        float(alone[[1, 3]].mean() + own[[1, 3]].mean(0).log().mean()),
    )
    assert found["pairs"]["one"] == pytest.approx(sum(saved) / 2)
    assert "two together gain" in capsys.readouterr().out


def test_samples_of_one_cycle_are_scored_as_one_mode(monkeypatch, tmp_path):
    several = ["--set=schedule.epochs=8", "--set=schedule.cycle_epochs=4", "--set=schedule.samples_per_cycle=2"]
    found = compare(monkeypatch, tmp_path, *several)["as it is"]
    assert [round(sample["epoch"]) for sample in found["samples"]] == [3, 4, 7, 8]
    run = comparing.RunDir.open(tmp_path / "00")
    own = run.predictions("validation").double()[:, range(len(run.labels("validation"))), run.labels("validation")]
    modes = [float(-own[some].mean(0).log().mean()) for some in ([0, 1], [2, 3])]
    assert [mode["nll"] for mode in found["modes"]] == pytest.approx(modes)
    whole = found["samples"][-1]["predictive"]["nll"]
    assert comparing.limit(found) == pytest.approx(2 * whole - sum(modes) / 2)


def test_a_signal_stops_all_tries_and_the_same_line_resumes(monkeypatch, tmp_path):
    tries = [f"--try=sampler.temperature={t}" for t in (0.5, 0.1)]

    def interrupt() -> None:
        log = tmp_path / "00" / "metrics.jsonl"
        while not log.exists() or not log.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    found = compare(monkeypatch, tmp_path, "--set=schedule.epochs=12", *tries)
    watcher.join()
    assert [result["status"] for result in found.values()] == ["interrupted"]
    assert found["sampler.temperature=0.5"]["curve"][-1]["epoch"] < 12
    found = compare(monkeypatch, tmp_path, "--set=schedule.epochs=12", *tries)
    assert [(result["status"], len(result["samples"])) for result in found.values()] == [("done", 6), ("done", 6)]


def test_an_unknown_setting_is_one_line(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match=r"sampler\.warmth"):
        compare(monkeypatch, tmp_path, "--try=sampler.warmth=1")
