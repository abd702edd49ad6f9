"""The doctor's questions about how the chain moved: did it finish, is it as warm as asked, has it settled?

One function per question: vital signs in, findings out. Numbers in actions are computed from the run where the theory
gives them, so that they can be copied into the recipe.
"""

from __future__ import annotations

import numpy as np

from atmc.common.text import plural
from atmc.diagnose.finding import FEW, SIGNIFICANT, Advice, cannot_tell, words
from atmc.diagnose.run_measurements import RunMeasurements
from atmc.diagnose.suggested_commands import (
    anew,
    by_hand,
    constant_steps,
    finish,
    go_on,
    longer_burn_in,
    slower,
    unfinished,
)
from atmc.diagnose.traces import Level, is_off
from atmc.storage.run_directory import STUCK

TOLERABLE = 0.1  # relative error of a temperature
SMALL = 0.1  # relative change of the training loss below which it has settled
# For cycles that explore at T = 0 and then have too little time, in steps that get smaller, to warm up.
LONGER = (
    "Lengthen schedule.cycle_epochs or lower schedule.explore_fraction: the part that samples is too short to warm up."
)
LIGHT = 0.3  # equilibrium spread of the thermostat as a share of D with which it reacts within hundreds of steps


def finished(v: RunMeasurements) -> list[Advice]:
    """Did the run come to its end?"""
    if not unfinished(v):  # of chains that gave up `diverged` speaks
        return []
    evidence = f"Its last session ended with “{v.status}”."
    return [
        Advice(
            "note",
            "The run has not come to its end",
            evidence,
            finish(v),
            "certain",
        )
    ]


def intact(v: RunMeasurements) -> list[Advice]:
    """Are all its files what was written?"""
    if not v.damage:
        return []
    evidence = f"{plural(len(v.damage), 'note')} of damage; the first: {v.damage[0]}."
    if stuck := [line for line in v.damage if STUCK in line]:
        action = "Its samples can be used; to sample more, begin a new run in another folder."
        return [Advice("warning", "The run cannot be resumed", f"{stuck[0]}.", action, "certain")]
    action = "What is left is used; run the command again to make what can be made again."
    return [Advice("warning", "Files of the run were damaged", evidence, action, "certain")]


def diverged(v: RunMeasurements) -> list[Advice]:
    """Did it have to be caught, or could that be expected of its step size?"""
    unstable = v.stable_share < 1
    if v.rollbacks == 0 and v.status != "diverged" and not unstable:
        return []
    times = {0: "never", 1: "once"}.get(v.rollbacks, f"{v.rollbacks} times")
    if v.status == "diverged":  # the last of these step sizes was too large as well
        level, title = "problem", "The step size is too large: the chain diverged for good"
        evidence = (
            f"It was rolled back {times}, and diverged with {v.lr_scale:g} of the recipe's step size all the same."
        )
        share = v.lr_scale / 4
    else:
        level, title, share = "warning", f"The chain diverged {times} and was rolled back", v.lr_scale
        evidence = f"The step size is now {v.lr_scale:g} of the recipe's, so samples before and after differ in kind."
        if v.rollbacks == 0:
            title, evidence = "The step size is far too large to be stable", "The chain has not diverged yet."
    if unstable:
        share = min(share, v.stable_share)
        evidence += (
            f" A step overshoots {v.overshoot:.3g} times as far as is stable where the potential is most curved."
        )
    action = slower(v, f"Start anew with sampler.lr and the speeds times {share:g}", share)
    return [Advice(level, title, evidence, action, "certain")]


def enough_samples(v: RunMeasurements) -> list[Advice]:
    """Is there anything to average?"""
    if not v.samples_weights or v.units >= FEW:
        return []
    if v.samples == 0 and v.status == "diverged":
        return [Advice("problem", "There are no samples", "The bank is empty: see the divergence.", "", "certain")]
    if v.samples == 0:
        action = "Let the run pass its burn-in and its first cycle (schedule.burn_in_epochs, schedule.cycle_epochs)."
        return [Advice("problem", "There are no samples", "The bank is empty.", action, "certain")]
    title = f"There {'is' if v.units == 1 else 'are'} only {plural(v.units, v.unit)}"
    title += f", of {plural(v.samples, 'sample')}" if v.unit == "mode" else ""
    action = finish(v) if unfinished(v) else "Run longer, or shorten schedule.cycle_epochs."
    return [Advice("note", title, f"Mixing can be judged from {FEW} on.", action, "certain")]


