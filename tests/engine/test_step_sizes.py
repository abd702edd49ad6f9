"""Step sizes from far too small to far too large: whatever happens, no diverged sample is kept, and failures are named.

`benchmarks/divergence.py` makes two hundred such runs.
"""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

from atmc.cli.main import run as command
from atmc.diagnose.doctor import doctor
from atmc.engine.runner import run
from atmc.storage.run_directory import RunDir


@pytest.fixture(scope="module")
def divergence() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "divergence.py"
    spec = importlib.util.spec_from_file_location("divergence_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_diverged_sample_in_any_bank(divergence: Any) -> None:
    found = divergence.sweep(20, seed=1)
    assert [r for r in found if r["diverged"]] == []
    assert [r for r in found if not r["named"]] == []
    assert sum(bool(r["said"]) for r in found) >= 3  # the sweep does reach step sizes that break a chain
    assert sum(r["samples"] > 2 and not r["rollbacks"] for r in found) >= 3  # and step sizes that do not


def test_evaluate_says_what_sample_said(
    divergence: Any, change: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample so wrong that its probabilities are zero in float32 has one NLL, not one for each command."""
    recipe = change(divergence.recipes(1)[0], sampler={"lr": 3e-3}, run={"worst_sample": math.inf, "explode": 1e30})
    run(recipe, tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    last = [row for row in found.metrics() if row["event"] == "sample"][-1]["scores"]["test"]
    assert last["single"]["nll"] > 20
    assert command(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["single"]["nll"] == pytest.approx(last["single"]["nll"], rel=1e-12)
    assert said["predictive"]["nll"] == pytest.approx(last["predictive"]["nll"], rel=1e-5)
    verdict, worst = doctor(found)[:2]
    assert (worst.level, worst.title) == ("problem", "Its samples are worse than guessing")
    assert "sampler.lr=0.0003" in verdict.action  # the foremost finding's command
