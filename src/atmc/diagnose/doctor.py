"""Is this chain healthy? Plain sentences: what is wrong, how sure, what to change.

`doctor(run)` reads a run directory and applies one rule after the other to its vital signs. Each rule looks at one
question, and says so also when the answer is good or cannot be known. The first entry is the verdict. Levels are `ok`,
`note` (worth knowing), `warning` (results may be off) and `problem` (do not trust them). What looks large and may be
chance is a note that begins with "Cannot tell", and keeps the whole from being called healthy.

Thresholds are about sizes that matter (a tenth of the temperature, a twentieth of the loss) and are only acted upon
where chance is an unlikely explanation; the evidence gives both. Rows of metrics resemble their neighbours, which the
tests allow for (`traces`); tests/posterior/test_doctor_real.py has runs that are well and runs that are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from atmc.common.text import plural
from atmc.diagnose import collapse
from atmc.diagnose import dynamics_checks as motion
from atmc.diagnose import noise_checks as noise
from atmc.diagnose import sample_checks as samples
from atmc.diagnose.finding import FEW, LEVELS, Advice
from atmc.diagnose.run_measurements import RunMeasurements, examine
from atmc.diagnose.suggested_commands import split_command

__all__ = ["Advice", "RunMeasurements", "doctor", "examine", "verdict"]

# The order in which a person would ask.
QUESTIONS: tuple[Callable[[RunMeasurements], list[Advice]], ...] = (
    collapse.collapsed,
    motion.finished,
    motion.intact,
    motion.diverged,
    motion.enough_samples,
    motion.at_temperature,
    motion.cools_at_cycle_ends,
    noise.noise_directions,
    noise.large_kicks,
    motion.virial,
    motion.thermostat,
    motion.stationary_loss,
    samples.mixed,
    samples.distinct,
    samples.learned,
    samples.averaging,
    samples.reached,
    samples.calibrated,
    samples.what_was_sampled,
)


def doctor(run: Any) -> list[Advice]:
    """Findings about a run (a path, an open `RunDir`, or measurements): first the verdict, then the worst."""
    vitals = run if isinstance(run, RunMeasurements) else examine(_opened(run))
    found = [advice for question in QUESTIONS for advice in question(vitals)]
    found.sort(key=lambda advice: -LEVELS.index(advice.level))  # stable: questions keep their order within a level
    return commands_once([verdict(vitals, found), *found])


def commands_once(found: list[Advice]) -> list[Advice]:
    """Of findings that prescribe the same command the first has it, and the others their sentence."""
    seen: set[str] = set()
    made = []
    for advice in found:
        sentence, command = split_command(advice.action)
        made.append(replace(advice, action=f"{sentence}.") if command in seen else advice)
        seen |= {command} - {""}
    return made


def verdict(vitals: RunMeasurements, found: list[Advice]) -> Advice:
    """The whole in one entry."""
    problems = [a for a in found if a.level == "problem"]
    warnings = [a for a in found if a.level == "warning"]
    what = "chain" if vitals.chains == 1 else "run"
    if problems or warnings:
        counts = [plural(len(g), n) for g, n in ((problems, "problem"), (warnings, "warning")) if g]
        first = (problems or warnings)[0]
        return Advice(
            "problem" if problems else "warning",
            f"This {what} needs attention: {' and '.join(counts)}",
            f"Foremost: {first.title[0].lower()}{first.title[1:]}.",
            first.action,
        )
    if not vitals.samples_weights:
        return Advice("ok", "An optimiser's run, with nothing wrong that shows", summary_line(vitals))
    if vitals.units < FEW:
        title = f"Nothing wrong shows, but {plural(vitals.units, vitals.unit)} cannot show much"
        action = f"Collect at least {FEW} {vitals.unit}s before judging this {what}."
        return Advice("note", title, summary_line(vitals), action)
    if doubts := [a for a in found if a.doubt]:
        evidence = f"Open: {'; '.join(a.doubt for a in doubts)}. {summary_line(vitals)}"
        return Advice(
            "note", f"Nothing wrong shows, but this {what} cannot be called healthy yet", evidence, doubts[0].action
        )
    return Advice("ok", f"This {what} looks healthy", summary_line(vitals))


def summary_line(vitals: RunMeasurements) -> str:
    """The key figures that exist, in one line."""
    parts = [plural(vitals.samples, "sample")]
    if vitals.modes is not None:
        parts[0] += f" of {plural(vitals.modes, 'mode')}"
    if vitals.chains > 1:
        parts[0] += f" of {vitals.chains} chains"
    if np.isfinite(vitals.kinetic.mean):
        parts.append(f"kinetic temperature {vitals.kinetic.mean:.2f} of what was asked")
    if np.isfinite(vitals.noise.mean):
        parts.append(f"{noise.said(vitals.noise)} along the gradient noise")
    if vitals.mixing is not None and np.isfinite(vitals.mixing.rhat_loss):
        typical = samples.middle(vitals.mixing.rhat)
        parts.append(f"R-hat {vitals.mixing.rhat_loss:.2f} of the loss, {typical:.2f} of single examples")
    if vitals.scores is not None and vitals.samples > 1:
        single, average = vitals.scores["mean_single"]["nll"], vitals.scores["predictive"]["nll"]
        parts.append(f"NLL {samples.nats(single)} for one sample on average, {samples.nats(average)} for all together")
    return "; ".join(parts) + "."


def _opened(run: Any) -> Any:
    from atmc.storage.run_directory import RunDir

    return run if isinstance(run, RunDir) else RunDir.open(run)
