"""Divergence: noticed late, rolled back, written down, and never in the bank."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import RunError
from atmc.engine.divergence_guard import Guard
from atmc.engine.guessing import Guess, guess, verdict
from atmc.engine.runner import Runner, run
from atmc.engine.step import Step
from atmc.storage.run_directory import RunDir
from atmc.target import likelihoods

GUESSING = math.log(10)


def test_non_finite_losses_are_seen_at_once() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        found = Guard(4.0, GUESSING).judge([2.0, 2.0, bad, 2.0], 100)
        assert found is not None
        assert found.step == 102


def test_one_bad_batch_is_no_divergence_but_a_lasting_rise_is() -> None:
    guard = Guard(4.0, GUESSING)
    assert guard.judge([2.3] * 30 + [100.0] + [2.3] * 200, 0) is None
    found = guard.judge([30.0] * 200, 231)
    assert found is not None
    assert 231 < found.step < 300
    assert "running loss" in found.reason


def test_a_network_that_starts_badly_is_given_its_start() -> None:
    guard = Guard(4.0, GUESSING)
    assert guard.judge([50.0] * 100 + [60.0] * 100, 0) is None


def test_a_chain_that_explodes_at_once_does_not_set_its_own_limit() -> None:
    found = Guard(4.0, GUESSING).judge([2.3] + [600.0] * 100, 0)
    assert found is not None
    assert found.step < 20
    assert found.since == 1


def test_a_storm_that_passes_is_no_divergence() -> None:
    assert Guard(4.0, GUESSING).judge([2.3] + [500.0] * 2 + [2.0] * 100, 0) is None


def test_a_bad_start_counts_only_until_the_chain_has_been_better() -> None:
    guard = Guard(4.0, GUESSING)
    assert guard.judge([50.0] * 10 + [1.0] * 300, 0) is None  # such as a warm start does it
    found = guard.judge([50.0] * 100, 310)
    assert found is not None
    assert found.since == 310


def test_it_says_since_when() -> None:
    guard = Guard(4.0, GUESSING)
    losses = [2.3] * 30 + [100.0] + [2.3] * 20 + [30.0, 8.0, 30.0] + [40.0] * 40
    found = guard.judge(losses, 1000)
    assert found is not None
    assert found.step > 1054
    assert found.since == 1051  # not the one bad batch before


def test_the_last_losses_tell_before_the_mean_does() -> None:
    guard = Guard(4.0, GUESSING)
    assert guard.judge([2.3] * 30 + [100.0, 2.3, 100.0], 0) is None
    assert guard.suspect() is None  # two of five
    assert guard.judge([80.0], 33) is None
    found = guard.suspect()  # three, and far beyond
    assert found is not None
    assert (found.step, found.since) == (34, 30)


def test_all_of_the_last_losses_must_be_a_little_beyond() -> None:
    guard = Guard(4.0, GUESSING)
    assert guard.judge([2.3] * 30 + [10.0] * 4, 0) is None
    assert guard.suspect() is None
    assert guard.judge([10.0], 34) is None
    assert guard.suspect() is not None


def test_a_state_from_before_recent_losses_were_kept() -> None:
    guard = Guard(4.0, GUESSING)
    guard.load({"mean": 2.0})
    assert guard.suspect() is None
    assert guard.divergence(7, "why").since == 7


def test_state_survives_and_splitting_changes_nothing() -> None:
    losses = [2.0 + 0.1 * (i % 7) for i in range(100)]
    whole, parts = Guard(4.0, GUESSING), Guard(4.0, GUESSING)
    whole.judge(losses, 0)
    parts.judge(losses[:33], 0)
    again = Guard(4.0, GUESSING)
    again.load(parts.state())
    again.judge(losses[33:], 33)
    assert again.state() == whole.state()


class Explosion:
    """Makes a chain's weights huge at given steps, each once: a divergence that a smaller step does not repeat."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: list[int], value: float = math.nan) -> None:
        self.left = list(steps)
        original = Step.__call__

        def call(step: Step) -> None:
            original(step)
            if int(step.clock.step) in self.left:
                self.left.remove(int(step.clock.step))
                with torch.no_grad():
                    for p in step.params:  # scales and biases: directions are normalised away
                        if p.ndim == 1:
                            p.fill_(value)

        monkeypatch.setattr(Step, "__call__", call)


