"""The verdict in two sentences: how good it is against what it is compared with, and whether its doubt can be believed.
A third says whom the doctor warns of, if anybody.

Nothing is said to be ahead that the test set cannot tell apart: differences between runs are paired by image and must
be twice their standard error.
"""

import math

import numpy as np

from atmc.common.text import percent
from atmc.report.report_data import ReportData, RunFacts, Scores


def verdict(data: ReportData) -> tuple[str, ...]:
    """The two sentences at the top of the page, and a third where a chain needs attention."""
    best = _foremost(data.runs)
    return _how_good(best, data.runs), _how_honest(best), *_warned(best, data.runs)


def _headline(run: RunFacts) -> Scores:
    return run.predictive if run.samples_weights else run.single


def _foremost(runs: tuple[RunFacts, ...]) -> RunFacts:
    """The run to speak of: the first that none is ahead of, so that a difference which is none does not choose."""

    def behind(one: RunFacts, two: RunFacts) -> bool:
        return _finite(_headline(one)["nll"]) > _finite(_headline(two)["nll"]) and not _level(one, two)

    return next(run for run in runs if not any(behind(run, other) for other in runs))  # the lowest NLL is not behind


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _who(run: RunFacts) -> str:
    """The run's name, with its method where the name does not say it."""
    method = run.method.partition(",")[0].partition(" +")[0]
    return run.name if method.lower() in run.name.lower() else f"{method} ({run.name})"


def _how_good(best: RunFacts, runs: tuple[RunFacts, ...]) -> str:
    scores = _headline(best)
    where = f"{best.examples:,} {best.what}"
    if best.samples_weights:
        start = f"Averaging {best.samples} networks {'sampled' if best.is_posterior else 'trained'} by {_who(best)}"
    else:
        start = f"The single network of {_who(best)}"
    text = f"{start} gets {percent(scores['accuracy'])} of {where} right, at {scores['nll']:.3f} nats of NLL"
    others = [run for run in runs if run is not best]
    if others:
        return f"{text}; {'; '.join(_against(best, other) for other in others[:3])}{_more(others[3:])}."
    if best.samples_weights:
        one = best.single
        return f"{text}, where one alone gets {percent(one['accuracy'])} and {one['nll']:.3f}."
    return f"{text}; there is one network here, and so no averaging."


def _more(rest: list[RunFacts]) -> str:
    return f"; and {len(rest)} more in the table" if rest else ""


def _against(best: RunFacts, other: RunFacts) -> str:
    lead = _headline(other)["nll"] - _headline(best)["nll"]
    if not _paired(best, other):
        return f"{_who(other)} has {_headline(other)['nll']:.3f} on its own {other.split} {other.noun}"
    if not math.isfinite(lead):
        return f"{_who(other)} has no finite NLL"
    error = _error(best, other)
    if _level(best, other):
        return f"{_who(other)}, at {_headline(other)['nll']:.3f}, cannot be told apart from it on so few {best.noun}"
    return f"that is {lead:.3f} ± {error:.3f} better than {_who(other)}"


def _error(one: RunFacts, two: RunFacts) -> float:
    """The standard error of the difference of two NLLs on the same images."""
    each = two.nll_each - one.nll_each
    return float(np.std(each) / math.sqrt(len(each)))


def _level(one: RunFacts, two: RunFacts) -> bool:
    """Whether the images that both were scored on cannot tell them apart."""
    lead = _headline(two)["nll"] - _headline(one)["nll"]
    return _paired(one, two) and math.isfinite(lead) and (abs(lead) < 2 * _error(one, two) or lead == 0)


def _paired(one: RunFacts, two: RunFacts) -> bool:
    same = one.data == two.data and one.split == two.split and one.data_digest == two.data_digest
    return same and one.nll_each.shape == two.nll_each.shape and len(one.nll_each) > 1


def _how_honest(run: RunFacts) -> str:
    problems = [finding for finding in run.findings if finding.level == "problem"]
    if problems:
        return f"Do not rely on it yet: {problems[0].title[:1].lower()}{problems[0].title[1:].rstrip('.')}."
    return f"{_calibrated(run)}; {_refusal(run)}."


def _warned(best: RunFacts, runs: tuple[RunFacts, ...]) -> list[str]:
    """What the doctor holds against the chains, but for what has just been said of the best."""
    ill = []
    for run in runs:
        grave = [f for f in run.findings[1:] or run.findings if f.level in ("warning", "problem")]
        if grave and not (run is best and any(f.level == "problem" for f in run.findings)):
            more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
            ill.append(f"{_who(run)}: {grave[0].title[:1].lower()}{grave[0].title[1:].rstrip('.')}{more}")
    return [f"The doctor warns of {'; and of '.join(ill)}."] if ill else []


def _calibrated(run: RunFacts) -> str:
    scores = _headline(run)
    gap = float(np.mean(run.bins.confidence)) - scores["accuracy"]
    error = math.sqrt(max(scores["accuracy"] * (1 - scores["accuracy"]), 1e-12) / max(run.examples, 1))
    if abs(gap) <= max(2 * error, 0.0005):  # where nothing is mistaken there is no error, and 0.0 points are none
        seen = f"{run.examples:,} {run.noun}"
        return f"Its confidence matches its accuracy as closely as {seen} can tell (ECE {scores['ece']:.3f})"
    side = "more" if gap > 0 else "less"
    return f"It is {100 * abs(gap):.1f} points {side} confident than it is right (ECE {scores['ece']:.3f})"


def _refusal(run: RunFacts) -> str:
    """What refusing the least sure tenth does to the error."""
    if len(run.risk.coverage) == 0:
        return f"there are too few {run.noun} to say what refusing would gain"
    at = int(np.argmin(np.abs(run.risk.coverage - 0.9)))
    whole, kept = float(run.risk.risk[-1]), float(run.risk.risk[at])
    if kept < whole:
        return f"refusing the tenth it is least sure of cuts the error from {percent(whole)} to {percent(kept)}"
    stays = f"refusing the tenth it is least sure of leaves the error at {percent(whole)}"
    return stays if whole == 0 else f"{stays}: its doubt does not find its mistakes"
