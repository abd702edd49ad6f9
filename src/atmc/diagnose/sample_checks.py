"""The doctor's questions about the samples: do they mix, do they differ, does averaging help, are they calibrated?"""

from __future__ import annotations

import math

import numpy as np

from atmc.common.text import plural
from atmc.diagnose.collapse import LITTLE, RIGHT
from atmc.diagnose.finding import FEW, SIGNIFICANT, Advice, cannot_tell, words
from atmc.diagnose.run_measurements import RunMeasurements
from atmc.diagnose.suggested_commands import go_on, held_out, longer_burn_in, slower
from atmc.posterior.arrays import Floats
from atmc.posterior.calibration import CalibrationBins, wilson

UNMIXED = 1.1  # R-hat; two halves of 14 independent samples pass it in a quarter of cases, of 50 in one of 50
HARM = 0.02  # share of the NLL that late samples alone are better by, from which early ones do harm
WORSE = 1.2  # times the NLL of guessing
WIDE = 0.05  # a gap between confidence and accuracy that matters by itself
CROWD = 15 * (0.4 / WIDE) ** 2  # fewer examples than that may have an ECE of WIDE though they are calibrated
SAME = 1e-12  # cosine distance of weights that differ by rounding
LONGER = "Lengthen schedule.cycle_epochs, so that each cycle travels further, or raise the step size."