@pytest.mark.parametrize("value", [math.nan, 1e3])
def test_rolls_back_with_a_smaller_step_and_writes_it_down(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    Explosion(monkeypatch, [26], value)
    assert run(tiny, tmp_path / "run", progress=None).status == "done"
    found = RunDir.open(tmp_path / "run")
    [event] = [row for row in found.metrics() if row["event"] == "rollback"]
    assert event["since"] in (26, 27)
    assert event["diverged_at"] < 31
    assert event["step"] == 23  # the end of the second cycle: its checkpoint is the last good one
    assert event["lr_scale"] == 0.5
    assert len(found.bank) == 5
    for sample in found.bank:
        assert all(bool(t.isfinite().all()) and float(t.abs().max()) < 1e2 for t in sample.values())
    logs = [row for row in found.metrics() if row["event"] == "log" and row["step"] > 30]
    assert logs[0]["lr"] <= 0.5 * tiny.sampler.lr


def test_a_cycle_of_the_burn_in_leaves_a_checkpoint_too(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Explosion(monkeypatch, [26])
    run(change(tiny, schedule={"burn_in_epochs": 5}), tmp_path / "run", progress=None)
    [event] = [row for row in RunDir.open(tmp_path / "run").metrics() if row["event"] == "rollback"]
    assert event["step"] == 23


def test_a_sample_due_right_after_a_divergence_is_not_taken(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At step 23 a sample is due; the weights break with the very step before it, so no loss has shown it yet.
    Explosion(monkeypatch, [23])
    run(tiny, tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    [event] = [row for row in found.metrics() if row["event"] == "rollback"]
    assert event["diverged_at"] == 23
    assert [found.bank.meta(i)["index"] for i in range(5)] == [0, 1, 2, 3, 4]
    assert all(bool(t.isfinite().all()) for sample in found.bank for t in sample.values())


@pytest.mark.parametrize("at", [20, 21, 22, 23])
@pytest.mark.parametrize("evaluate", [["test"], []])
def test_a_sample_of_a_chain_that_explodes_without_a_nan_is_not_kept(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, evaluate: list[str]
) -> None:
    """A sample is due at step 23: the running mean knows nothing yet, nor, at 22 and 23, do the last losses."""
    Explosion(monkeypatch, [at], 30.0)
    recipe = change(tiny, run={"evaluate": evaluate})
    assert run(recipe, tmp_path / "run", progress=None).status == "done"
    found = RunDir.open(tmp_path / "run")
    events = [row for row in found.metrics() if row["event"] == "rollback"]
    assert len(events) == 1, events
    assert events[0]["since"] in (at, at + 1)
    assert events[0]["step"] < at
    assert [found.bank.meta(i)["index"] for i in range(len(found.bank))] == [0, 1, 2, 3, 4]
    for sample in found.bank:
        assert all(float(t.abs().max()) < 10.0 for t in sample.values())


def test_a_second_divergence_goes_back_further(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Explosion(monkeypatch, [38, 38])
    assert run(tiny, tmp_path / "run", progress=None).status == "done"
    found = RunDir.open(tmp_path / "run")
    events = [row for row in found.metrics() if row["event"] == "rollback"]
    steps = [row["step"] for row in events]
    assert len(steps) == 2
    assert steps[1] < steps[0]
    assert len(found.bank) == 5


def test_a_checkpoint_is_never_made_of_a_diverged_chain(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Explosion(monkeypatch, [31])
    recipe = change(tiny, run={"checkpoint_minutes": 1e-6})  # one after every stretch of steps
    run(recipe, tmp_path / "run", progress=None)
    rows = RunDir.open(tmp_path / "run").metrics()
    [event] = [row for row in rows if row["event"] == "rollback"]
    assert 23 <= event["step"] <= 31


def test_gives_up_after_the_stated_number_and_keeps_the_samples(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Explosion(monkeypatch, [26] * 20)
    with pytest.raises(RunError, match=r"after 2 rollbacks \(run.max_rollbacks\).* 2 samples are kept") as caught:
        run(change(tiny, run={"max_rollbacks": 2}), tmp_path / "run", progress=None)
    assert "\n" not in str(caught.value)
    found = RunDir.open(tmp_path / "run")
    assert len(found.bank) == 2
    assert found.bank.problems() == []
    assert [row["lr_scale"] for row in found.metrics() if row["event"] == "rollback"] == [0.5, 0.25]


def test_a_chain_that_gives_up_keeps_no_sample_from_after_its_divergence(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Explosion(monkeypatch, [22], 30.0)  # the sample of step 23 is taken before any loss has shown much
    keeping = {"max_rollbacks": 0, "evaluate": [], "worst_sample": math.inf}
    with pytest.raises(RunError, match="its 1 sample is kept"):
        run(change(tiny, run=keeping), tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    assert [found.bank.meta(i)["step"] for i in range(len(found.bank))] == [12]
    assert "no longer in the bank: drawn at or after step" in " ".join(found.damage())


def test_rollbacks_survive_a_stop(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fingerprint: Any
) -> None:
    Explosion(monkeypatch, [26])
    run(tiny, tmp_path / "whole", progress=None)
    Explosion(monkeypatch, [26])
    ask = Runner.run

    def stop_soon(runner: Runner, deadline: float | None) -> str:
        runner.progress = _StopAfterRollback(runner)
        for keeper in runner.keepers:
            keeper.progress = runner.progress
        return ask(runner, deadline)

    monkeypatch.setattr(Runner, "run", stop_soon)
    assert run(tiny, tmp_path / "parts", progress=None).status == "interrupted"
    monkeypatch.setattr(Runner, "run", ask)
    assert run(tiny, tmp_path / "parts", progress=None).status == "done"
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


class _StopAfterRollback:
    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def begin(self, *args: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...

    def row(self, row: Any, samples: int) -> None:
        if row["event"] == "rollback":
            self.runner.stop_asked = True


def test_the_guess_of_each_likelihood() -> None:
    labels = torch.arange(30) % 3
    found = guess(likelihoods.build("categorical"), labels, 3)
    assert found.loss == pytest.approx(math.log(3))
    assert found.cost == pytest.approx(math.log(3))
    assert guess(likelihoods.build("dirclip"), labels, 3).loss == pytest.approx(math.log(3))  # its own is negative
    wide = guess(likelihoods.build("noisy-dirichlet", alpha_eps=1e-4), labels, 3)
    assert wide.loss > 10
    assert wide.cost == pytest.approx(math.log(3))
    targets = torch.tensor([[-20.0], [20.0]] * 10)
    line = guess(likelihoods.build("gaussian", scale=2.0), targets, 0)
    assert line.loss == pytest.approx(50 + math.log(2) + 0.5 * math.log(2 * math.pi), rel=1e-5)
    assert line.cost == pytest.approx(404)


def test_overfitting_is_no_divergence_and_a_broken_sample_is() -> None:
    known = Guess(loss=GUESSING, cost=GUESSING)
    by_heart = {"training": {"nll": 0.01}, "test": {"nll": 20.0}}
    assert verdict(by_heart, known, 3.0) is None
    broken = {"training": {"nll": 3.0}, "test": {"nll": 7.0}}
    assert "on test examples is 7" in str(verdict(broken, known, 3.0))
    assert verdict(broken, known, math.inf) is None
    assert "on training examples" in str(verdict({"training": {"nll": 8.0}}, known, 3.0))
    assert "not finite" in str(verdict({"training": {"nll": math.nan}}, known, math.inf))
    assert verdict({"training": {"rmse": 5.0}}, Guess(1.0, 10.0), 3.0) is None
    assert "squared error" in str(verdict({"training": {"rmse": 6.0}}, Guess(1.0, 10.0), 3.0))


@pytest.mark.parametrize("evaluate", [["test"], []])
def test_no_sample_much_worse_than_guessing_unless_the_recipe_says_so(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluate: list[str]
) -> None:
    """Weights that are wrong at the very step of a sample, though not so wrong that the losses' limit knows."""
    monkeypatch.setattr(Guard, "limit", math.inf)
    Explosion(monkeypatch, [23], 30.0)
    recipe = change(tiny, run={"evaluate": evaluate})
    run(recipe, tmp_path / "run", progress=None)
    [event] = [row for row in RunDir.open(tmp_path / "run").metrics() if row["event"] == "rollback"]
    assert "run.worst_sample = 3" in event["reason"]
    Explosion(monkeypatch, [23], 30.0)
    run(change(recipe, run={"worst_sample": math.inf}), tmp_path / "all", progress=None)
    found = RunDir.open(tmp_path / "all")
    assert [row for row in found.metrics() if row["event"] == "rollback"] == []
    assert max(float(t.abs().max()) for t in found.bank[1].values()) > 10
