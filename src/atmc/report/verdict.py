"""The verdict at the top of the page: scores, calibration, and warnings of `atmc doctor`.

A run is called better only if the difference in NLL, paired by image, is at least twice its standard error.
"""

import math
from typing import Any

import numpy as np

from atmc.common.text import percent
from atmc.report.report_data import ReportData, RunFacts, Scores


def verdict(data: ReportData) -> tuple[str, ...]:
    """Three texts: scores of the best run, its calibration, and the doctor's warnings if there are any."""
    best = best_run(data.runs)
    return _scores(best, data.runs), _trust(best), *_warnings(best, data.runs)


def headline(run: RunFacts) -> Scores:
    return run.predictive if run.samples_weights else run.single


def best_run(runs: tuple[RunFacts, ...]) -> RunFacts:
    """The first run that none is significantly ahead of."""

    def behind(one: RunFacts, two: RunFacts) -> bool:
        return _finite(headline(one)["nll"]) > _finite(headline(two)["nll"]) and not level_with(one, two)

    return next(run for run in runs if not any(behind(run, other) for other in runs))  # the lowest NLL is not behind


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def who(run: Any) -> str:
    """The run's name, with its method where the name does not say it."""
    method = run.method.partition(",")[0].partition(" +")[0]
    return run.name if method.lower() in run.name.lower() else f"{method} ({run.name})"


def _scores(best: RunFacts, runs: tuple[RunFacts, ...]) -> str:
    scores = headline(best)
    networks = "samples" if best.is_posterior else "networks"
    how = f"averaging {best.samples} {networks}" if best.samples_weights else "with a single network"
    reached = f"{percent(scores['accuracy'])} accuracy and {scores['nll']:.3f} nats NLL"
    text = [f"{who(best)} reaches {reached} on {best.examples:,} {best.what}, {how}."]
    others = [run for run in runs if run is not best]
    text += [_against(best, other) for other in others[:3]]
    if others[3:]:
        text.append(f"The table has {len(others) - 3} more.")
    if not others and best.samples_weights:
        one = best.single
        text.append(f"The last sample alone reaches {percent(one['accuracy'])} and {one['nll']:.3f} nats.")
    return " ".join(text)


def _against(best: RunFacts, other: RunFacts) -> str:
    nll = headline(other)["nll"]
    lead = nll - headline(best)["nll"]
    if not _paired(best, other):
        return f"{who(other)} has NLL {nll:.3f} on its own {other.split} {other.noun}, which is not comparable."
    if not math.isfinite(lead):
        return f"{who(other)} has no finite NLL."
    if level_with(best, other):
        return f"The difference to {who(other)} (NLL {nll:.3f}) is not significant."
    return f"Its NLL is {lead:.3f} ± {_error(best, other):.3f} lower than that of {who(other)}."


def paired_error(one: RunFacts, two: RunFacts) -> float | None:
    """The standard error of the difference of two NLLs; None where the examples are not the same."""
    return _error(one, two) if _paired(one, two) else None


def _error(one: RunFacts, two: RunFacts) -> float:
    """The standard error of the difference of two NLLs on the same images."""
    each = two.nll_each - one.nll_each
    return float(np.std(each) / math.sqrt(len(each)))


def level_with(one: RunFacts, two: RunFacts) -> bool:
    """Whether two runs scored on the same images do not differ significantly."""
    lead = headline(two)["nll"] - headline(one)["nll"]
    return _paired(one, two) and math.isfinite(lead) and (abs(lead) < 2 * _error(one, two) or lead == 0)


def _paired(one: RunFacts, two: RunFacts) -> bool:
    same = one.data == two.data and one.split == two.split and one.data_digest == two.data_digest
    return same and one.nll_each.shape == two.nll_each.shape and len(one.nll_each) > 1


def _trust(run: RunFacts) -> str:
    problems = [finding for finding in run.findings[1:] or run.findings if finding.level == "problem"]
    if problems:
        return f"Do not rely on it yet: {_lower(problems[0].title)}."
    return f"{calibrated(run)} {refusal(run)}"


def _lower(title: str) -> str:
    return f"{title[:1].lower()}{title[1:].rstrip('.')}"


def _warnings(best: RunFacts, runs: tuple[RunFacts, ...]) -> list[str]:
    """The doctor's first warning on each run, except a problem of the best run, which `_trust` has reported."""
    found = []
    for run in runs:
        grave = [f for f in run.findings[1:] or run.findings if f.level in ("warning", "problem")]
        if grave and not (run is best and any(f.level == "problem" for f in run.findings)):
            more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
            found.append(f"{who(run)}: {_lower(grave[0].title)}{more}")
    return [f"atmc doctor warns of {'; and of '.join(found)}."] if found else []


def calibrated(run: RunFacts) -> str:
    scores = headline(run)
    gap = float(np.mean(run.bins.confidence)) - scores["accuracy"]
    error = math.sqrt(max(scores["accuracy"] * (1 - scores["accuracy"]), 1e-12) / max(run.examples, 1))
    if abs(gap) <= max(2 * error, 0.0005):  # without mistakes the error is 0, and a gap of 0.0 points is none
        within = f"within the error of {run.examples:,} {run.noun}"
        return f"Its confidence matches its accuracy {within} (ECE {scores['ece']:.3f})."
    side = "overconfident" if gap > 0 else "underconfident"
    return f"It is {side} by {100 * abs(gap):.1f} points (ECE {scores['ece']:.3f})."


def refusal(run: RunFacts) -> str:
    """What rejecting the least confident tenth does to the error."""
    if len(run.risk.coverage) == 0:
        return f"There are too few {run.noun} for a risk–coverage curve."
    at = int(np.argmin(np.abs(run.risk.coverage - 0.9)))
    whole, kept = float(run.risk.risk[-1]), float(run.risk.risk[at])
    what = f"Rejecting the 10 % least confident {run.noun}"
    if kept < whole:
        return f"{what} lowers the error from {percent(whole)} to {percent(kept)}."
    stays = f"{what} leaves the error at {percent(whole)}"
    return f"{stays}." if whole == 0 else f"{stays}: its uncertainty does not find its mistakes."