def middle(values: Floats) -> float:
    """Median of what is known."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")


def nats(value: float) -> str:
    """An NLL with three digits that count: one of 0.00501 and one of 0.00475 must not read the same."""
    return f"{value:.3f}" if not abs(value) < 0.1 else f"{value:#.3g}"


def mixed(v: RunMeasurements) -> list[Advice]:
    """Do chains, or the halves of one, predict alike?"""
    m = v.mixing
    if v.units < FEW or not v.samples_weights:
        return []
    if m is None:
        evidence = "The run has no predictions of held-out examples, by which samples could be compared."
        return [cannot_tell("whether the chain mixes", evidence, held_out(v), sure="certain")]
    if not np.isfinite(m.p_value) or m.samples < FEW:
        return []
    who = "The chains, and the halves of each," if m.chains > 1 else "The first and the second half of the chain"
    typical = middle(m.rhat)
    evidence = f"Reordering the {m.samples} {v.unit}s at random looks as uneven with probability {m.p_value:.2g}."
    if np.isfinite(m.rhat_loss) and np.isfinite(typical):  # chains of a few samples have none
        evidence += f" R-hat is {m.rhat_loss:.2f} for the loss and {typical:.2f} for the median {v.split} example"
        evidence += f"; above {UNMIXED:g} it matters."
    alike = max(m.rhat_loss, typical) <= UNMIXED  # not where they are not known
    if m.p_value < SIGNIFICANT and not alike:
        more = "lengthen schedule.burn_in_epochs and schedule.epochs"
        if m.chains > 1:
            action = longer_burn_in(v, f"Average over the chains, which is better than any one, and {more}")
        else:
            action = longer_burn_in(v, f"Run several chains and average them, or {more}")
        return [Advice("warning", f"{who} do not predict alike", evidence, action, words(m.p_value))]
    if not alike:
        return [cannot_tell(f"whether {who[0].lower()}{who[1:]} predict alike", evidence, go_on(v, "Run longer"))]
    if m.p_value < SIGNIFICANT:  # many samples show differences of any size
        return [Advice("ok", f"{who} differ detectably, but too little to matter", evidence)]
    return [Advice("ok", f"{who} predict alike", evidence)]


def distinct(v: RunMeasurements) -> list[Advice]:
    """Are the samples different from each other, and independent?"""
    # How close samples lie says nothing by itself: that is as close as the posterior is narrow. Equal they must not be.
    if v.samples > 1 and v.distance < SAME:
        evidence = f"The median cosine distance between two is {v.distance:.1e}, which is rounding."
        return [Advice("problem", "The samples are the same network", evidence, LONGER, "certain")]
    m = v.mixing
    worth = middle(m.ess) if m is not None else float("nan")
    if m is not None and m.samples >= 2 * FEW and worth < 0.4 * m.samples:
        evidence = (
            f"The effective sample size of the median {v.split} example is {worth:.1f}: neighbours repeat each other."
        )
        action = f"{LONGER} Thinning saves time and loses little."
        return [Advice("warning", f"{m.samples} {v.unit}s are worth about {worth:.0f}", evidence, action, "likely")]
    if v.neighbours < 0.5:
        evidence = (
            f"They lie {v.neighbours:.2f} times as far apart as samples half a chain apart (cosine distance, median "
            f"{v.distance:.2g}): the weights are still travelling, whatever the predictions do."
        )
        return [Advice("note", "Neighbouring samples are close in weight space", evidence, LONGER, "likely")]
    return []


def learned(v: RunMeasurements) -> list[Advice]:
    """Has it learned anything? A chain may mix well around networks that know no more than a coin does.

    Worse than guessing, on the training set as well, is what too large a step size does.
    """
    if v.bins is None or v.scores is None or v.classes < 2 or (v.training is not None and v.training.guesses):
        return []  # `collapsed` has said it
    one, uniform = v.scores["mean_single"]["nll"], math.log(v.classes)
    if one > WORSE * uniform and not v.loss < uniform:
        evidence = (
            f"On {v.split} the NLL of one sample is {nats(one)} on average, that of guessing among {v.classes} classes "
            f"{nats(uniform)}; the training loss is {nats(v.loss)}."
        )
        action = slower(v, "The step size is too large: divide sampler.lr and the speeds by ten", 0.1)
        return [Advice("problem", "Its samples are worse than guessing", evidence, action, "certain")]
    examples, share = int(v.bins.count.sum()), v.scores["predictive"]["accuracy"]
    nll, (guess, usual) = v.scores["predictive"]["nll"], v.guess
    # By size too: enough examples tell 23 % from one in five, and it is still next to nothing.
    by_size = nll >= (1 - LITTLE) * guess and share <= usual + RIGHT * (1 - usual)
    if float(wilson(share * examples, examples)[0]) > 1 / v.classes and not by_size:
        return []
    evidence = (
        f"Of {plural(examples, f'{v.split} example')} it gets {100 * share:.1f} % right, and guessing among "
        f"{v.classes} classes {100 / v.classes:.1f} %; its NLL is {nll:.3f}, that of guessing "
        f"{guess if np.isfinite(guess) else math.log(v.classes):.3f}."
    )
    action = (
        "Look at the labels, then give it more training data, or larger pictures; and more test examples where "
        "there are few."
    )
    title = "Its predictions are hardly better than guessing"
    return [Advice("warning", title, evidence, action, "certain")]


def averaging(v: RunMeasurements) -> list[Advice]:
    """What does the average gain, and would more samples gain more?

    One sample stands for all of them here, so it is their mean; what `atmc evaluate` and the report's table call the
    single sample is the last one, which may be better or worse than that, and is named beside it.
    """
    if v.scores is None or v.samples < 2:
        return []
    single, average = v.scores["mean_single"]["nll"], v.scores["predictive"]["nll"]
    evidence = (
        f"On {v.split} the NLL is {nats(single)} for one sample, the mean over all {v.samples} (the last of them, the "
        f"single sample of evaluate and report, has {nats(v.scores['single']['nll'])}), and {nats(average)} for all "
        "together."
    )
    late = v.late
    if late is not None and late.ahead > HARM * average and late.ahead > 3 * late.error:
        action = longer_burn_in(v, "Drop the early samples (posterior[k:]), or lengthen schedule.burn_in_epochs")
        which = f"the last {late.samples}" + (" modes" if v.unit == "mode" else "")
        evidence += f" {which.capitalize()} alone have {nats(late.late)}, less by {nats(late.ahead)} ± "
        evidence += f"{nats(late.error)}; as many at random do as well with probability {late.p_value:.2g}."
        if late.p_value < SIGNIFICANT:
            title = "The last samples alone are better than all together"
            return [Advice("warning", title, evidence, action, words(late.p_value))]
        return [cannot_tell("whether the early samples do harm", evidence, action)]
    if single - average < 0.01 * single:
        evidence += " The samples say the same."
        raised = "Raise the temperature towards 1 or lengthen" if v.temperature < 1 else "Lengthen"
        action = f"{raised} the cycles (schedule.cycle_epochs), if more diversity is wanted."
        return [Advice("note", "Averaging gains next to nothing", evidence, action, "certain")]
    more, spread = v.doubling
    if more > 0.01 * average and more > spread / 2:
        evidence += f" Twice as many should gain about {more:.2g} more."
        return [Advice("note", "More samples would still help", evidence, go_on(v, "Run longer"), "likely")]
    if v.units < FEW:
        evidence += f" What more would gain cannot be told from {plural(v.units, v.unit)}."
        return [Advice("ok", "Averaging helps", evidence)]
    evidence += f" Twice as many would gain about {more:.2g}." if more > 0 else " Twice as many would gain nothing."
    return [Advice("ok", "Averaging helps, and there are samples enough", evidence)]


def reached(v: RunMeasurements) -> list[Advice]:
    """Does each chain get to where the others are?"""
    p = v.pairs
    if p is None or v.units < FEW or p.least >= SIGNIFICANT:  # too few to tell, in either direction
        return []
    evidence = (
        f"On {v.split} the NLL of two {v.unit}s together is {p.one:.4f} below their own if they are of one chain, and "
        f"{p.two:.4f} if they are of two; dealt out at random, chains differ as much with probability {p.p_value:.2g}."
    )
    if p.p_value < SIGNIFICANT and p.more > 0.05:
        action = "More chains (a larger chains) bring more than longer ones, as far as their burn-in allows."
        return [Advice("note", "Each chain keeps to modes of its own", evidence, action, words(p.p_value))]
    return [Advice("ok", "No sign of chains that keep to modes of their own", evidence)]


def calibrated(v: RunMeasurements) -> list[Advice]:
    """Is it right as often as it says?"""
    if v.bins is None:
        return []
    b = v.bins
    over, under = int((b.confidence > b.high).sum()), int((b.confidence < b.low).sum())
    evidence = (
        f"In {over} of {len(b.count)} equally sized bins of {v.split} examples confidence is above the 95 % interval "
        f"of the accuracy, in {under} below."
    )
    if v.scores is not None:  # the number that evaluate and report give, and no other
        ece = v.scores["predictive"]["ece"]
        evidence += (
            f" The ECE is {ece:.3f}; if it were calibrated, chance alone would make about {v.ece_by_chance:.3f}."
        )
    gap, chance = whole_gap(b)
    # A few examples fill no bin well enough to accuse it, and still show a gap that all of them share.
    together = abs(gap) >= WIDE and chance < SIGNIFICANT
    if together:
        evidence += f" Over all, confidence less accuracy is {gap:+.3f}."
    if not together and (over + under < 3 or b.error < 0.01):
        few = f", as far as {plural(int(b.count.sum()), 'example')} tell" if b.count.sum() < CROWD else ""
        return [Advice("ok", f"Confidence and accuracy agree{few}", evidence)]
    if gap > 0 if together else over > under:
        raised = "raise the temperature towards 1, " if v.temperature < 1 else ""
        action = f"Average more samples, {raised}or scale with a temperature fitted on validation data."
        return [Advice("note", "The predictive is overconfident", evidence, action, "almost certain")]
    if falling(v):
        action = "The chain has not learned what it can yet: see to the falling loss first."
        return [Advice("note", "The predictive is underconfident", evidence, action, "almost certain")]
    action = (
        "Labels that people agreed on carry less doubt than the likelihood allows: try target.likelihood = "
        '"dirclip" or "noisy-dirichlet", or a lower temperature, and say so beside the numbers.'
    )
    return [Advice("note", "The predictive is underconfident", evidence, action, "almost certain")]


def whole_gap(bins: CalibrationBins) -> tuple[float, float]:
    """Mean confidence less accuracy over all examples, and the probability of one as large were they calibrated.

    The hits of calibrated examples have the variance Σ c (1 − c), which the bins' mean confidences can only overstate.
    """
    total = int(bins.count.sum())
    gap = float((bins.count * (bins.confidence - bins.accuracy)).sum()) / total
    spread = math.sqrt(float((bins.count * bins.confidence * (1 - bins.confidence)).clip(min=0).sum())) / total
    if spread == 0:
        return gap, 1.0 if gap == 0 else 0.0
    return gap, math.erfc(abs(gap) / spread / math.sqrt(2))


def falling(v: RunMeasurements) -> bool:
    """Whether the training loss still falls."""
    return v.drift.p_value < SIGNIFICANT and v.drift.slope < 0


def what_was_sampled(v: RunMeasurements) -> list[Advice]:
    """What has to be said beside every number?"""
    said = []
    if v.temperature != 1.0:
        said.append(f"The temperature is {v.temperature:g}, not that of Bayes' rule, 1.")
    if v.hottest > 1.0:
        said.append(
            f"Cycles begin at T = {v.temperature * v.hottest:g} and cool to {v.temperature:g}: directions that settle "
            "more slowly than that are sampled hotter than where they end."
        )
    if v.explores > 0.0:
        said.append(
            f"The first {v.explores:.0%} of each cycle explore at T = 0: which modes are visited, and how often, is "
            "the optimiser's choice; how each is filled is the sampler's."
        )
    if v.augment != "none":
        said.append(f"The data were augmented ({v.augment}), and augmented data are not independent data.")
    if not said or not v.samples_weights:
        return []
    action = "State it beside every number; where it matters, report T = 1 without augmentation too."
    return [Advice("note", "This is not the plain Bayes posterior", " ".join(said), action, "certain")]