def at_temperature(v: RunMeasurements) -> list[Advice]:
    """Is the chain as warm as asked, over the time of its dynamics (or hotter where samples are taken)?"""
    ends = v.kinetic_at_samples
    usual = "In the later half of each cycle's time at T" if v.explores else "Since burn-in"
    hot_ends = ends.mean > 1.0 + TOLERABLE and is_off(ends, v.parameters)
    level, where = (ends, "Where samples are taken") if hot_ends else (v.kinetic, usual)
    if not v.samples_weights or not np.isfinite(level.mean):
        return []
    evidence = f"{where} the kinetic temperature is {_around(level)} times the one asked (T = {v.temperature:g})."
    if abs(level.mean - 1.0) <= TOLERABLE:
        return [Advice("ok", "The chain has the temperature it was given", evidence)]
    far = level.mean > 1.5 or level.mean < 0.6
    if not is_off(level, v.parameters):
        action = go_on(v, "Run longer")
        doubt = "whether the chain has the temperature it was given"
        return [cannot_tell(doubt, evidence, action, "warning" if far else "note")]
    grade = "problem" if far else "warning"
    late = v.kinetic_late.mean
    if level.mean > 1.0 and abs(late - 1.0) <= TOLERABLE:
        evidence += f" In the second half it is {late:.2f}: the first samples are of a chain that had not cooled down."
        action = longer_burn_in(v)
        return [Advice("warning", "The chain was hotter than asked at first", evidence, action, "almost certain")]
    if level.mean > 1.0:
        evidence += " Gradient noise heats it more than friction cools it: it samples a flatter posterior."
        return [Advice(grade, "The chain is hotter than asked", evidence, cooling(v), "almost certain")]
    evidence += " It samples a sharper posterior than the one named."
    action = LONGER if v.explores else constant_steps(v)
    return [Advice(grade, "The chain is colder than asked", evidence, action, "almost certain")]


def cools_at_cycle_ends(v: RunMeasurements) -> list[Advice]:
    """Have the momenta kept their temperature where samples are taken?

    A thermostat answers to gradient noise with friction, and cannot let go of it while the last, small steps pass: they
    are hardly any time. What it does not follow then leaves momenta below T, and with them the stiffest directions of
    the weights, those that settle within a cycle: the step size itself, where it is not told to
    (tests/posterior/test_cooling.py), or noise that falls because the loss does.
    """
    level = v.kinetic_at_samples
    if not v.samples_weights or not level.mean < 1.0 - TOLERABLE or not level.excludes(1.0):
        return []
    evidence = (
        f"Where samples are taken the kinetic temperature is {_around(level)} times T: the friction that gradients "
        "needed earlier in the cycle outlives their noise. Directions slower than a cycle are at T all the same; "
        "faster ones may be sampled as cold as that."
    )
    title = "The momenta cool as the step size falls"
    light = light_inertia(v)
    action = constant_steps(v)
    if v.explores and v.kinetic.mean < 1.0 - TOLERABLE:
        return []  # it has never been warm: `at_temperature` says so
    if not v.follows:
        action = anew(v, "Set sampler.thermostat_follows_step = true", sampler__thermostat_follows_step="true")
    elif v.inertia > 3 * light:
        action = make_lighter(v)
    return [Advice("warning" if level.mean < 0.6 else "note", title, evidence, action, "almost certain")]


def _around(level: Level) -> str:
    digits = 2 if abs(level.mean) < 100 else 0
    return f"{level.mean:.{digits}f}" + (f" ± {level.error:.{digits}f}" if np.isfinite(level.error) else "")


def light_inertia(v: RunMeasurements) -> float:
    """μ = T / (κD)²: the inertia whose thermostat spreads over a share κ of D and follows within hundreds of steps."""
    return v.temperature / (LIGHT * v.friction) ** 2 if v.friction > 0 else float("nan")


def make_lighter(v: RunMeasurements) -> str:
    """A lighter thermostat, as a setting of the recipe."""
    value = f"{light_inertia(v):.1g}"
    sentence = f"Make the thermostat lighter, sampler.inertia = {value} instead of {v.inertia:g}"
    return anew(v, sentence, sampler__inertia=value)


def cooling(v: RunMeasurements) -> str:
    """What to do against heat."""
    light = light_inertia(v)
    if np.isfinite(v.inertia) and np.isfinite(light) and v.inertia > 3 * light:
        return make_lighter(v)
    if v.recipe is not None and by_hand(v.recipe):  # data that nobody else has looked at
        scale = "Standardise inputs (and a regression's targets) to mean 0 and deviation 1"
        return slower(v, f"{scale}; where they are, halve sampler.lr and the speeds")
    return slower(v, "Enlarge data.batch_size, or halve sampler.lr and the speeds")


