"""Runs that draw by importance: the step, its gradient, and scores as part of a chain's state."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import InputError
from atmc.data import ImportanceBatches
from atmc.engine import noise_reading
from atmc.engine.chain import Chain
from atmc.engine.progress import Progress
from atmc.engine.runner import run
from atmc.storage.run_directory import RunDir

from .chains import chain_of, check_same_steps


@pytest.fixture
def drawn(tiny: Any, change: Any) -> Any:
    return change(tiny, data={"draw": "importance"}, schedule={"epochs": 8, "cycle_epochs": 2})


def test_a_step_has_the_weighted_gradient_and_notes_sizes(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(drawn, "cpu")
    for _ in range(9):
        chain.advance(1)
    feed, step, potential = chain.feed, chain._step, chain.potential
    assert isinstance(feed, ImportanceBatches)
    number, before = chain.done, feed.scores.clone()
    x, y = feed.batch(number)
    weights, places = feed.weights, feed._drawn
    assert weights is not None
    assert places is not None
    outputs = potential.model(x)
    nll = (weights * potential.likelihood.nll(outputs, y)).sum()
    u = potential.num_data * nll - potential.prior_set.log_prob(potential.parameters())
    expected = torch.autograd.grad(u, step.params)
    for found, wanted in zip(step.gradient(number), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)
    assert torch.equal(feed.scores, before)  # looking changes none
    chain.advance(1)
    residual = outputs.softmax(1).detach()
    residual[torch.arange(len(y)), y] -= 1
    torch.testing.assert_close(feed.scores[places], residual.norm(dim=1), rtol=1e-4, atol=1e-5)
    others = torch.ones(len(before), dtype=torch.bool).index_fill(0, places, False)
    assert torch.equal(feed.scores[others], before[others])
    assert float(chain.losses[number % len(chain.losses)]) == pytest.approx(float(nll.detach()), rel=1e-5)


def test_the_noise_reading_sees_the_scores_and_leaves_them(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(drawn, "cpu")
    while chain.done < 12:
        chain.advance(4)
    assert chain.reader is not None
    assert chain.reader.batches.scores is chain.feed.scores
    assert chain.feed.scores is not None
    before = chain.feed.scores.clone()
    used: list[torch.Tensor] = []
    look = chain._step.gradient_on

    def spy(x: Any, y: Any, weights: Any = None) -> Any:
        used.append(weights)
        return look(x, y, weights)

    monkeypatch.setattr(chain._step, "gradient_on", spy)
    chain.reader.read(chain._step, chain.done)
    assert len(used) == noise_reading.GRADIENTS
    assert all(weights is not None and weights.std() > 0 for weights in used)
    assert torch.equal(chain.feed.scores, before)
    assert (before >= 0).sum() > 60


class _StopAt30(Progress):
    """A signal once 30 steps are made: the run ends with a checkpoint."""

    def row(self, row: Any, samples: int) -> None:
        if row["step"] >= 30:
            os.kill(os.getpid(), signal.SIGTERM)


SECTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm start, two chains": {"schedule": {"epochs": 8, "warm_start_epochs": 3}, "chains": 2},
    "friction within tensors": {"sampler": {"noise_rank": 4, "noise_kronecker": True}},
    "friction along the noise, masses": {
        "sampler": {"noise_rank": 4, "mass_from": "tensor", "mass_looks": 2, "look_batches": 4},
        "schedule": {"epochs": 8, "burn_in_epochs": 2},
    },
}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_run_in_parts_is_the_whole_run_bit_for_bit(
    drawn: Any, change: Any, tmp_path: Path, fingerprint: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(noise_reading, "LEAST", 7)
    recipe = change(drawn, run={"log_steps": 5}, **SECTIONS[name])
    run(recipe, tmp_path / "whole", progress=None)
    assert run(recipe, tmp_path / "parts", progress=_StopAt30()).status == "interrupted"
    assert run(recipe, tmp_path / "parts", progress=None).status == "done"
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


def test_scores_that_are_lost_change_the_run(
    drawn: Any, change: Any, tmp_path: Path, fingerprint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail."""
    recipe = change(drawn, run={"log_steps": 5})
    run(recipe, tmp_path / "whole", progress=None)
    assert run(recipe, tmp_path / "parts", progress=_StopAt30()).status == "interrupted"
    honest = Chain.load

    def forgetful(self: Chain, *state: Any) -> None:
        honest(self, *state)
        assert self.feed.scores is not None
        self.feed.scores.fill_(-1.0)

    monkeypatch.setattr(Chain, "load", forgetful)
    assert run(recipe, tmp_path / "parts", progress=None).status == "done"
    assert fingerprint(tmp_path / "parts")["samples"] != fingerprint(tmp_path / "whole")["samples"]


def test_samples_are_bit_for_bit_those_without_readings(
    drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_reading, "LEAST", 7)
    run(drawn, tmp_path / "with", progress=None)
    assert any("noise_temperature" in row for row in RunDir.open(tmp_path / "with").metrics())
    monkeypatch.setattr(noise_reading.NoiseReader, "serves", staticmethod(lambda *_: False))
    run(drawn, tmp_path / "without", progress=None)
    banks = [RunDir.open(tmp_path / name).bank for name in ("with", "without")]
    assert len(banks[0])
    assert banks[0].hashes() == banks[1].hashes()


def test_all_data_in_each_batch_is_a_plain_run(drawn: Any, change: Any, tmp_path: Path) -> None:
    whole = {"data": {"batch_size": 90}, "schedule": {"epochs": 30}}
    run(change(drawn, **whole), tmp_path / "importance", progress=None)
    recipe = change(drawn, **whole)
    run(change(recipe, data={"draw": "auto"}), tmp_path / "plain", progress=None)
    banks = [RunDir.open(tmp_path / name).bank for name in ("importance", "plain")]
    assert len(banks[0])
    assert banks[0].hashes() == banks[1].hashes()


def test_another_way_of_drawing_in_the_same_folder_is_refused(drawn: Any, change: Any, tmp_path: Path) -> None:
    run(drawn, tmp_path / "run", progress=None)
    with pytest.raises(InputError, match=r"data\.draw = 'importance'"):
        run(change(drawn, data={"draw": "auto"}), tmp_path / "run", progress=None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recording_leaves_scores_and_the_recorded_step_notes_them(drawn: Any, change: Any) -> None:
    recipe = change(drawn, run={"device": "cuda", "deterministic": True})
    recorded, eager = chain_of(recipe, "cuda"), chain_of(recipe, "cuda")
    recorded.ready()
    assert recorded.feed.scores is not None
    assert eager.feed.scores is not None
    assert (recorded.feed.scores < 0).all()
    check_same_steps(recorded, eager, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded.feed.scores, eager.feed.scores, rtol=1e-3, atol=1e-4)
