"""The registry of metrics. A registered metric appears in evaluation, tables, reports and JSON.

`metrics` registers those of classifiers, `regression` those of regressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Metric:
    """One score.

    Args:
        name: its key in JSON.
        label: its heading, without the unit.
        of: of a classifier `of(probs, labels)`, from float64 `[N, C]` and whole numbers `[N]` to the score; of a
            regression `of(mixture)`, to a tensor whose mean over all examples is the score (`regression.Mixture`).
        better: which end is the good one; "neither" for a number that has no best.
        unit: "%" multiplies by 100 for people; JSON keeps the share.
        digits: how people see it, as a format.
        short: the heading where there is little room.
        in_tables: False for a score that only JSON has.
        least_classes: it is left out below so many classes.
        takes_log: probabilities that were stored as 0 come as the smallest number their type can hold.
        after: applied to the mean (of a regression): the root of a mean square.
        about: what it measures, in a sentence for people who have not met it.
        proportion: it is the share of examples of which something holds, which has Wilson's interval.
        lowest: what it cannot be below, at which intervals are cut.
    """

    name: str
    label: str
    of: Callable[..., Any]
    better: Literal["lower", "higher", "neither"] = "lower"
    unit: str = ""
    digits: str = ".3f"
    short: str = ""
    task: Task = "classification"
    in_tables: bool = True
    least_classes: int = 0
    takes_log: bool = False
    after: Callable[[float], float] = float
    about: str = ""
    proportion: bool = False
    lowest: float = -math.inf

    @property
    def heading(self) -> str:
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    def shown(self, value: float | None) -> str:
        """The score as people read it, without its unit."""
        if value is None or not math.isfinite(value):
            return "–"
        return format(100 * value if self.unit == "%" else value, self.digits)

    def best(self, values: Sequence[float | None]) -> str | None:
        """The best of some values as it is shown: ties after rounding are ties. None where there is none."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known or self.better == "neither":
            return None
        return self.shown(max(known) if self.better == "higher" else min(known))


_HOMES: dict[Task, str] = {"classification": "atmc.posterior.metrics", "regression": "atmc.posterior.regression"}
_METRICS: dict[tuple[Task, str], Metric] = {}


def register(metric: Metric) -> Metric:
    """Enter a metric; the order of entering is that of the columns."""
    if (metric.task, metric.name) in _METRICS:
        raise ValueError(f"there is a {metric.task} metric {metric.name!r} already")
    _METRICS[metric.task, metric.name] = metric
    return metric


def remove(metric: Metric) -> None:
    """Remove a metric."""
    del _METRICS[metric.task, metric.name]


def entries(task: Task) -> list[Metric]:
    """All metrics of a task."""
    import_module(_HOMES[task])
    return [metric for metric in _METRICS.values() if metric.task == task]


def columns(task: Task = "classification") -> list[Metric]:
    """The metrics that tables show."""
    return [metric for metric in entries(task) if metric.in_tables]


def summary_of(each: Sequence[Mapping[str, float]], predictive: Mapping[str, float], weights: Any) -> dict[str, Any]:
    """What `atmc evaluate --json` prints: the last sample, the predictive, and the samples' mean score."""
    mean = {name: float(np.dot(weights, [scores[name] for scores in each])) for name in each[0]}
    return {"single": each[-1], "predictive": predictive, "samples": len(each), "mean_single": mean}
