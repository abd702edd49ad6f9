"""Runs with friction along the gradients of examples: the step, resuming, and what it does not go together with."""

from typing import Any

import pytest
import torch

from atmc.common.errors import InputError
from atmc.engine.runner import run
from atmc.storage.run_directory import RunDir


@pytest.fixture
def by_example(tiny: Any, change: Any) -> Any:
    return change(tiny, sampler={"noise_examples": True}, schedule={"epochs": 6, "cycle_epochs": 2})


@pytest.mark.parametrize("draw", ["auto", "importance"])
def test_it_runs_and_resumes_bit_for_bit(by_example: Any, change: Any, tmp_path: Any, draw: str) -> None:
    by_example = change(by_example, data={"draw": draw})
    whole = run(by_example, tmp_path / "whole", None, None)
    assert whole.status == "done"
    part = run(by_example, tmp_path / "part", 0.01, None)
    calls = 1
    while part.status != "done":
        part, calls = run(by_example, tmp_path / "part", 0.2, None), calls + 1
    found = [RunDir.open(tmp_path / name) for name in ("whole", "part")]
    samples = [[torch.cat([t.flatten() for t in s.values()]) for s in each_sample(own)] for own in found]
    assert len(samples[0]) == len(samples[1]) > 1
    assert all(torch.equal(a, b) for a, b in zip(*samples, strict=True))
    kinetic = [row["kinetic_temperature"] for row in found[0].metrics() if "kinetic_temperature" in row]
    assert kinetic[-1] == pytest.approx(1.0, abs=0.3)


def each_sample(own: RunDir) -> Any:
    from safetensors.torch import load_file

    return [load_file(path) for path in sorted((own.path / "samples").glob("*.safetensors"))]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": {"noise_rank": 4}}, "use sampler.noise_rank = 0 with it"),
        ({"data": {"batch_size": 90}}, "takes all 90 examples: leave it out"),
        ({"run": {"parallel": "data"}}, "needs all examples of a batch in one process"),
    ],
    ids=["rank", "all data", "data-parallel"],
)
def test_what_it_does_not_go_together_with(
    by_example: Any, change: Any, tmp_path: Any, settings: Any, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        run(change(by_example, **settings), tmp_path / "run", None, None)
