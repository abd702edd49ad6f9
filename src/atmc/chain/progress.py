"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere.

`Progress` is all that the engine knows; rich is only imported where there is a terminal to draw on, and plain lines
serve where it is not installed.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from atmc.chain.schedule import Schedule

Row = Mapping[str, Any]


class Progress:
    """Takes rows of metrics and notes; says nothing."""

    def begin(self, name: str, schedule: Schedule, chains: int, done: int) -> None:
        """A run of so many steps begins, or goes on after `done` of them."""

    def row(self, row: Row, samples: int) -> None:
        """A row that has just been written to metrics.jsonl, and the number of samples in the bank."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def end(self) -> None:
        """Nothing more will come."""


class PlainProgress(Progress):
    """A line every few seconds, and one for every sample and event."""

    def __init__(self, stream: TextIO | None = None, every: float = 5.0) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.every = every
        self._last = -float("inf")
        self._pace: _Pace | None = None

    def begin(self, name: str, schedule: Schedule, chains: int, done: int) -> None:
        self._pace = _Pace(schedule, chains, done)
        self._say(f"{name}: {schedule.steps} steps" + (f", from step {done}" if done else ""))

    def row(self, row: Row, samples: int) -> None:
        assert self._pace is not None
        left = self._pace.left(row)
        if row["event"] == "sample":
            self._say(f"{place(row, self._pace)}  {describe_sample(row)}")
        elif row["event"] == "log" and time.monotonic() - self._last >= self.every:
            self._last = time.monotonic()
            self._say(f"{place(row, self._pace)}  {describe(row, samples)}  {clock(left)} left")

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class RichProgress(Progress):
    """One live line with a bar; samples and notes scroll by above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[said]}"))
        self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
        self._pace: _Pace | None = None
        self._task: Any = None

    def begin(self, name: str, schedule: Schedule, chains: int, done: int) -> None:
        from rich.markup import escape

        self._pace = _Pace(schedule, chains, done)
        self._task = self._bars.add_task(escape(name), total=schedule.steps, completed=done, said="starting …")
        self._bars.start()

    def row(self, row: Row, samples: int) -> None:
        assert self._pace is not None
        left = self._pace.left(row)
        if row["event"] == "sample":
            self.note(f"{place(row, self._pace)}  {describe_sample(row)}")
        elif row["event"] == "log":
            said = f"{place(row, self._pace)}  {describe(row, samples)}  {clock(left)} left"
            self._bars.update(self._task, completed=row["step"], said=said)

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        self._bars.stop()


class _Pace:
    """How long it will still take, from the steps of this session only."""

    def __init__(self, schedule: Schedule, chains: int, done: int) -> None:
        self.schedule, self.chains, self.first = schedule, chains, done
        self.began = time.monotonic()

    def left(self, row: Row) -> float | None:
        made = int(row["step"]) - self.first
        if made <= 0:
            return None
        return (time.monotonic() - self.began) / made * (self.schedule.steps - int(row["step"]))


def place(row: Row, pace: _Pace) -> str:
    """Where in the run a row belongs."""
    schedule = pace.schedule
    epochs = schedule.epoch(schedule.steps)
    said = f"epoch {row['epoch']:.0f}/{epochs:.0f}"
    if len(schedule.cycle_ends) > 1:
        said += f"  cycle {schedule.cycle(int(row['step']) - 1) + 1}/{len(schedule.cycle_ends)}"
    return said + (f"  chain {row['chain']}" if pace.chains > 1 else "")


def describe(row: Row, samples: int) -> str:
    """Loss, temperature, samples and speed of a log row."""
    parts = [f"loss {row['loss']:.4f}"]
    if row.get("kinetic_temperature") is not None:
        parts.append(f"T {row['kinetic_temperature']:.3g}/{row['temperature']:.3g}")
    parts.append(f"samples {samples}")
    if row.get("images_per_second"):
        parts.append(f"{row['images_per_second']:,.0f} img/s")
    return "  ".join(parts)


def describe_sample(row: Row) -> str:
    """The scores of a new sample, alone and averaged with those before."""
    said = f"sample {row['index'] + 1}"
    for split, scores in row.get("scores", {}).items():
        one, all_ = scores["single"], scores["predictive"]
        if "nll" in one:
            said += (
                f"  {split}: {one['accuracy']:.2%} / {one['nll']:.4f} alone, "
                f"{all_['accuracy']:.2%} / {all_['nll']:.4f} averaged"
            )
        else:
            said += f"  {split}: rmse {one['rmse']:.4g} alone, {all_['rmse']:.4g} averaged"
    return said


def clock(seconds: float | None) -> str:
    """A length of time as people read it."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def choose_progress() -> Progress:
    """Live where stderr is a terminal and rich is there, plain lines otherwise."""
    if sys.stderr.isatty():
        try:
            return RichProgress()
        except ImportError:
            pass
    return PlainProgress()
