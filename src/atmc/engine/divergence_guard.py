"""The divergence guard: reads the losses of many steps at once and says whether the chain has left the road.

The device writes each step's loss into a buffer; the host looks at the buffer once in a while. So the guard costs a
step nothing, and learns of a divergence some steps late, which is why a sample is only taken after its own steps were
judged, and why a divergence says since when: samples and checkpoints of that time are not to be trusted.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Divergence:
    """Where and how a chain diverged; `since` is the first step with a loss beyond the limit, which may be earlier."""

    step: int
    loss: float
    reason: str
    since: int


class Guard:
    """A loss that is not finite, or whose running mean is `factor` times what knowing nothing would cost.

    Knowing nothing costs log(classes), or what the network lost in its first steps where that is more: a freshly made
    network may well be surer than it should. The running mean spans about `span` steps, so that one bad batch is
    not taken for a divergence.
    """

    START = 20  # steps whose mean counts as the start
    FEW = 5  # losses that tell, where there is no time for the running mean
    FAR = 4.0  # times the limit

    def __init__(self, factor: float, classes: int, span: int = 50) -> None:
        self.factor = factor
        self.floor = math.log(classes) if classes > 1 else 1.0
        self.keep = 1.0 - 1.0 / span
        self.mean = math.nan
        self.start_sum = 0.0
        self.seen = 0
        self.recent: deque[float] = deque(maxlen=2 * span)
        self.next_step = 0  # that of the loss to come

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
            self.recent.append(loss)
            self.next_step = step + 1
            if not math.isfinite(loss):
                return self.divergence(step, "the loss is not finite")
            if self.seen < self.START:
                self.start_sum += loss
            self.seen += 1
            self.mean = loss if math.isnan(self.mean) else self.keep * self.mean + (1 - self.keep) * loss
            if self.mean > self.limit:
                return self.divergence(step, f"the running loss {self.mean:.3g} is above {self.limit:.3g}")
        return None

    def suspect(self) -> Divergence | None:
        """Whether the last few losses are all beyond the limit, or most of them far: the running mean learns it later.

        For moments at which something is about to be kept. Small batches of a hot chain are above the limit now and
        then, which is no divergence.
        """
        few = list(self.recent)[-self.FEW :]
        if len(few) < self.FEW or not (min(few) > self.limit or statistics.median(few) > self.FAR * self.limit):
            return None
        return self.divergence(self.next_step, f"the last losses are above {self.limit:.3g}")

    def divergence(self, step: int, reason: str) -> Divergence:
        """A divergence found at a step, and since when by the losses before it: back to a few good ones in a row."""
        since, good = step, 0
        for before, loss in enumerate(reversed(self.recent), start=1):
            good = good + 1 if loss <= self.limit else 0
            if good == self.FEW:
                break
            if good == 0:
                since = min(step, self.next_step - before)
        return Divergence(step, self.recent[-1] if self.recent else math.nan, reason, since)

    def state(self) -> dict[str, Any]:
        mean = None if math.isnan(self.mean) else self.mean
        recent = {"next_step": self.next_step, "recent": list(self.recent)}
        return {"mean": mean, "start_sum": self.start_sum, "seen": self.seen, **recent}

    def load(self, state: dict[str, Any]) -> None:
        self.mean = math.nan if state["mean"] is None else float(state["mean"])
        self.start_sum = float(state["start_sum"])
        self.seen = int(state["seen"])
        self.next_step = int(state.get("next_step", 0))
        self.recent.clear()
        self.recent.extend(float(loss) for loss in state.get("recent", []))
