"""A chain that diverges for good: the others finish, the end names it, and the next call does not start it over."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import DivergedError, RunError
from atmc.engine.progress import Progress
from atmc.engine.runner import Runner, run
from atmc.engine.step import Step
from atmc.storage.run_directory import RunDir


class Bomb:
    """Breaks the weights of one chain whenever it comes to a step, and counts the steps that are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, chain: int, step: int) -> None:
        self.made: dict[int, int] = {}
        make, attend = Step.__call__, Runner._active
        numbers: dict[int, int] = {}

        def active(runner: Runner) -> Any:
            numbers.update({id(c.clock): c.number for c in runner.chains})
            return attend(runner)

        def call(this: Step) -> None:
            make(this)
            number = numbers[id(this.clock)]
            self.made[number] = self.made.get(number, 0) + 1
            if number == chain and int(this.clock.step) == step:
                with torch.no_grad():
                    for p in this.params:
                        p.fill_(float("nan"))

        monkeypatch.setattr(Runner, "_active", active)
        monkeypatch.setattr(Step, "__call__", call)


class Listen(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_others_finish_and_the_next_call_does_not_start_it_over(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, folder = change(tiny, chains=3, run={"max_rollbacks": 1}), tmp_path / "run"
    listen = Listen()
    with monkeypatch.context() as patch:
        Bomb(patch, chain=1, step=26)
        with pytest.raises(
            DivergedError, match=r"chain 1 diverged at step 26 .*2 samples are kept; 2 of 3 chains are done"
        ):
            run(recipe, folder, progress=listen)
    assert any("after 1 rollbacks" in note for note in listen.notes)  # at once, not only at the end
    found = RunDir.open(folder)
    assert found.status == "diverged"
    assert [sum(found.bank.chain_of(i) == c for i in range(len(found.bank))) for c in range(3)] == [5, 2, 5]
    assert found.bank.problems() == []

    with monkeypatch.context() as patch:
        bomb = Bomb(patch, chain=1, step=26)
        with pytest.raises(RunError, match=r"chain 1 diverged at step 26 .*run\.max_rollbacks \(1 now") as caught:
            run(recipe, folder, progress=None)
        assert bomb.made == {}
        assert "\n" not in str(caught.value)

    result = run(change(recipe, run={"max_rollbacks": 2}), folder, progress=None)
    assert (result.status, result.samples) == ("done", 15)
    assert run(recipe, folder, progress=None).status == "done"


def test_a_deadline_comes_first_and_the_others_can_go_on(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, folder = change(tiny, chains=2, run={"max_rollbacks": 0}), tmp_path / "run"
    Bomb(monkeypatch, chain=0, step=14)

    class Stop(Progress):
        """Asks for a stop as soon as one chain is out."""

        runner: Any = None

        def note(self, text: str) -> None:
            if "run.max_rollbacks" in text:
                self.runner.stop_asked = True

    stop = Stop()
    go = Runner.run

    def remember(runner: Runner, deadline: float | None) -> str:
        stop.runner = runner
        return go(runner, deadline)

    monkeypatch.setattr(Runner, "run", remember)
    assert run(recipe, folder, progress=stop).status == "interrupted"
    with pytest.raises(RunError, match=r"chain 0 diverged at step 14 .*; 1 of 2 chains are done, and the run has 6"):
        run(recipe, folder, progress=None)
    found = RunDir.open(folder)
    assert sum(found.bank.chain_of(i) == 1 for i in range(len(found.bank))) == 5


def test_another_error_still_ends_the_run(
    tiny: Any, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atmc.engine.checkpointing import Checkpointer

    def full(keeper: Checkpointer) -> None:
        raise RunError("no space left to write x")

    monkeypatch.setattr(Checkpointer, "attend", full)
    with pytest.raises(RunError, match="no space left"):
        run(change(tiny, chains=2, run={"max_rollbacks": 0}), tmp_path / "run", progress=None)
