"""The first screen of a report: five questions of a reader who knows classification but no statistics.

Is the run healthy? How good is it? What does it get wrong? When can I trust it? What next? Nothing is said to be
different that the test set cannot tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atmc.common.text import percent, plural
from atmc.posterior.class_scores import ClassScore, class_scores, confusions, weakest
from atmc.report.report_data import Finding, ReportData, RunFacts
from atmc.report.verdict import best_run, calibrated, headline, level_with, paired_error, refusal, who

RELIABLE = 0.99  # of the answers right: the level of confidence that gives it is looked for


@dataclass(frozen=True)
class Answer:
    """A question with its answer; `level` is that of a finding, or "" where nothing is good or bad."""

    question: str
    level: str
    sentences: tuple[str, ...]
    actions: tuple[str, ...] = ()


def answers(data: ReportData) -> tuple[Answer, ...]:
    """The questions in the order in which they matter."""
    main = best_run(data.runs)
    return (health(data.runs), _good(main, data.runs), _wrong(main), _trust(main), _next(main, data.runs))


def health(runs: Sequence[Any]) -> Answer:
    """Whether the chains can be trusted; of runs of any kind."""
    question = "Is the run healthy?"
    checked = [run for run in runs if run.findings]
    unsound = [f"{who(run)} has damaged files: see the end of this page." for run in runs if run.damage]
    if not checked:
        reason = "No sampler ran, so there is no chain to check."
        if any(run.is_posterior for run in runs):
            reason = "The chain could not be checked: see the notes at the end of this page."
        return Answer(question, "problem" if unsound else "note", (*unsound, reason))
    sentences, levels = [], []
    for run in checked:
        worst = [f for f in run.findings if f.level in ("problem", "warning")]
        levels.append("problem" if any(f.level == "problem" for f in worst) else "warning" if worst else "ok")
        name = f"{run.name}: " if len(runs) > 1 else ""
        told = _state(run, worst)
        sentences.append(f"{name}{told}" if name else f"{told[:1].upper()}{told[1:]}")
    level = next(kind for kind in ("problem", "warning", "ok") if kind in (*levels, "ok"))
    return Answer(question, "problem" if unsound else level, (*unsound, *sentences))


def _state(run: Any, worst: list[Finding]) -> str:
    if not worst:
        return "no problem was found. The scores below mean what they say."
    # The doctor's first line is its summary; what it found comes after it.
    grave = [f for f in worst if f is not run.findings[0]] or worst
    first = next((f for f in grave if f.level == "problem"), grave[0])
    more = f", and {len(grave) - 1} more" if len(grave) > 1 else ""
    told = f"{first.title[:1].lower()}{first.title[1:].rstrip('.')}{more}."
    if first.level == "problem":
        return f"{told} Do not rely on the scores below before this is solved."
    return (
        f"{told} The scores below were measured on held-out {run.noun} and hold; the samples are not exactly those of "
        "the posterior that was asked for."
    )


def _good(main: RunFacts, runs: tuple[RunFacts, ...]) -> Answer:
    scores = headline(main)
    spread = (main.spreads if main.samples_weights else main.single_spreads).get("accuracy")
    within = f" (95 % interval {percent(spread.low)} to {percent(spread.high)})" if spread is not None else ""
    name = f"{who(main)} is" if len(runs) > 1 else "It is"
    text = [f"{name} right on {percent(scores['accuracy'])} of {main.examples:,} {main.what}{within}."]
    constant = main.constant.get("frequencies")
    if constant is not None:
        text.append(f"Always naming the most frequent class would be right on {percent(constant['accuracy'].value)}.")
    for other in [run for run in runs if run is not main][:3]:
        text.append(_compared(main, other))
    if not runs[1:] and main.samples_weights:
        text.append(_averaging(main))
    return Answer("How good is it?", "", tuple(text))


def _averaging(run: RunFacts) -> str:
    one, all_ = run.single["nll"], run.predictive["nll"]
    if not (math.isfinite(one) and math.isfinite(all_)) or one <= all_:
        return "Averaging the samples does not improve on the last one alone."
    return f"Averaging {run.samples} samples lowers the NLL from {one:.3f} for the last sample alone to {all_:.3f}."


def _compared(main: RunFacts, other: RunFacts) -> str:
    lead = headline(other)["nll"] - headline(main)["nll"]
    error = paired_error(main, other)
    if error is None:
        return f"{who(other)} was scored on other examples, so the two cannot be compared."
    if not math.isfinite(lead):
        return f"{who(other)} has no finite NLL."
    if level_with(main, other):
        return f"It cannot be told apart from {who(other)} on this test set."
    gain = 100 * (math.exp(lead) - 1)
    return (
        f"Compared with {who(other)} it gives the right class {gain:.0f} % more probability (NLL lower by {lead:.3f} ± "
        f"{error:.3f})."
    )


def _wrong(run: RunFacts) -> Answer:
    question = "What does it get wrong?"
    if not run.confusion.size:
        return Answer(question, "", ("The classes of this run are not known.",))
    right, total = int(run.confusion.trace()), int(run.confusion.sum())
    if right == total:
        return Answer(question, "ok", (f"Nothing among these {total:,} {run.noun}.",))
    text = [f"{total - right:,} of {total:,} {run.noun}."]
    weak = weakest(class_scores(run.confusion, run.classes), right / total)
    if weak:
        text.append(f"{'The weakest class is' if len(weak) == 1 else 'The weakest classes are'} {_named(weak[:3])}.")
    else:
        text.append("No class is clearly weaker than the others.")
    pairs = [f"“{a}” taken for “{b}” ({plural(n, 'time')})" for a, b, n in confusions(run.confusion, run.classes, 2)]
    text.append(f"Most frequent: {' and '.join(pairs)}.")
    return Answer(question, "", tuple(text))


def _named(weak: tuple[ClassScore, ...]) -> str:
    said = [f"“{score.name}” ({percent(score.found.value)} found)" for score in weak if score.found is not None]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _trust(run: RunFacts) -> Answer:
    text = [calibrated(run), refusal(run)]
    safe = [level for level in run.levels if level.right is not None and level.right.value >= RELIABLE]
    if safe and safe[0].right is not None:
        first, right = safe[0], safe[0].right
        text.insert(
            1,
            f"Answers with at least {100 * first.threshold:.0f} % confidence ({percent(first.answered)} of all) are "
            f"right {percent(right.value)} of the time ({percent(right.low)} to {percent(right.high)}).",
        )
    return Answer("When can I trust it?", "", tuple(text))


def _next(main: RunFacts, runs: tuple[RunFacts, ...]) -> Answer:
    actions, text = first_action(main), []
    if not actions:
        text.append("The run needs no change." if len(runs) == 1 else f"{who(main)} needs no change.")
    if main.least_sure:
        text.append("Look at the least confident images below: wrong labels show up there.")
    weak = (
        weakest(class_scores(main.confusion, main.classes), headline(main)["accuracy"]) if main.confusion.size else ()
    )
    if weak:
        named = " and ".join(f"“{score.name}”" for score in weak[:2])
        text.append(f"More training examples of {named} are the likeliest to help.")
    return Answer("What next?", "", tuple(text), actions)


def first_action(run: Any) -> tuple[str, ...]:
    """What `atmc doctor` advises first: on a problem, else on a warning; empty where there is neither."""
    found = [(f.level, f.action) for f in run.findings if f.action]
    return tuple(action for level in ("problem", "warning") for kind, action in found if kind == level)[:1]
