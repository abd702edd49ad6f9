"""Keys that nobody would read: set to something, while the rest of the recipe leaves them without effect.

Ignoring them would be the worst answer: a person who sets `sampler.thermostat = "scalar"` with ATMC and sees no
difference has learned something that is not true. Only values other than the default count, since a run's own resolved
recipe has every key; and nothing about the machine (`run`, `data.workers`) counts, since a recipe may travel.
"""

from collections.abc import Iterator
from typing import Any

from atmc.common.suggest import did_you_mean
from atmc.recipe.settings import Recipe, flat, sampler_class

_DEFAULTS = flat(Recipe())

# Options of a sampler or network that have a key of their own, or that follow from the rest of the run.
_OWN_KEY = {
    "sampler": "lr temperature mass friction speed_limit inertia thermostat thermostat_init momentum_init integrator "
    "preconditioner noise_rank noise_kronecker noise_examples",
    "model": "depth width norm",
}
_GIVEN = {
    "sampler": {
        "params": "the network's parameters",
        "seed": "made from the recipe's seed, another for each chain",
        "reference_lr": "sampler.lr, unless sampler.thermostat_follows_step is off",
        "reference_temperature": "sampler.temperature",
    },
    "model": dict.fromkeys(("classes", "in_channels", "in_features", "image_size"), "taken from the data"),
}


# Settings that belong to one kind of something, by the key that names the kind.
_OF_KIND = {
    "schedule.kind": "cycle_epochs cycle_warmup_epochs samples_per_cycle sample_gap_epochs hold_fraction "
    "milestones gamma lr_floor",
    "schedule.temperature_schedule": "temperature_ramp_epochs explore_fraction temperature_peak",
}


# Settings that mean nothing at T = 0, where samplers are SGD with momentum.
_OF_HEAT = (
    "schedule.temperature_schedule",
    *(f"schedule.{name}" for name in _OF_KIND["schedule.temperature_schedule"].split()),
)


def left_behind(recipe: Recipe, before: dict[str, Any], given: set[str]) -> list[str]:
    """Keys that only a kind of schedule gave a meaning which is no longer named; or a temperature, and now it is 0.

    `before` has the nested values of the recipe before the keys `given` were set, by a person who cannot unset any.
    """
    now, idle = flat(recipe), idle_keys(recipe)
    found: list[str] = []
    for kind, names in _OF_KIND.items():
        section, _, name = kind.partition(".")
        old = before.get(section, {})
        if kind not in given or old.get(name, _DEFAULTS[kind]) == now[kind]:
            continue
        keys = [f"{section}.{inner}" for inner in names.split() if inner in old]
        found += [key for key in keys if key in idle and key not in given]
    was = before.get("sampler", {}).get("temperature", _DEFAULTS["sampler.temperature"])
    cooled = "sampler.temperature" in given and now["sampler.temperature"] == 0 != was
    if cooled and not now["schedule.sample_every_steps"]:  # with that, exploring says which of the samples are kept
        keys = [key for key in _OF_HEAT if key.split(".")[1] in before.get(key.split(".")[0], {})]
        found += [key for key in keys if key not in given and key not in found]
    return found


def idle_keys(recipe: Recipe) -> dict[str, str]:
    """The keys that are set without effect, each with the line that says so."""
    values = flat(recipe)
    found: dict[str, str] = {}
    for key, read, why, cure in _uses(recipe):
        value, default = values[key], _DEFAULTS[key]
        if not read and value != default and key not in found:
            usual = f" (it is {_said(default)} by default)" if isinstance(default, str | int | float) else ""
            cure = f", or {cure}" if cure else ""
            found[key] = f"{key} = {_said(value)} has no meaning with {why}: leave it out{usual}{cure}"
    return found


