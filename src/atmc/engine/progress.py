"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere.

`Progress` is all that the engine knows; rich is only imported where there is a terminal to draw on, and plain lines
serve where it is not installed.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from atmc.engine.schedule import Schedule

Row = Mapping[str, Any]
ROOMY = 110  # columns of a terminal from which on the live line has the cycle and the speed too
BAR, SHORTEST = 20, 5  # columns of the bar, and of one that still shows anything


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
        whole = ", each with all the data" if schedule.epoch(1) >= 1 else ""
        self._say(f"{name}: {schedule.steps} steps{whole}" + (f", from step {done}" if done else ""))

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
    """One live line with a bar; samples and notes scroll by above it. Both fit the terminal, however narrow."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._bar = BarColumn(bar_width=BAR)
        columns = (TextColumn("{task.description}"), self._bar, TextColumn("{task.fields[said]}"))
        self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
        self._name = ""
        self._pace: _Pace | None = None
        self._task: Any = None

    def begin(self, name: str, schedule: Schedule, chains: int, done: int) -> None:
        from rich.markup import escape

        self._name = name
        self._pace = _Pace(schedule, chains, done)
        self._task = self._bars.add_task(escape(name), total=schedule.steps, completed=done, said="starting …")
        self._bars.start()

    def row(self, row: Row, samples: int) -> None:
        from rich.markup import escape

        assert self._pace is not None
        width = self._bars.console.width
        if row["event"] == "sample":
            for line in sample_lines(row, self._pace, width):
                self.note(line)
        elif row["event"] == "log":
            name, bar, said = live_line(self._name, row, samples, self._pace, width)
            self._bar.bar_width = min(self._bar.bar_width or bar, bar)  # it does not jump with each digit more or less
            self._bars.update(self._task, completed=row["step"], description=escape(name), said=escape(said))

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


def place(row: Row, pace: _Pace, cycle: bool = True) -> str:
    """Where in the run a row belongs."""
    schedule = pace.schedule
    said = f"epoch {row['epoch']:.0f}/{schedule.epoch(schedule.steps):.0f}"
    if schedule.epoch(1) >= 1:  # an epoch is a step, and nobody asked for so many epochs
        said = f"step {row['step']}/{schedule.steps}"
    if cycle and len(schedule.cycle_ends) > 1:
        said += f"  cycle {schedule.cycle(int(row['step']) - 1) + 1}/{len(schedule.cycle_ends)}"
    return said + (f"  {_chain(row)}" if pace.chains > 1 else "")


def _chain(row: Row) -> str:
    return f"chain {row['chain']}"


def describe(row: Row, samples: int, speed: bool = True) -> str:
    """Loss, temperature, samples and speed of a log row."""
    parts = [f"loss {row['loss']:.4f}"]
    if row.get("kinetic_temperature") is not None:
        parts.append(f"T {row['kinetic_temperature']:.3g}/{row['temperature']:.3g}")
    parts.append(f"samples {samples}")
    if speed and row.get("images_per_second"):
        parts.append(f"{row['images_per_second']:,.0f} img/s")
    return "  ".join(parts)


def live_line(name: str, row: Row, samples: int, pace: _Pace, width: int) -> tuple[str, int, str]:
    """The name, the columns of the bar, and the words of the live line in a terminal of `width` columns.

    What a person waits for, the time left, is the last to go: below `ROOMY` columns there is neither the cycle nor the
    speed; then the bar shrinks, then the name, and where that is not enough, how the chain is gives way to how long.
    """
    roomy = width >= ROOMY
    where, left = place(row, pace, cycle=roomy), f"{clock(pace.left(row))} left"
    said = f"{where}  {describe(row, samples, speed=roomy)}  {left}"
    if len(said) > width - SHORTEST - 2:
        said = f"{where}  {left}"
    room = width - len(said) - 2  # a column between each two
    name = _shortened(name, max(room - SHORTEST, 0))
    return name, max(min(BAR, room - len(name)), 1), said


def _shortened(name: str, room: int) -> str:
    if len(name) <= room:
        return name
    return f"{name[: room - 1]}…" if room > 3 else ""  # a letter or two name nothing


def describe_sample(row: Row) -> str:
    """The scores of a new sample, alone and averaged with those before."""
    return "  ".join([f"sample {row['index'] + 1}", *_scores(row)])


def sample_lines(row: Row, pace: _Pace, width: int) -> list[str]:
    """`describe_sample` for a terminal of `width` columns: on one line, without its place or a line for each split."""
    line = f"{place(row, pace)}  {describe_sample(row)}"
    if len(line) <= width:
        return [line]
    start = f"{_chain(row)}  " if pace.chains > 1 else ""  # the live line has the rest
    line = f"{start}{describe_sample(row)}"
    if len(line) <= width:
        return [line]
    return [f"{start}sample {row['index'] + 1}", *(f"  {scores}" for scores in _scores(row))]


def _scores(row: Row) -> list[str]:
    """One text for each split that the sample was scored on."""
    said = []
    for split, scores in row.get("scores", {}).items():
        one, all_ = scores["single"], scores["predictive"]
        if "nll" in one:
            said.append(
                f"{split}: accuracy {one['accuracy']:.2%}, averaged {all_['accuracy']:.2%}; "
                f"NLL {one['nll']:.4f}, averaged {all_['nll']:.4f}"
            )
        else:
            said.append(f"{split}: RMSE {one['rmse']:.4g}, averaged {all_['rmse']:.4g}")
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
