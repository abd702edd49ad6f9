"""Whether mini-batch noise bends the sampled law: the temperature along the gradient noise, and what to change.

The kinetic temperature is held at T by the thermostats, parameter by parameter, and the configurational temperature is
T in any stationary chain. Neither sees noise that is correlated between parameters; this reading does
(docs/minibatches.md).
"""

from __future__ import annotations

import math

import numpy as np

from atmc.diagnose.finding import Advice, cannot_tell
from atmc.diagnose.run_measurements import RunMeasurements
from atmc.diagnose.suggested_commands import anew, go_on, slower
from atmc.diagnose.traces import Level, is_off

LOW, HIGH = 0.87, 1.15  # of T: standard deviations are then within some 15 % of the posterior's
FAR = (0.6, 1.5)  # beyond these an open question is worth a word
OPEN = 0.05  # the chance below which what is far is an open question
MANY = 0.02  # of the examples of a step
AIM = 0.1  # the excess that a larger batch is suggested for


def outside(level: Level) -> bool:
    """Whether readings are outside of LOW to HIGH by more than their error, and T is excluded."""
    if not np.isfinite(level.error):
        return False
    away = max(level.mean - HIGH, LOW - level.mean)
    return away > level.error and is_off(level, math.nan)


def noise_directions(v: RunMeasurements) -> list[Advice]:
    """Are the directions that mini-batches shake as warm as asked?"""
    level = v.noise
    if not v.samples_weights or not np.isfinite(level.mean):
        return []
    evidence = f"Along differences of mini-batch gradients the temperature is {said(level)} times T."
    if LOW <= level.mean <= HIGH:
        return [Advice("ok", "The directions of the gradient noise have their temperature", evidence)]
    if outside(level):
        evidence += " The kinetic temperature, a mean over all parameters, does not show this."
        if level.mean > 1.0:
            evidence += (
                " Directions that the data determine best are sampled too wide, and others too narrow: "
                "the bias is proportional to the step size."
            )
            title = "Mini-batch noise heats the directions it acts in"
        else:
            title = "The directions of the gradient noise are below their temperature"
        return [Advice("warning", title, evidence, less_noise(v), "almost certain")]
    if FAR[0] < level.mean < FAR[1] or not is_off(level, math.nan, OPEN):
        return []
    doubt = "whether mini-batch noise heats the directions it acts in"
    return [cannot_tell(doubt, evidence, go_on(v, "Run longer"))]


def large_kicks(v: RunMeasurements) -> list[Advice]:
    """With friction along each example: do single examples push harder than friction balances?"""
    if not v.samples_weights or not v.kick_excess > MANY:
        return []
    evidence = (
        f"{v.kick_excess:.1%} of the examples of a step change the momentum by more than the thermal momentum √(mT), "
        "and heat the chain in the directions that they determine."
    )
    action = slower(v, "Halve sampler.lr and the speeds")
    return [Advice("warning", "Steps are too large for friction along each example", evidence, action, "likely")]


def said(level: Level) -> str:
    """The reading with its error; far above T the error is one of the logarithm, and an interval says it better."""
    if not np.isfinite(level.error) or level.mean <= 0:
        return f"{level.mean:.2f}"
    if level.error < 0.2 * level.mean:
        return f"{level.mean:.2f} ± {level.error:.2f}"
    factor = level.factor()
    middle, low, high = (
        f"{x:.1f}" if x < 10 else f"{x:,.0f}" for x in (level.mean, level.mean / factor, level.mean * factor)
    )
    return f"{middle} (95 % interval {low} to {high})"


def less_noise(v: RunMeasurements) -> str:
    """A batch as large as the reading asks for: the excess is inversely proportional to it. Else smaller speeds."""
    batch = enough_batch(v)
    if batch is None:
        return slower(v, "Halve sampler.lr and the speeds")
    whole = " (all the data)" if batch >= examples(v) else ""
    sentence = f"Set data.batch_size = {batch}{whole}, or lower sampler.speed"
    return anew(v, sentence, data__batch_size=batch)


def enough_batch(v: RunMeasurements) -> int | None:
    """The batch at which the excess should be AIM, at most all data; None where it is that already or not known."""
    if v.recipe is None or not np.isfinite(examples(v)):
        return None
    batch, most = v.recipe.data.batch_size, round(examples(v))
    if batch >= most:
        return None
    wanted = batch * max(2.0, (v.noise.mean - 1.0) / AIM)
    return min(most, 1 << math.ceil(math.log2(wanted)))


def examples(v: RunMeasurements) -> float:
    """Training examples of the run; NaN where that is not known."""
    return v.steps_per_epoch * v.recipe.data.batch_size if v.recipe is not None else float("nan")
