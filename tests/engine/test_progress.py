"""What a run says while it goes on: it fits the terminal, says how long it takes, and names its numbers."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atmc.engine import run
from atmc.engine.chain import Chain
from atmc.engine.progress import (
    BAR,
    ROOMY,
    SHORTEST,
    PlainProgress,
    Progress,
    Row,
    _Pace,
    describe_sample,
    live_line,
    place,
    sample_lines,
)
from atmc.engine.schedule import make_schedule
from atmc.recipe.settings import DataSection, Recipe, ScheduleSection
from atmc.storage import RunDir

LOG = {"event": "log", "step": 709, "epoch": 35.0, "chain": 0, "loss": 19.5956, "kinetic_temperature": 0.967}
LOG |= {"temperature": 1.0, "images_per_second": 9985.0}
SCORE = {"single": {"accuracy": 0.976, "nll": 0.0759}, "predictive": {"accuracy": 0.982, "nll": 0.0612}}
SAMPLE = {"event": "sample", "step": 709, "epoch": 35.0, "chain": 0, "index": 12, "scores": {"test": SCORE}}


def pace(chains: int = 1, seconds: float = 60.0) -> _Pace:
    """A run of 100 epochs and 20 cycles that has been going for a while."""
    plan = ScheduleSection(epochs=100, kind="cyclic", cycle_epochs=5)
    made = _Pace(make_schedule(Recipe(data=DataSection(batch_size=64), schedule=plan), 1297), chains, 0)
    made.began = time.monotonic() - seconds
    return made


@pytest.mark.parametrize("width", [40, 60, 80, 100, 109, 110, 120, 200])
@pytest.mark.parametrize("chains", [1, 3])
def test_the_live_line_fits_and_keeps_the_time_left(width: int, chains: int) -> None:
    going = pace(chains)
    for name in ("digits-atmc", "a name that is longer than a name should be"):
        shown, bar, said = live_line(name, LOG, 4, going, width)
        assert len(shown) + bar + len(said) + 2 <= width
        assert said.endswith(" left")
        assert "35/100" in said
        assert SHORTEST <= bar <= BAR
    shown, bar, said = live_line("digits-atmc", LOG, 4, going, width)
    assert ("cycle" in said) == ("img/s" in said) == (width >= ROOMY)
    if width >= 80 and chains == 1:
        assert shown == "digits-atmc"
        assert "loss 19.5956  T 0.967/1  samples 4" in said


def test_scores_are_named_and_fit_the_terminal() -> None:
    going = pace()
    said = "test: accuracy 97.60%, averaged 98.20%; NLL 0.0759, averaged 0.0612"
    assert describe_sample(SAMPLE) == f"sample 13  {said}"
    assert sample_lines(SAMPLE, going, 120) == [f"epoch 35/100  cycle 7/20  sample 13  {said}"]
    assert sample_lines(SAMPLE, going, 80) == [f"sample 13  {said}"]
    perfect = {kind: {"accuracy": 1.0, "nll": 12.3456} for kind in ("single", "predictive")}
    two: dict[str, Any] = {**SAMPLE, "scores": {"validation": perfect, "test": perfect}, "chain": 2}
    lines = sample_lines(two, pace(3), 80)
    assert lines[0] == "chain 2  sample 13"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["validation", "test"]
    assert all(len(line) <= 80 for line in lines)
    values = {kind: {"rmse": 0.25} for kind in ("single", "predictive")}
    assert describe_sample({**SAMPLE, "scores": {"test": values}}).endswith("test: RMSE 0.25, averaged 0.25")


def test_where_a_step_has_all_the_data_steps_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_schedule(
        Recipe(data=DataSection(batch_size=64), schedule=ScheduleSection(epochs=800, kind="cyclic", cycle_epochs=800)),
        64,
    )
    PlainProgress().begin("mine", plan, 1, 0)
    assert capsys.readouterr().err == "mine: 800 steps, each with all the data\n"
    assert place(LOG, _Pace(plan, 1, 0)) == "step 709/800"


RUN = """
import sys
from atmc.engine import progress
from test_progress import LOG, SAMPLE, pace
shown = progress.choose_progress()
assert isinstance(shown, progress.RichProgress)
shown.begin("digits-atmc", pace().schedule, 1, 0)
shown._pace = pace()
shown.row(LOG, 4)
shown.row(SAMPLE, 4)
shown.row(LOG, 5)
shown._bars.refresh()
shown.end()
"""


def test_a_terminal_of_eighty_columns_is_not_overrun(in_a_terminal: Callable[..., str], monkeypatch) -> None:
    """In a real pseudo-terminal: nothing is cut, nothing wraps, and there is a bar."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    lines = re.split(r"[\r\n]+", in_a_terminal([sys.executable, "-c", RUN], {"PYTHONPATH": paths}))
    live = [line for line in lines if "epoch 35/100" in line]
    assert live
    assert all(re.match(r"digits-atmc [━╸╺]{5,20} ", line) for line in live), live
    assert all(line.rstrip().endswith(" left") and len(line) <= 80 for line in live)
    assert describe_sample(SAMPLE) in [line.rstrip() for line in lines]


class Seen(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], int]] = []

    def row(self, row: Row, samples: int) -> None:
        self.rows.append((dict(row), samples))


def test_a_sample_is_counted_on_the_line_of_its_step(tiny: Recipe, tmp_path: Path) -> None:
    """The last line of a run said one sample less than there were: it was written before the last one was drawn."""
    seen = Seen()
    done = run(tiny, tmp_path / "run", progress=seen)
    drawn = [row["step"] for row, _ in seen.rows if row["event"] == "sample"]
    logs = [(row["step"], samples) for row, samples in seen.rows if row["event"] == "log"]
    assert logs[-1] == (done.steps, done.samples)
    assert any(step in drawn for step, _ in logs[:-1])
    assert [samples for _, samples in logs] == [sum(step <= at for step in drawn) for at, _ in logs]
    kept = [row["event"] for row in RunDir.open(tmp_path / "run").metrics() if row["step"] == done.steps]
    assert kept == ["log", "sample", "end"]  # as ever


def test_the_rate_after_resuming_is_of_the_steps_since(
    tiny: Recipe, tmp_path: Path, change: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of a second for each step. Steps of the last session took no time of this one, and counted in it."""
    now = 0.0
    enqueue = Chain.enqueue

    def steps_of_a_second(self: Chain, count: int) -> None:
        nonlocal now
        enqueue(self, count)
        now += count

    monkeypatch.setattr("atmc.engine.chain.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Chain, "enqueue", steps_of_a_second)
    recipe = change(tiny, run={"log_steps": 20})
    stopped = run(recipe, tmp_path / "run", time_budget=1e-6, progress=None)
    assert stopped.status == "budget"
    assert 0 < stopped.steps < 20
    seen = Seen()
    run(recipe, tmp_path / "run", progress=seen)
    rates = [row["images_per_second"] for row, _ in seen.rows if row["event"] == "log"]
    assert rates == [pytest.approx(recipe.data.batch_size)] * 3
