"""The temperature along the gradient noise in a run: read between steps, and without a trace in the chain."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import atmc
from atmc.engine import noise_reading
from atmc.engine.progress import Progress
from atmc.engine.runner import run
from atmc.storage.run_directory import RunDir


class _StopAt30(Progress):
    """A signal once 30 steps are made: the run ends with a checkpoint."""

    def row(self, row: Any, samples: int) -> None:
        if row["step"] >= 30:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading every seven steps, which divides neither rows nor epochs."""
    monkeypatch.setattr(noise_reading, "LEAST", 7)


def _read(path: Path) -> list[dict[str, Any]]:
    return [row for row in RunDir.open(path).metrics() if "noise_temperature" in row]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "sections",
    [
        {"schedule": {"epochs": 20}},
        {"schedule": {"epochs": 20, "warm_start_epochs": 3}, "chains": 2},
        {
            "schedule": {"epochs": 20},
            "sampler": {"name": "sgnht", "integrator": "strang"},
            "model": {"name": "resnet", "depth": 8, "width": 4, "norm": "frn"},
            "data": {"augment": "flip"},
        },
    ],
    ids=["plain", "warm start, two chains", "strang, convolutions, augmented"],
)
def test_samples_are_bit_for_bit_those_without_the_reading(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any]
) -> None:
    recipe = change(tiny, **sections)
    run(recipe, tmp_path / "with", progress=None)
    assert _read(tmp_path / "with")
    monkeypatch.setattr(noise_reading.NoiseReader, "serves", staticmethod(lambda *_: False))
    run(recipe, tmp_path / "without", progress=None)
    assert not _read(tmp_path / "without")
    banks = [RunDir.open(tmp_path / name).bank for name in ("with", "without")]
    assert len(banks[0])
    assert banks[0].hashes() == banks[1].hashes()


@pytest.mark.usefixtures("often")
def test_a_run_in_parts_reads_what_a_whole_one_does(tiny: Any, change: Any, tmp_path: Path, fingerprint: Any) -> None:
    recipe = change(tiny, schedule={"epochs": 20, "warm_start_epochs": 2}, run={"log_steps": 37})
    run(recipe, tmp_path / "whole", progress=None)
    assert run(recipe, tmp_path / "parts", progress=_StopAt30()).status == "interrupted"
    run(recipe, tmp_path / "parts", progress=None)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    rows = _read(tmp_path / "whole")
    assert all(row["phase"] == "main" for row in rows)
    main = RunDir.open(tmp_path / "whole").metrics()
    steps = max(row["step"] for row in main)
    first = next(row["step"] for row in main if row["event"] == "log" and row["phase"] == "main") - 37
    assert sum(row["noise_readings"] for row in rows) >= 2 * ((steps - first) // 7 - 1)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"batch_size": 90}, "schedule": {"epochs": 30}},
        {"sampler": {"name": "sgld", "lr": 1e-4, "mass": None, "friction": None, "inertia": None}},
        {"sampler": {"temperature": 0.0}},
    ],
    ids=["all data in one batch", "no momentum", "T = 0"],
)
def test_where_there_is_nothing_to_read_nothing_is_written(
    tiny: Any, change: Any, tmp_path: Path, sections: dict[str, Any]
) -> None:
    run(change(tiny, **sections), tmp_path / "run", progress=None)
    assert not _read(tmp_path / "run")


@pytest.mark.usefixtures("often")
def test_the_number_in_a_row_is_the_samplers_own(tiny: Any, change: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """And the sampler is asked with fresh gradients: no two of a stop are equal, nor one of the chain's own."""
    seen: list[tuple[float, list[torch.Tensor], torch.Tensor]] = []
    honest = atmc.ATMC.noise_temperature

    def spy(self: Any, *grads: Any) -> torch.Tensor:
        value = honest(self, *grads)
        own = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        seen.append((float(value), [each[0].clone() for each in grads], own[0]))
        return value

    monkeypatch.setattr(atmc.ATMC, "noise_temperature", spy)
    run(change(tiny, run={"log_steps": 7}), tmp_path / "run", progress=None)
    assert [row["noise_temperature"] for row in _read(tmp_path / "run")] == [value for value, _, _ in seen]
    for _, grads, own in seen:
        assert len(grads) == noise_reading.GRADIENTS
        different = [a for i, a in enumerate([*grads, own]) if not any(a.equal(b) for b in grads[:i])]
        assert len(different) == len(grads) + 1