def _said(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def _uses(recipe: Recipe) -> Iterator[tuple[str, bool, str, str]]:
    """(key, whether it is read, what keeps it from being read, what to do instead)."""
    yield from _of_sampler(recipe)
    yield from _of_schedule(recipe)
    for key in ("data.crop_size", "data.crop_area"):
        resized = recipe.data.augment == "resized-crop-flip"
        yield key, resized, f'data.augment = "{recipe.data.augment}"', 'use "resized-crop-flip"'
    target, model = recipe.target, recipe.model
    yield "target.prior_scale", target.prior != "none", 'target.prior = "none"', ""
    yield "model.norm", model.name != "mlp", 'model.name = "mlp", which has no normalisation', ""
    yield "model.norm", model.name != "resnet-frn", 'model.name = "resnet-frn", which always has FRN', ""
    for key in ("depth", "width", "norm", "options"):
        yield f"model.{key}", model.name != "custom", 'model.name = "custom", a network of your own', ""
    drawn = f'model.name = "{model.name}", whose chains all draw their first weights'
    yield "model.start", model.name == "custom", drawn, ""
    yield "model.only", model.name == "custom", f'model.name = "{model.name}", of which all is sampled', ""


def _of_sampler(recipe: Recipe) -> Iterator[tuple[str, bool, str, str]]:
    from atmc.samplers import SAMPLERS

    section = recipe.sampler
    name = section.name
    with_name = f'sampler.name = "{name}"'
    kind, sgd = sampler_class(name), name == "sgd"
    kinetic, thermostat = kind is not None and kind.has_momentum, kind is not None and kind.has_thermostat
    for key in (
        "speed",
        "max_speed",
        "mass",
        "friction",
        "friction_follows_step",
        "speed_limit",
        "mass_from",
        "momentum_init",
        "integrator",
        "noise_rank",
        "noise_examples",
    ):
        yield f"sampler.{key}", kinetic, with_name, ""
    yield "sampler.noise_kronecker", section.noise_rank > 0, "sampler.noise_rank = 0", "set sampler.noise_rank"
    yield "sampler.momentum", kinetic or sgd, with_name, ""
    limited = section.max_speed is not None or section.speed_limit is not None
    frozen = section.integrator.endswith("-frozen")
    yield "sampler.integrator", limited or not frozen, "no speed limit", "set sampler.max_speed"

    for key in ("inertia", "thermostat_init", "thermostat_from_noise", "thermostat_follows_step"):
        yield f"sampler.{key}", thermostat, f"{with_name}, which has no thermostat", ""
    for own, other in SAMPLERS.items():
        for key in other.recipe_keys:
            yield f"sampler.{key}", kind is not None and key in kind.recipe_keys, with_name, f'use "{own}"'
    looks = section.thermostat_from_noise or section.mass_from != "none"
    yield "sampler.mass_looks", section.mass_from != "none", 'sampler.mass_from = "none"', 'use "tensor" or "element"'
    yield "sampler.look_batches", looks, "nothing to look for", "set sampler.mass_from or sampler.thermostat_from_noise"
    yield "sampler.weight_decay", sgd, with_name, "say it as target.prior and target.prior_scale"
    yield "sampler.nesterov", sgd, with_name, ""
    for key in ("sampler.temperature", "sampler.options", "schedule.temperature_schedule"):
        yield key, not sgd, with_name, ""


def _of_schedule(recipe: Recipe) -> Iterator[tuple[str, bool, str, str]]:
    plan = recipe.schedule
    kind = f'schedule.kind = "{plan.kind}"'
    for key in ("cycle_epochs", "cycle_warmup_epochs", "samples_per_cycle", "sample_gap_epochs"):
        yield f"schedule.{key}", plan.kind == "cyclic", kind, 'use "cyclic"'
    yield (
        "schedule.sample_gap_epochs",
        plan.samples_per_cycle > 1,
        "one sample a cycle",
        "set schedule.samples_per_cycle",
    )
    yield "schedule.hold_fraction", plan.kind in ("cyclic", "cosine"), kind, 'use "cyclic" or "cosine"'
    for key in ("milestones", "gamma"):
        yield f"schedule.{key}", plan.kind == "step", kind, 'use "step"'
    yield "schedule.lr_floor", plan.kind != "constant", kind, ""
    several = plan.kind == "cyclic" or plan.sample_every_steps is not None
    yield "schedule.burn_in_epochs", several, f"{kind} and one sample at the end", "set schedule.sample_every_steps"
    course = f'schedule.temperature_schedule = "{plan.temperature_schedule}"'
    ramp, explore = plan.temperature_schedule == "ramp", plan.temperature_schedule == "explore"
    yield "schedule.temperature_ramp_epochs", ramp, course, 'use "ramp"'
    yield "schedule.explore_fraction", explore, course, 'use "explore"'
    yield "schedule.temperature_peak", plan.temperature_schedule == "anneal", course, 'use "anneal"'
    yield "schedule.temperature_schedule", recipe.sampler.temperature != 0, "sampler.temperature = 0", ""
    sgd = recipe.sampler.name == "sgd"
    yield "schedule.warm_start_epochs", not sgd, 'sampler.name = "sgd", which is the warm start', ""
    for key in ("warm_start_lr", "warm_start_momentum", "warm_start_optimizer"):
        cure = "set schedule.warm_start_epochs"
        yield f"schedule.{key}", plan.warm_start_epochs > 0, "schedule.warm_start_epochs = 0", cure


def option_complaints(recipe: Recipe) -> Iterator[str]:
    """What is wrong with `sampler.options`: settings that have a key of their own, and names that do not exist."""
    for name in recipe.model.options:
        yield from _taken("model", name)
    for name in recipe.sampler.options:
        yield from _taken("sampler", name)
    if not recipe.sampler.options or recipe.sampler.name == "sgd":
        return
    known = sampler_options(recipe.sampler.name)
    for name in recipe.sampler.options:
        if name not in known:
            yield unknown_option("sampler.options", name, known)
        elif name in ("decay", "epsilon") and recipe.sampler.preconditioner is None:
            yield f'sampler.options.{name} has no meaning without sampler.preconditioner = "rmsprop"'


def _taken(section: str, name: str) -> Iterator[str]:
    if name in _OWN_KEY[section].split():
        yield f"{section}.options.{name} is not an option: say it as {section}.{name}"
    elif name in _GIVEN[section]:
        yield f"{section}.options.{name} cannot be set: it is {_GIVEN[section][name]}"


def unknown_option(section: str, name: str, known: list[str]) -> str:
    """The line for an option that does not exist."""
    hint = did_you_mean(name, known).replace("did you mean ", f"did you mean {section}.")
    return f"unknown key {section}.{name}; {hint}"


def sampler_options(name: str) -> list[str]:
    """The arguments of a sampler that have no key of their own in a recipe."""
    import inspect

    from atmc.samplers import SAMPLERS
    from atmc.samplers.sampler import Options

    arguments = [*inspect.signature(SAMPLERS[name]).parameters, *Options.__annotations__]
    return [argument for argument in arguments if argument not in taken("sampler") | {"options"}]


def taken(section: str) -> set[str]:
    """Arguments of a sampler or network that are no options: they have keys of their own, or follow from the run."""
    return {*_OWN_KEY[section].split(), *_GIVEN[section]}
