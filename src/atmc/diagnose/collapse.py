"""Have the samples collapsed to guessing? Their training score beside that of guessing and of the warm start.

A large network under a wide prior, with few data, has a posterior at T = 1 that hardly feels the likelihood: its
samples know no more than the frequencies of the classes, though SGD on the same target fits the data. Such a chain is
at its temperature, mixes and is calibrated, so that nothing else shows it. A run keeps these scores on up to 256 of its
training examples, for every sample and for the end of the warm start; held-out data are not needed.

The measure is a size and no test: `gained` is the share of the cost of guessing (its NLL; the variance of a
regression's targets) that predictions save. 0 is guessing, 1 perfect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atmc.common.text import percent
from atmc.diagnose.finding import Advice

if TYPE_CHECKING:
    from atmc.diagnose.run_measurements import RunMeasurements

FAR_WORSE = -1.0  # twice the cost of guessing
LITTLE = 0.1  # of the cost of guessing: below this share saved, predictions are called guesses
RIGHT = 0.1  # of the mistakes of guessing: as many of them avoided are as little
LEARNED = 0.2  # saved by a warm start that has learned something
HALF = 0.5  # of what the warm start saved: samples that keep less have lost it


@dataclass(frozen=True)
class TrainingFit:
    """Costs on some training examples: of guessing, of the weights after the warm start, of the samples together."""

    guess: float
    warm: float  # NaN where there was no warm start
    reached: float
    accuracy: float  # NaN for a regression
    usual: float  # accuracy of guessing
    regression: bool

    def gained(self, cost: float) -> float:
        return 1.0 - cost / self.guess

    @property
    def guesses(self) -> bool:
        """Whether samples are no better than guessing, by size; far worse is what too large a step does."""
        right = self.accuracy > self.usual + RIGHT * (
            1 - self.usual
        )  # it may be right, and say so with little confidence
        return FAR_WORSE < self.gained(self.reached) < LITTLE and not right

    @property
    def warm_knew(self) -> bool:
        """Whether the warm start had learned something that the samples have lost."""
        warm = self.gained(self.warm)
        return math.isfinite(warm) and warm > LEARNED and self.gained(self.reached) < HALF * warm

    @property
    def collapsed(self) -> bool:
        return self.guesses or self.warm_knew

    def title(self) -> str:
        if self.guesses:
            return "The samples predict hardly better than guessing"
        return "The samples have lost most of what the warm start learned"

    def evidence(self) -> str:
        """The numbers, side by side."""
        shown = math.sqrt if self.regression else float
        what = "RMSE" if self.regression else "NLL"
        right = "" if math.isnan(self.accuracy) else f", {percent(self.accuracy)} right"
        said = f"on training examples their {what} is {shown(self.reached):.3g}{right}; guessing has "
        said += f"{shown(self.guess):.3g}"
        return said + (f", the warm start before them {shown(self.warm):.3g}" if math.isfinite(self.warm) else "")


def training_fit(rows: Sequence[Mapping[str, Any]]) -> TrainingFit | None:
    """From rows of metrics; means over chains. None where no sample kept such scores, or nothing is to be learned."""
    warm: dict[int, float] = {}
    last: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        kept, chain = row.get("training"), int(row.get("chain", 0))
        if not isinstance(kept, Mapping):
            continue
        if row.get("event") == "warm" and kept.get("single"):
            warm[chain] = _cost(kept["single"])
        elif row.get("event") == "sample" and kept.get("guess"):
            last[chain] = kept
    if not last:
        return None
    ends = [kept.get("predictive") or kept["single"] for kept in last.values()]
    guess = _mean([_cost(kept["guess"]) for kept in last.values()])
    if not guess > 1e-6:
        return None
    return TrainingFit(
        guess=guess,
        warm=_mean([warm[chain] for chain in last if chain in warm]),
        reached=_mean([_cost(end) for end in ends]),
        accuracy=_mean([float(end["accuracy"]) for end in ends if "accuracy" in end]),
        usual=_mean([float(kept["guess"]["accuracy"]) for kept in last.values() if "accuracy" in kept["guess"]]),
        regression="rmse" in ends[0],
    )


def cure(fit: TrainingFit, temperature: float, python: bool = True) -> str:
    """What to change, in order of what helped: T, the likelihood, the prior, the width."""
    if not fit.warm_knew and math.isfinite(fit.warm):
        return (
            "The warm start had not learned much either: look at labels and inputs (standardised?), give it more epochs"
            f", then {_lower_t(temperature, python)}"
        )
    if fit.regression:
        other = "a smaller noise scale in the likelihood"
    else:
        named = "likelihood=atmc.likelihoods.NoisyDirichlet()" if python else 'target.likelihood="noisy-dirichlet"'
        other = f"{named} for labels that people agree on"
    return (
        f"At T = {temperature:g} the prior outweighs the data of this network: {_lower_t(temperature, python)}, or try "
        f"{other}, another prior scale, or a narrower network; more epochs do not help"
    )


def _lower_t(temperature: float, python: bool) -> str:
    name, value = "temperature" if python else "sampler.temperature", 0.1 * temperature
    return f"pass {name}={value:g}" if python else f"set {name}={value:g}"


def complaint(rows: Sequence[Mapping[str, Any]], temperature: float) -> str:
    """The line of `atmc.sample`; empty where nothing has collapsed."""
    fit = training_fit(rows)
    if fit is None or not fit.collapsed:
        return ""
    title, advice = fit.title(), cure(fit, temperature)
    return f"{title[0].lower()}{title[1:]} ({fit.evidence()}). {advice}"


def collapsed(v: RunMeasurements) -> list[Advice]:
    """Do the samples fit what they were trained on better than a guess?"""
    from atmc.diagnose.suggested_commands import anew

    fit = v.training
    if fit is None or not fit.collapsed or not v.samples_weights:
        return []
    said = fit.evidence()
    lower = {"sampler__temperature": f"{0.1 * v.temperature:g}"} if v.temperature > 0 else {}
    action = anew(v, cure(fit, v.temperature, python=False), **lower)
    return [Advice("problem", fit.title(), f"{said[0].upper()}{said[1:]}.", action, "certain")]


def _cost(scores: Mapping[str, float]) -> float:
    return float(scores["nll"]) if "nll" in scores else float(scores["rmse"]) ** 2


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
