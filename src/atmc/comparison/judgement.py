"""Which method is ahead, as far as the test examples (and repeats, where there are some) can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.posterior import metrics, regression
from atmc.posterior.arrays import check_labels
from atmc.posterior.intervals import Spread, ahead, spreads, t_quantile
from atmc.posterior.metric_entries import Metric, Task, entries

JUDGED_BY = "nll"  # a strictly proper score of both tasks: it rewards right and honest probabilities
# One of several baselines looks best by luck. Bonferroni's quantile for six of them at 19 degrees of freedom is 2.90
# instead of 2.09, so a baseline must lead the sampler by so many half-widths.
MANY = 1.4
SINGLE = ("SGD", "Adam")  # the rows of one trained network


@dataclass(frozen=True)
class Row:
    """One method: its scores with intervals (of each repeat), and what it cost."""

    method: str
    networks: int
    spreads: tuple[dict[str, Spread], ...]
    gradients: int
    seconds: float
    how: str

    def score(self, name: str) -> float:
        """The mean over the repeats."""
        return float(np.mean([each[name].value for each in self.spreads]))

    def interval(self, name: str) -> tuple[float, float]:
        """The mean ends of the 95 % intervals; of the luck of the test set alone."""
        ends = [(each[name].low, each[name].high) for each in self.spreads]
        low, high = np.mean(ends, axis=0)
        return float(low), float(high)


def scored(outputs: Any, test: Any, likelihood: Any, task: Task) -> dict[str, Spread]:
    """Every registered metric, from probabilities `[K, N, C]` or a regression's outputs `[K, N, ...]`."""
    if task == "classification":
        return spreads(metrics.predictive(outputs), check_labels(test, outputs.shape[1]))
    return regression.spreads(regression.mixture_of(outputs, test, likelihood))


def lead(metric: Metric, one: Row, two: Row) -> tuple[float, float]:
    """By how much `one` is better, and half the 95 % interval of that, with the luck of repeats if there are some."""
    pairs = [ahead(metric, a[metric.name], b[metric.name]) for a, b in zip(one.spreads, two.spreads, strict=True)]
    gains = np.array([gain for gain, _ in pairs])
    half = float(np.mean([width for _, width in pairs]))
    if len(gains) > 1:
        half = math.hypot(half, t_quantile(len(gains)) * float(gains.std(ddof=1)) / math.sqrt(len(gains)))
    return float(gains.mean()), half


def verdict(rows: Sequence[Row], sampler: str, task: Task, examples: int) -> tuple[str, ...]:
    """Sentences: whether sampling is ahead of all, behind one, or neither can be told; and what is not covered."""
    metric = next(m for m in entries(task) if m.name == JUDGED_BY)
    by_name = {row.method: row for row in rows}
    others = [row for row in rows if row.method != sampler]
    if sampler not in by_name or not others:
        return ("There is nothing to compare.",)
    own = by_name[sampler]
    leads = {row.method: lead(metric, own, row) for row in others}
    said = [_judged(own, others, leads, metric, examples), *_against_one(leads, metric), *_not_covered(own, rows)]
    return tuple(said)


def _judged(own: Row, others: list[Row], leads: dict[str, tuple[float, float]], metric: Metric, examples: int) -> str:
    ahead_of_it = [row for row in others if -leads[row.method][0] > MANY * leads[row.method][1]]
    if ahead_of_it:
        best = min(ahead_of_it, key=lambda row: row.score(metric.name))
        gain, half = leads[best.method]
        lower = f"{metric.label} lower by {-gain:.3f} ± {half:.3f}"
        return f"{_capital(best.method)} is ahead of {own.method}: {lower}. Use it here."
    if all(gain > half for gain, half in leads.values()):
        near = min(others, key=lambda row: leads[row.method][0])
        gain, half = leads[near.method]
        return (
            f"{own.method} is ahead of all: {metric.label} lower by {gain:.3f} ± {half:.3f} than that of {near.method}."
        )
    level = [row for row in others if not leads[row.method][0] > leads[row.method][1]]
    best = min(level, key=lambda row: row.score(metric.name))
    gain, half = leads[best.method]
    names, side = _listed([row.method for row in level]), "lower" if gain >= 0 else "higher"
    text = (
        f"Cannot tell {own.method} from {names}: the {metric.label} of {own.method} is {side} by {abs(gain):.3f} than "
        f"that of {best.method}, with an error of ± {half:.3f}."
    )
    if math.isfinite(half) and 0 < abs(gain) < half:
        needed = examples * (half / abs(gain)) ** 2
        if needed < 1e6:
            text += (
                f" If that difference is real, about {_round(needed):,} test examples would show it ({examples:,} now)."
            )
    return text


def _against_one(leads: dict[str, tuple[float, float]], metric: Metric) -> list[str]:
    """What sampling gains over the one network that most people train."""
    name = next((name for name in SINGLE if name in leads), None)
    if name is None:
        return []
    gain, half = leads[name]
    what = f"Against a single network trained by {name}"
    if abs(gain) <= half:
        return [f"{what} no difference can be told ({gain:+.3f} ± {half:.3f})."]
    return [f"{what} the {metric.label} is {'lower' if gain > 0 else 'higher'} by {abs(gain):.3f} ± {half:.3f}."]


def _not_covered(own: Row, rows: Sequence[Row]) -> list[str]:
    said = []
    if len(own.spreads) == 1:
        said.append("One run each: the luck of first weights and batches is not in these errors (--repeats 3 adds it).")
    most, least = max(row.gradients for row in rows), min(row.gradients for row in rows)
    if most > 1.1 * least:
        said.append(f"The compute is not equal: from {least:,} to {most:,} gradients.")
    return said


def _capital(name: str) -> str:
    return f"{name[:1].upper()}{name[1:]}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _round(count: float) -> int:
    digits = max(0, int(math.log10(count)) - 1)
    return int(math.ceil(count / 10**digits) * 10**digits)