def virial(v: RunMeasurements) -> list[Advice]:
    """Do positions agree with momenta about the temperature?"""
    level = v.configurational
    if not np.isfinite(level.error) or abs(level.mean - 1.0) <= 2 * TOLERABLE or not level.excludes(1.0, SIGNIFICANT):
        return []
    evidence = (
        f"The configurational temperature (mean of θ·∇U) is {_around(level)} times T over "
        f"{plural(level.rows, 'sample')}; in equilibrium it is 1. Directions that the data hardly determine take "
        "longest to fill their prior and matter least for predictions, which is why this is only a note."
    )
    title, doubt = "The weights are not yet in equilibrium in all directions", "whether all directions have been filled"
    return [Advice("note", title, evidence, longer_burn_in(v), "very likely", doubt)]


def thermostat(v: RunMeasurements) -> list[Advice]:
    """Has the thermostat found its place, and have the parameters with the noisiest gradients?

    The median answers for most parameters, the 99 % quantile for those that a heavy thermostat reaches last. While it
    is on its way there, they are hotter than asked at large steps; one that does not follow the step size lets them
    freeze at small ones. Over a run the chain may turn from one that explores into one that hardly moves.
    """
    low, middle, high = v.thermostat
    if not np.isfinite(middle) or not v.friction > 0:
        return []
    place = (
        f"ξ runs from {low:.3g} to {high:.3g} (1 % to 99 %), median {middle:.3g}, "
        f"against a least friction D = {v.friction:.3g}."
    )
    found: list[Advice] = []
    light = light_inertia(v)
    heavy = v.inertia > 3 * light
    for trend, which, least, levels in (
        (v.thermostat_trend, "median", 0.1 * v.friction, (v.kinetic,)),
        (v.thermostat_top_trend, "99 % quantile", max(0.5 * v.friction, 0.2 * high), (v.kinetic, v.kinetic_at_samples)),
    ):
        moved = abs(trend.slope) * max(trend.points - 1, 0)
        if not (trend.p_value < SIGNIFICANT and moved > least):
            continue
        evidence = f"{place} Its {which} has moved by {moved:.3g} since burn-in (p = {trend.p_value:.1g})."
        # A thermostat on its way does harm by the temperature that it has not reached; where that is right, it is news.
        grade = "warning" if any(abs(level.mean - 1.0) > TOLERABLE for level in levels) else "note"
        nearer = f"start it nearer (sampler.thermostat_init = {middle:.3g})" if which == "median" else ""
        if heavy:
            action = make_lighter(v)
        elif grade == "note" and np.isfinite(v.kinetic.mean):
            # Momenta are as warm as asked, and a light thermostat has had time: burn-in for its sake would be in vain.
            evidence += f" The kinetic temperature is right all the same ({_around(v.kinetic)} times T)."
            action = f"Nothing for this run; another may {nearer}." if nearer else ""
        else:
            action = longer_burn_in(v, "Lengthen schedule.burn_in_epochs" + (f", or {nearer}" if nearer else ""))
        found.append(Advice(grade, "The thermostat is still on its way", evidence, action, words(trend.p_value)))
        break
    if v.silent > 0.5:
        title = "For most parameters gradient noise alone exceeds the added noise"
        evidence = f"{place} For {v.silent:.0%} of them ξ ≥ D at full steps, so no noise is added there."
        action = "That is how noise is meant to be absorbed; a larger batch or a smaller step leaves more room."
        found.append(Advice("note", title, evidence, action, "certain"))
    return found


def stationary_loss(v: RunMeasurements) -> list[Advice]:
    """Is the training loss the same from cycle to cycle?"""
    trend = v.drift
    if not v.samples_weights or not np.isfinite(trend.p_value) or not np.isfinite(v.loss):
        return []
    change = trend.slope * (trend.points - 1)
    # The loss of a regression is −log of a density, which may be 0 or less: nats themselves are its unit.
    share = abs(change) if v.regression else abs(change) / max(abs(v.loss), 0.01)
    size = "" if v.regression else f", {share:.0%} of it"
    tested = f" (p = {trend.p_value:.2g})" if share >= 0.01 else ""  # of what is too small to matter, no test
    evidence = (
        f"Since burn-in the training loss has changed by {change:+.3g} nats{size}; it is {v.loss:.3g} now{tested}."
    )
    if share <= (SMALL if trend.p_value >= SIGNIFICANT else SMALL / 2):
        return [Advice("ok", "The training loss has settled", evidence)]
    if trend.p_value >= SIGNIFICANT:
        return [cannot_tell("whether the training loss has settled", evidence, go_on(v, "Run longer"))]
    if change < 0:
        evidence += " Early samples are worse than late ones."
        action = longer_burn_in(v, "Drop the early samples (posterior[k:]), or lengthen schedule.burn_in_epochs")
        return [Advice("warning", "The training loss is still falling", evidence, action, words(trend.p_value))]
    evidence += " The chain is leaving the mode where it started for flatter ones, or heating up."
    action = longer_burn_in(v, "If the chain is hot, see to that first; else lengthen schedule.burn_in_epochs")
    return [Advice("warning", "The training loss is rising", evidence, action, words(trend.p_value))]
