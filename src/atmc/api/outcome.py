"""What `atmc.sample` hands back when its run has ended, and what it warns of."""

import shlex
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from atmc.common.errors import InputError, RunError
from atmc.engine.runner import RunResult
from atmc.engine.schedule import make_schedule
from atmc.recipe.settings import Recipe
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir, labels_file

if TYPE_CHECKING:
    from atmc.posterior import Posterior

FEW = 5  # fewer samples get a warning


def say_if_off(folder: Path, kept: bool) -> None:
    """Warn of temperatures that are off, of chains that have not mixed and of too few effective samples."""
    from atmc.diagnose.complaints import complaints

    found = RunDir.open(folder)
    if found.recipe.sampler.name == "sgd":
        return
    where = f"; atmc doctor {shlex.quote(str(folder))} says more" if kept else ""
    for line in complaints(found):
        warnings.warn(f"{line}{where}", stacklevel=3)


def scored_samples(folder: Path) -> set[Any] | None:
    """The samples of a run that keeps test labels, to know later which are new; None where there is no such run."""
    if not Manifest.exists(folder):
        return None
    with suppress(InputError):  # no run yet: its folder is just about to become one
        found = RunDir.open(folder)
        if labels_file("test") in found.manifest["files"]:
            return {(e.manifest.folder, e.meta["index"]) for e in found.bank.entries} if found.parts else set()
    return None


def say_if_unscored(folder: Path, before: set[Any]) -> None:
    """Warn of new samples without predictions for the run's test set: scores need those of all."""
    now = scored_samples(folder)
    if now is not None and now - before:
        warnings.warn(
            f"{folder} was evaluated on test data, and its new samples are not, so that it has no scores now: pass "
            "test= again (the same call with it evaluates them, and draws none anew)",
            stacklevel=3,
        )


def how_far(settings: Recipe, examples: int, ended: RunResult) -> str:
    """How far a run came that did not end by itself, and why it ended."""
    from atmc.common.text import plural

    schedule = make_schedule(settings, examples)
    there, whole = schedule.epoch(ended.steps) / settings.chains, schedule.epoch(schedule.steps)
    why = "interrupted" if ended.status == "interrupted" else "out of time"
    return f"{why} at epoch {there:.0f} of {whole:.0f}, {plural(ended.samples, 'sample')}"


def posterior_of(
    folder: Path, model: nn.Module, kept: bool, ended: RunResult, reached: str, likelihood: Any = None
) -> "Posterior":
    """The samples of a run, with a word where it was stopped or they are too few; `RunError` where there are none."""
    from atmc.common.text import plural
    from atmc.posterior import Posterior

    found = RunDir.open(folder)
    go_on = "the same call goes on where it stopped" if kept else "with out= the same call could go on where it stopped"
    if len(found.bank) == 0:
        if ended.status == "interrupted" or (ended.status == "budget" and kept):
            raise RunError(f"{reached}; {go_on}")
        cure = "give a larger time_budget, or fewer epochs" if ended.status == "budget" else "let it run for longer"
        raise RunError(f"there was no time for a single sample: {cure}")
    posterior = Posterior.from_run(found, model, likelihood)
    few = len(posterior) < FEW and found.recipe.sampler.name != "sgd"
    if ended.status == "interrupted" or (ended.status == "budget" and few):
        warnings.warn(f"{reached}; {go_on}", stacklevel=3)
    elif few:
        warnings.warn(
            f"only {plural(len(posterior), 'sample')}: what samples disagree about (epistemic) says little with fewer "
            f"than {FEW}; give more epochs",
            stacklevel=3,
        )
    if kept:
        return posterior
    own = Posterior(
        [dict(tensors) for tensors in found.bank],
        posterior.model,
        chains=posterior.chains,
        likelihood=posterior.likelihood,
        mean=posterior.mean,
        std=posterior.std,
        classes=posterior.classes,
        shape=found.manifest["data"]["shape"],
    )
    own.pilots = posterior.pilots
    return own
