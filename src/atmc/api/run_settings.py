"""The settings of a run of `atmc.sample`: of a sampler's defaults, a recipe, or the run that is there already."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from atmc.api.defaults import NARROW, default_recipe, scale_at
from atmc.api.likelihood_choice import STANDARDISED, default_noise, with_likelihood
from atmc.common.errors import InputError
from atmc.common.suggest import nearest
from atmc.data import ImageData
from atmc.engine.compiled_loss import NOT_HERE
from atmc.engine.processes import pick_device
from atmc.engine.step_size_search import StepSize
from atmc.recipe.settings import (
    Recipe,
    SamplerSection,
    TargetSection,
)
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir
from atmc.target.likelihoods import LIKELIHOODS, NO_PLACE


def source_of(sampler: str | None, recipe: str | Path | Recipe | None) -> str | Path | Recipe:
    """What the settings come from: a sampler's name as text, a recipe as a path or an object."""
    from atmc.samplers import SAMPLERS

    known = [*SAMPLERS, "sgd"]
    if sampler is not None and recipe is not None:
        raise InputError("give sampler= or recipe=, not both: a recipe names its own sampler")
    if recipe is not None:
        return recipe if isinstance(recipe, Recipe) else Path(recipe)
    if sampler is None:
        return "atmc"
    if not isinstance(sampler, str) or sampler not in known:
        near = nearest(str(sampler), known)
        hint = f"did you mean {near!r}?" if near else "a recipe goes into recipe="
        raise InputError(f"sampler must be one of {', '.join(known)}, not {sampler!r}: {hint}")
    return sampler


def settings_of(
    source: str | Path | Recipe,
    train: ImageData,
    epochs: int | None,
    overrides: Sequence[str],
    step_size: StepSize | None = None,
    noise_rank: int = 0,
    fit_steps: int = 0,
    batch: int | None = None,
) -> Recipe:
    if isinstance(source, Recipe):
        base = source
    elif isinstance(source, str):
        length = epochs if epochs is not None else 100
        base = default_recipe(source, len(train), length, step_size, noise_rank, fit_steps, batch)
    else:
        from atmc.storage.run_recipe import load_recipe_or_run

        base = load_recipe_or_run(source, overrides)
        overrides = ()
    if epochs is not None and base.schedule.epochs != epochs:
        base = dataclasses.replace(base, schedule=dataclasses.replace(base.schedule, epochs=epochs))
    if overrides:
        from atmc.recipe.toml_files import recipe_from_values, without_unset

        base = recipe_from_values(without_unset(base.to_dict()), overrides)
    return base


def start_of(start: Any, settings: Recipe) -> Literal["given", "fresh"]:
    """Where chains begin: as asked, or as the recipe has it for a network of one's own."""
    if start is None:
        return settings.model.start
    for known in ("given", "fresh"):
        if start == known:
            return known
    raise InputError(f'start must be "given" (at the network\'s weights) or "fresh" (new ones), not {start!r}')


def say_if_uncompiled(settings: Recipe, source: str | Path | Recipe, overrides: Sequence[str]) -> None:
    """Warn where a recipe or an override asks to compile and there is no GPU; defaults ask for it everywhere."""
    asked = not isinstance(source, str) or any(word.startswith("run.compile") for word in overrides)
    if asked and settings.run.compile and pick_device(settings.run.device).type != "cuda":
        warnings.warn(NOT_HERE, stacklevel=3)


def at_temperature(section: SamplerSection, temperature: float | None) -> SamplerSection:
    return section if temperature is None else dataclasses.replace(section, temperature=temperature)


def check_longer(out: str | Path | None, epochs: int, each: int) -> None:
    """Refuse to shorten a run whose steps use all data, in the caller's epochs of `each` steps."""
    if out is not None and Manifest.exists(Path(out)):
        made = RunDir.open(out).recipe.schedule.epochs
        if made > epochs:
            raise InputError(
                f"{out} is set to {made // each} epochs of {each} steps, not {epochs // each}, which would change "
                f"what it has done: pass epochs={made // each} to go on with it, or use another folder for a new run"
            )


def begun(out: str | Path | None, sampler: str, epochs: int | None) -> Recipe | None:
    """The settings of the run that is in `out` already, with the length asked for now; its step size stays."""
    if out is None or not Manifest.exists(Path(out)):
        return None
    past = RunDir.open(out).recipe
    if past.sampler.name != sampler or past.model.name != "custom":
        return None
    return (
        past
        if epochs is None
        else dataclasses.replace(past, schedule=dataclasses.replace(past.schedule, epochs=epochs))
    )


def target_of(
    settings: Recipe,
    model: nn.Module,
    train: ImageData,
    prior: Any,
    likelihood: Any,
    explicit: bool,
    temperature: float | None = None,
) -> tuple[TargetSection, Any]:
    """The target's section, and the prior rule where it is an object that a recipe cannot name."""
    section = settings.target
    rule: Any = None
    guessed = explicit and prior is None and section == TargetSection() and settings.sampler.name != "sgd"
    if settings.sampler.name == "sgd" and prior is None:
        section = dataclasses.replace(section, prior="none", prior_scale=TargetSection().prior_scale)
    elif isinstance(prior, str):
        section = dataclasses.replace(section, prior=prior)
    elif prior is not None:
        if not hasattr(prior, "assign"):
            raise InputError(f"prior must be a rule of atmc.priors, as atmc.priors.gaussian(1.0), not {prior!r}")
        section, rule = dataclasses.replace(section, prior="custom"), prior
    elif guessed:
        ours = type(model).__name__ == "ResNetPP"
        section = TargetSection(prior="resnetpp" if ours else "gaussian")
    noise = default_noise(model, train) if train.labels.is_floating_point() else ""
    section = with_likelihood(section, likelihood, train.labels, noise)
    if section.likelihood == "input-noise" != noise:
        raise InputError(NO_PLACE)
    if prior is None and guessed and section.likelihood in STANDARDISED:
        section = dataclasses.replace(section, prior="gaussian-fan-in")  # outputs of the targets' size, which is 1
    if guessed and section.prior == "gaussian" and _for_classes(section):
        heat = settings.sampler.temperature if temperature is None else temperature
        scale = scale_at(heat, wide=True) if 0.0 < heat < 1.0 else None
        section = dataclasses.replace(section, prior=NARROW, prior_scale=scale)
    return section, rule


def _for_classes(section: TargetSection) -> bool:
    if section.likelihood == "custom":
        return bool(section.likelihood_options["task"] == "classification")
    return LIKELIHOODS[section.likelihood].task == "classification"
