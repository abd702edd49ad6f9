"""The divergence guard: reads the losses of many steps at once and says whether the chain has left the road.

The device writes each step's loss into a buffer; the host looks at the buffer once in a while. So the guard costs a
step nothing, and learns of a divergence some steps late, which is why a sample is only taken after its own steps were
judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Divergence:
    """Where and how a chain diverged."""

    step: int
    loss: float
    reason: str


class Guard:
    """A loss that is not finite, or whose running mean is `factor` times what knowing nothing would cost.

    Knowing nothing costs log(classes), or what the network lost in its first steps where that is more: a freshly made
    network may well be surer than it should. The running mean spans about `span` steps, so that one bad batch is
    not taken for a divergence.
    """

    START = 20  # steps whose mean counts as the start

    def __init__(self, factor: float, classes: int, span: int = 50) -> None:
        self.factor = factor
        self.floor = math.log(classes) if classes > 1 else 1.0
        self.keep = 1.0 - 1.0 / span
        self.mean = math.nan
        self.start_sum = 0.0
        self.seen = 0

    @property
    def limit(self) -> float:
        """The running mean above which the chain counts as diverged; infinite until the start is known."""
        if self.seen < self.START:
            return math.inf
        return self.factor * max(self.floor, self.start_sum / self.START)

    def judge(self, losses: Sequence[float], first_step: int) -> Divergence | None:
        """Take in the losses of consecutive steps; the first that shows a divergence ends it."""
        for offset, loss in enumerate(losses):
            step = first_step + offset
            if not math.isfinite(loss):
                return Divergence(step, loss, "the loss is not finite")
            if self.seen < self.START:
                self.start_sum += loss
            self.seen += 1
            self.mean = loss if math.isnan(self.mean) else self.keep * self.mean + (1 - self.keep) * loss
            if self.mean > self.limit:
                return Divergence(step, loss, f"the running loss {self.mean:.3g} is above {self.limit:.3g}")
        return None

    def state(self) -> dict[str, Any]:
        mean = None if math.isnan(self.mean) else self.mean
        return {"mean": mean, "start_sum": self.start_sum, "seen": self.seen}

    def load(self, state: dict[str, Any]) -> None:
        self.mean = math.nan if state["mean"] is None else float(state["mean"])
        self.start_sum = float(state["start_sum"])
        self.seen = int(state["seen"])
