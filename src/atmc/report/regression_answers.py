"""The first screen of a regression's report: the five questions of `answers`, and the tables behind them.

Nothing is said to be different that the test set cannot tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atmc.common.text import percent
from atmc.posterior.class_scores import Share
from atmc.posterior.intervals import ahead
from atmc.posterior.metric_entries import entries
from atmc.report.answers import Answer, first_action, health
from atmc.report.regression_data import LEVEL, NumbersFacts
from atmc.report.verdict import who

PARTS = ("low", "middle", "high")
LARGEST = 5  # errors shown one by one
BIASED = 2.4  # standard errors beyond which one of three parts is called off: 5 % of all, by Bonferroni
VARIES = 1.25  # ratio of standard deviations below which an uncertainty is the same everywhere


@dataclass(frozen=True)
class Part:
    """A third of the examples, by what was predicted or by how certain it was."""

    name: str
    reach: tuple[float, float]  # of predictions or standard deviations
    count: int
    rmse: float
    shift: float  # mean of true minus predicted
    shift_error: float  # its standard error
    inside: Share


@dataclass(frozen=True)
class Miss:
    """One of the largest errors, in predictive standard deviations."""

    example: str
    true: float
    mean: float
    low: float
    high: float
    deviations: float


def regression_answers(runs: Sequence[NumbersFacts]) -> tuple[Answer, ...]:
    """The questions in the order in which they matter."""
    main = best_of(runs)
    return (health(runs), _good(main, runs), _wrong(main), _trust(main), _next(main, runs))


def best_of(runs: Sequence[NumbersFacts]) -> NumbersFacts:
    """The run with the lowest NLL."""
    return min(runs, key=lambda run: run.predictive["nll"].value)


def by_prediction(run: NumbersFacts) -> tuple[Part, ...]:
    """Thirds of the examples: low, middle and high predictions."""
    return _thirds(run, run.mean)


def by_uncertainty(run: NumbersFacts) -> tuple[Part, ...]:
    """Thirds of the examples, by the predictive standard deviation; none where that is the same everywhere."""
    parts = _thirds(run, run.std)
    spread = [float(np.quantile(run.std, q)) for q in (1 / 6, 5 / 6)]
    return parts if spread[1] > VARIES * spread[0] else ()


def largest(run: NumbersFacts) -> tuple[Miss, ...]:
    """The errors that the model expected least."""
    deviations = run.error / run.std
    width = len(run.true) // run.examples
    order = np.argsort(-np.abs(deviations), kind="stable")[:LARGEST]
    return tuple(
        Miss(
            f"{i // width}" if width == 1 else f"{i // width}, number {i % width}",
            *(float(values[i]) for values in (run.true, run.mean, run.low, run.high, deviations)),
        )
        for i in order.tolist()
    )


def _thirds(run: NumbersFacts, by: NDArray[Any]) -> tuple[Part, ...]:
    groups = np.array_split(np.argsort(by, kind="stable"), len(PARTS))
    return tuple(_part(name, run, rows, by) for name, rows in zip(PARTS, groups, strict=True) if len(rows) > 1)


def _part(name: str, run: NumbersFacts, rows: NDArray[Any], by: NDArray[Any]) -> Part:
    error, hit = run.error[rows], int(run.inside[rows].sum())
    share = Share.count(hit, len(rows))
    assert share is not None
    return Part(
        name,
        (float(by[rows].min()), float(by[rows].max())),
        len(rows),
        float(np.sqrt(np.square(error).mean())),
        float(error.mean()),
        float(error.std(ddof=1) / math.sqrt(len(rows))),
        share,
    )


def _good(main: NumbersFacts, runs: Sequence[NumbersFacts]) -> Answer:
    rmse, alone = main.predictive["rmse"], main.constant["rmse"].value
    name = f"Predictions of {who(main)} are" if len(runs) > 1 else "Its predictions are"
    text = [
        f"{name} off by {rmse.value:.3g} (root mean squared error, 95 % interval {rmse.low:.3g} to {rmse.high:.3g}) on "
        f"{main.examples:,} test examples.",
        f"Always predicting the mean would be off by {alone:.3g}.",
    ]
    if alone > 0 and rmse.value < alone:
        text.append(f"So it explains {percent(1 - (rmse.value / alone) ** 2)} of the variance.")
    text += [_compared(main, other) for other in runs if other is not main][:3]
    return Answer("How good is it?", "", tuple(text))


def _compared(main: NumbersFacts, other: NumbersFacts) -> str:
    metric = next(metric for metric in entries("regression") if metric.name == "nll")
    lead, half = ahead(metric, main.predictive["nll"], other.predictive["nll"])
    if not lead > half:
        return f"It cannot be told apart from {who(other)} on this test set."
    return f"Its NLL is {lead:.3f} ± {half:.3f} lower than that of {who(other)}."


def _wrong(run: NumbersFacts) -> Answer:
    outside, total = int((~run.inside).sum()), len(run.true)
    text = [f"{outside:,} of {total:,} true values lie outside their 90 % interval."]
    off = [part for part in by_prediction(run) if abs(part.shift) > BIASED * part.shift_error]
    for part in off:
        side = "low" if part.shift > 0 else "high"
        where = "middle" if part.name == "middle" else f"{part.name}est"
        text.append(f"The {where} third of its predictions is too {side}, by {abs(part.shift):.3g} on average.")
    if not off:
        text.append("Low, middle and high predictions are right on average.")
    miss = largest(run)[0]
    side = "above" if miss.deviations > 0 else "below"
    text.append(
        f"The largest surprise: {miss.true:.4g} where it predicted {miss.mean:.4g}, {abs(miss.deviations):.1f} "
        f"standard deviations {side}."
    )
    return Answer("What does it get wrong?", "", tuple(text))


def coverage_said(run: NumbersFacts) -> str:
    """Whether the 90 % intervals hold what they promise, as far as the test set can tell."""
    inside = run.predictive["coverage90"]
    held = f"{percent(inside.value)} of the true values lie in their 90 % interval"
    chance = f"chance allows {percent(inside.low)} to {percent(inside.high)}"
    if inside.low <= LEVEL <= inside.high:
        return f"{held}, as they should within the error of {run.examples:,} examples."
    side = "overconfident" if inside.value < LEVEL else "underconfident"
    return f"{held} ({chance}): it is {side}."


def _trust(run: NumbersFacts) -> Answer:
    text = [coverage_said(run)]
    parts = by_uncertainty(run)
    if parts:
        sure, unsure = parts[0].rmse, parts[-1].rmse
        held = f"Where it is most certain it is off by {sure:.3g}, where it is least certain by {unsure:.3g}"
        text.append(f"{held}." if unsure > sure else f"{held}: its uncertainty does not find its errors.")
    else:
        text.append("Its uncertainty is nearly the same for all examples, so it does not say which to trust more.")
    text.append(
        f"The noise of the targets has a standard deviation of {run.noise:.3g}; samples differ by {run.spread:.3g}."
    )
    return Answer("When can I trust it?", "", tuple(text))


def _next(main: NumbersFacts, runs: Sequence[NumbersFacts]) -> Answer:
    actions = first_action(main)
    text = [] if actions else ["The run needs no change." if len(runs) == 1 else f"{who(main)} needs no change."]
    text.append("Look at the largest surprises below: wrong targets show up there.")
    inside = main.predictive["coverage90"]
    if inside.high < LEVEL:
        text.append(
            'Intervals are too narrow: likelihood="student-t" allows for outliers, "heteroscedastic" for noise that '
            "depends on the input."
        )
    if main.is_posterior and main.spread < 0.5 * main.noise:
        text.append("Most of the uncertainty is noise: better inputs help more than further examples of the same kind.")
    elif main.is_posterior:
        text.append("Much of the uncertainty is the model's own: more training examples would reduce it.")
    return Answer("What next?", "", tuple(text), actions)
