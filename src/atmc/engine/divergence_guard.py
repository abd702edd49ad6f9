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
    """A loss that is not finite, or whose running mean is `factor` times what is known to be bad.

    Known to be bad is the loss of guessing, and where that is more, the lowest running mean that the chain has had:
    the loss at initialisation at first (a freshly made network may well be surer than it should), the warm start's end
    after one. Nothing a chain does can raise its limit, so one that explodes with its first steps is seen too. The
    running mean spans about `span` steps, and the last few losses must agree with it: neither one bad batch nor a storm
    that has passed is a divergence.
    """

    FEW = 5  # losses that tell, where there is no time for the running mean
    FAR = 4.0  # times the limit

    def __init__(self, factor: float, guessing: float, span: int = 50) -> None:
        self.factor = factor
        self.floor = guessing
        self.keep = 1.0 - 1.0 / span
        self.mean = math.nan
        self.lowest = math.nan  # running mean so far
        self.recent: deque[float] = deque(maxlen=2 * span)
        self.next_step = 0  # that of the loss to come

    @property
    def limit(self) -> float:
        """The running mean above which the chain counts as diverged; infinite until a loss is known."""
        return math.inf if math.isnan(self.lowest) else self.factor * max(self.floor, self.lowest)

    def judge(self, losses: Sequence[float], first_step: int) -> Divergence | None:
        """Take in the losses of consecutive steps; the first that shows a divergence ends it."""
        for offset, loss in enumerate(losses):
            step = first_step + offset
            self.recent.append(loss)
            self.next_step = step + 1
            if not math.isfinite(loss):
                return self.divergence(step, "the loss is not finite")
            self.mean = loss if math.isnan(self.mean) else self.keep * self.mean + (1 - self.keep) * loss
            self.lowest = self.mean if math.isnan(self.lowest) else min(self.lowest, self.mean)
            if self.mean > self.limit and self._lately() > self.limit:
                return self.divergence(step, f"the running loss {self.mean:.3g} is above {self.limit:.3g}")
        return None

    def _lately(self) -> float:
        """The median of the last few losses."""
        few = list(self.recent)[-self.FEW :]
        return statistics.median(few) if len(few) == self.FEW else -math.inf

    def suspect(self) -> Divergence | None:
        """Whether the last few losses are all beyond the limit, or most of them far: the running mean learns it later.

        For moments at which something is about to be kept. Small batches of a hot chain are above the limit now and
        then, which is no divergence.
        """
        few = list(self.recent)[-self.FEW :]
        if len(few) < self.FEW or not (min(few) > self.limit or self._lately() > self.FAR * self.limit):
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
        mean, lowest = (None if math.isnan(x) else x for x in (self.mean, self.lowest))
        return {"mean": mean, "lowest": lowest, "next_step": self.next_step, "recent": list(self.recent)}

    def load(self, state: dict[str, Any]) -> None:
        self.mean = math.nan if state["mean"] is None else float(state["mean"])
        lowest = state.get("lowest", state["mean"])
        self.lowest = math.nan if lowest is None else float(lowest)
        self.next_step = int(state.get("next_step", 0))
        self.recent.clear()
        self.recent.extend(float(loss) for loss in state.get("recent", []))
