"""The doctor's prescriptions as commands: each can be pasted, and does what the sentence before it says.

A run that a recipe made is begun anew, or gone on with, by `atmc sample`; one of a network of the user's own by
`atmc.sample`, which needs that network again. Both take the run's folder for its recipe. A run whose folder is not
known gets the sentence alone. tests/posterior/test_remedies.py follows them to the letter.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atmc.diagnose.run_measurements import RunMeasurements
    from atmc.recipe.settings import Recipe

EXTENSIBLE = ("cyclic", "constant")  # kinds of schedule whose past does not depend on how long they are to be


def anew(v: RunMeasurements, sentence: str, **settings: object) -> str:
    """`sentence`, and how to begin such a run with other settings (`schedule__epochs=200`) in a folder of its own."""
    if v.recipe is None or not v.path or not settings:
        return f"{sentence}."
    said = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    if not by_hand(v.recipe):
        sets = [word for text in said for word in ("--set", text)]
        return f"{sentence}: {shlex.join(['atmc', 'sample', v.path, '--out', another(v.path), *sets])}"
    changes = ", ".join(f'"{text}"' for text in said)
    return f"{sentence}: {_call(v.recipe)}, recipe={v.path!r}, overrides=[{changes}], out={another(v.path)!r})"


def go_on(v: RunMeasurements, sentence: str) -> str:
    """`sentence`, and how to make the run twice as long: from where it is, if its schedule allows that.

    A run that has not come to its end is to do that first, as long as it was meant to be.
    """
    if unfinished(v):
        return finish(v)
    if v.recipe is None or not v.path:
        return f"{sentence}: a larger schedule.epochs goes on from here."
    epochs = 2 * v.recipe.schedule.epochs
    if v.recipe.schedule.kind not in EXTENSIBLE:
        return anew(v, sentence, schedule__epochs=epochs)
    if by_hand(v.recipe):
        return f"{sentence}: {_call(v.recipe)}, recipe={v.path!r}, epochs={epochs}, out={v.path!r})"
    return f"{sentence}: {shlex.join(['atmc', 'sample', v.path, '--set', f'schedule.epochs={epochs}'])}"


def unfinished(v: RunMeasurements) -> bool:
    """Whether the run can still go on as it is; chains that gave up cannot."""
    return v.status not in ("done", "diverged")


def finish(v: RunMeasurements) -> str:
    """How to let a run come to its end."""
    if v.recipe is None or not v.path:
        return "Let it finish: the same command or call goes on where it stopped."
    if by_hand(v.recipe):
        return f"Let it finish: {_call(v.recipe)}, recipe={v.path!r}, out={v.path!r})"
    return f"Let it finish: {shlex.join(['atmc', 'sample', v.path])}"


def longer_burn_in(v: RunMeasurements, sentence: str = "Lengthen schedule.burn_in_epochs") -> str:
    """A burn-in as long as this whole run, and then as much again."""
    if v.recipe is None or not several_samples(v.recipe):
        return f"{sentence}."
    epochs = v.recipe.schedule.epochs
    return anew(v, sentence, schedule__epochs=2 * epochs, schedule__burn_in_epochs=epochs)


def slower(v: RunMeasurements, sentence: str, factor: float = 0.5) -> str:
    """Smaller steps at smaller speeds."""
    if v.recipe is None:
        return f"{sentence}."
    section = v.recipe.sampler
    values = {key: getattr(section, key) for key in ("lr", "speed", "max_speed")}
    return anew(
        v, sentence, **{f"sampler__{key}": f"{factor * x:.4g}" for key, x in values.items() if x not in (None, 0)}
    )


def constant_steps(v: RunMeasurements) -> str:
    """Against noise that changes faster than a light thermostat that follows the step size can: no such changes."""
    sentence = "Enlarge data.batch_size, or keep the step size constant"
    if v.recipe is None:
        return f"{sentence} (schedule.kind, with schedule.sample_every_steps)."
    plan = v.recipe.schedule
    if plan.kind != "cyclic" or not v.steps_per_epoch > 0:
        return anew(v, "Enlarge data.batch_size", data__batch_size=2 * v.recipe.data.batch_size)
    every = plan.sample_every_steps or round((plan.cycle_epochs or 1) * v.steps_per_epoch)
    more = {} if plan.temperature_schedule in ("constant", "ramp") else {"schedule__temperature_schedule": "constant"}
    return anew(v, sentence, schedule__kind="constant", schedule__sample_every_steps=every, **more)


def held_out(v: RunMeasurements) -> str:
    """Predictions to compare: going on with a run that is done makes those of the samples that it has."""
    sentence = "Give it held-out examples; the samples that there are will be evaluated"
    if v.recipe is None or not v.path:
        return f"{sentence}."
    if by_hand(v.recipe):
        return f"{sentence}: atmc.sample(model, data, test=(x, y), recipe={v.path!r}, out={v.path!r})"
    words = ["atmc", "sample", v.path, "--set", 'run.evaluate=["test"]']
    return f"{sentence}: {shlex.join(words)}"


def split_command(action: str) -> tuple[str, str]:
    """A prescription as its sentence and its command; an empty one where it has none."""
    sentence, sign, command = action.partition(": atmc")
    return sentence, f"atmc{command}" if sign else ""


def by_hand(recipe: Recipe) -> bool:
    """Whether it was made in Python, of a network that no recipe can name."""
    return recipe.model.name == "custom"


def several_samples(recipe: Recipe) -> bool:
    """Whether the run takes samples on its way, after a burn-in."""
    return recipe.schedule.kind == "cyclic" or recipe.schedule.sample_every_steps is not None


def another(path: str) -> str:
    """A folder beside a run that is not there yet."""
    run = path.rstrip("/")
    if Path(path).name in ("", ".."):  # one stands in the run: its name is not in its path, and ".-2" would be inside
        run = str(Path(path) / ".." / Path(path).resolve().name)
    return next(name for n in range(2, 10_000) if not Path(name := f"{run}-{n}").exists())


def _call(recipe: Recipe) -> str:
    given = recipe.target.likelihood == "custom"
    parts = (("test", recipe.run.evaluate), ("prior", _own_prior(recipe)), ("likelihood", given))
    own = [f"{name}={name}" for name, used in parts if used]
    return ", ".join(["atmc.sample(model, data", *own])


def _own_prior(recipe: Recipe) -> bool:
    return recipe.target.prior == "custom"
