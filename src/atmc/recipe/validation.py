"""Values and combinations that cannot be run, each said in one line that begins with the key.

These need no data; what depends on them (a batch larger than the training set) is checked where they are loaded. Keys
that would be read by nobody are in `unused_keys`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from atmc.common.errors import InputError
from atmc.recipe.error_messages import either, must_be_one_of
from atmc.recipe.settings import Recipe, ScheduleSection, flat, sampler_class
from atmc.recipe.unused_keys import idle_keys, option_complaints

SMALL, LARGE = 1e-30, 1e30  # float32 has room for squares of neither, but for the numbers themselves

# key → (what must hold of a value that is set, the same in words)
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda v: 0 <= v < 2**62, "from 0 to 2^62"),
    "chains": (lambda v: 1 <= v <= 10_000, "from 1 to 10,000"),
    "data.batch_size": (lambda v: v >= 1, "at least 1"),
    "data.crop_size": (lambda v: 1 <= v <= 100_000, "from 1 to 100,000"),
    "data.crop_area": (lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "data.validation": (lambda v: v >= 0, "at least 0"),
    "data.workers": (lambda v: 0 <= v <= 1024, "from 0 to 1024"),
    "model.depth": (lambda v: 1 <= v <= 2000, "from 1 to 2000"),
    "model.width": (lambda v: 1 <= v <= 100_000, "from 1 to 100,000"),
    "target.prior_scale": (lambda v: v > 0, "above 0"),
    "sampler.lr": (lambda v: 0 < v < math.inf, "above 0 and finite"),
    "sampler.speed": (lambda v: 0 < v < math.inf, "above 0 and finite"),
    "sampler.max_speed": (lambda v: v > 0, "above 0"),
    "sampler.momentum": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "sampler.mass": (lambda v: 0 < v < math.inf, "above 0 and finite"),
    "sampler.friction": (lambda v: 0 <= v < math.inf, "at least 0 and finite"),
    "sampler.speed_limit": (lambda v: v > 0, "above 0"),
    "sampler.temperature": (lambda v: 0 <= v < math.inf, "at least 0 and finite"),
    "sampler.noise_rank": (lambda v: 0 <= v <= 512, "from 0 to 512"),
    "sampler.inertia": (lambda v: 0 < v < math.inf, "above 0 and finite"),
    # Each is recorded in a CUDA graph of its own, of which a sampler has eight.
    "sampler.mass_looks": (lambda v: 1 <= v <= 6, "from 1 to 6"),
    "sampler.look_batches": (lambda v: 2 <= v <= 1_000_000, "from 2 to 1,000,000"),
    "sampler.weight_decay": (lambda v: v >= 0, "at least 0"),
    "schedule.epochs": (lambda v: 1 <= v <= 10_000_000, "from 1 to 10,000,000"),
    "schedule.cycle_epochs": (lambda v: v >= 1, "at least 1"),
    "schedule.burn_in_epochs": (lambda v: v >= 0, "at least 0"),
    "schedule.sample_every_steps": (lambda v: v >= 1, "at least 1"),
    "schedule.samples_per_cycle": (lambda v: v >= 1, "at least 1"),
    "schedule.sample_gap_epochs": (lambda v: v >= 1, "at least 1"),
    "schedule.gamma": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "schedule.lr_floor": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "schedule.warmup_epochs": (lambda v: v >= 0, "at least 0"),
    "schedule.cycle_warmup_epochs": (lambda v: v >= 0, "at least 0"),
    "schedule.hold_fraction": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "schedule.warm_start_epochs": (lambda v: 0 <= v <= 10_000_000, "from 0 to 10,000,000"),
    "schedule.warm_start_lr": (lambda v: 0 < v < math.inf, "above 0 and finite"),
    "schedule.warm_start_momentum": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "schedule.temperature_ramp_epochs": (lambda v: v >= 0, "at least 0"),
    "schedule.explore_fraction": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "schedule.temperature_peak": (lambda v: 1 <= v < math.inf, "at least 1 and finite"),
    "run.threads": (lambda v: 1 <= v <= 256, "from 1 to 256"),
    "run.checkpoint_minutes": (lambda v: v > 0, "above 0"),
    "run.log_steps": (lambda v: 0 <= v <= 10_000_000, "from 0 to 10,000,000"),
    "run.max_rollbacks": (lambda v: v >= 0, "at least 0"),
    "run.rollback_factor": (lambda v: 0 < v < 1, "in (0, 1)"),
    "run.explode": (lambda v: v > 1, "above 1"),
    "run.worst_sample": (lambda v: v >= 1, "at least 1"),
    "run.evaluate_batch": (lambda v: v >= 1, "at least 1"),
}


def check_recipe(recipe: Recipe) -> Recipe:
    """`recipe` itself, or `InputError` with the first thing that is wrong with it."""
    for line in _complaints(recipe):
        raise InputError(line)
    return recipe


def _names() -> dict[str, list[str]]:
    """The keys that name something registered, and the names there are."""
    from atmc.samplers import SAMPLERS
    from atmc.target.likelihoods import LIKELIHOODS
    from atmc.target.priors import RULES

    return {
        "sampler.name": [*SAMPLERS, "sgd"],
        "target.prior": [*RULES, "custom", "none"],
        "target.likelihood": [*LIKELIHOODS, "custom"],
    }


def _complaints(recipe: Recipe) -> Iterator[str]:
    values = flat(recipe)
    for key, known in _names().items():
        if values[key] not in known:
            yield must_be_one_of(key, values[key], known)
    for key, (holds, words) in _RANGES.items():
        value = values[key]
        if value is not None and not holds(value):  # NaN holds for nothing, so it ends here too
            yield f"{key} = {value!r} must be {words}"
    for key, value in values.items():
        if isinstance(value, float) and math.isfinite(value) and value != 0 and not SMALL <= abs(value) <= LARGE:
            yield f"{key} = {value!r} is beyond what a step can be computed with: from {SMALL:g} to {LARGE:g}"
    yield from idle_keys(recipe).values()
    yield from _schedule(recipe)
    yield from _draw(recipe)
    yield from _sampler(recipe)
    yield from option_complaints(recipe)
    yield from _rest(recipe)


def _schedule(recipe: Recipe) -> Iterator[str]:
    plan = recipe.schedule
    if plan.kind == "cyclic":
        if plan.cycle_epochs is None:
            yield 'schedule.cycle_epochs is not set, and schedule.kind = "cyclic" needs it'
        elif plan.cycle_epochs > plan.epochs:
            yield (
                f"schedule.cycle_epochs = {plan.cycle_epochs} is longer than the run "
                f"(schedule.epochs = {plan.epochs}): no cycle would end"
            )
    yield from _samples_of_cycle(plan)
    if plan.burn_in_epochs >= plan.epochs:
        yield (
            f"schedule.burn_in_epochs = {plan.burn_in_epochs} leaves nothing to sample of "
            f"schedule.epochs = {plan.epochs}"
        )
    if plan.kind == "step" and (
        not plan.milestones or sorted(set(plan.milestones)) != plan.milestones or plan.milestones[-1] >= plan.epochs
    ):
        yield (
            f"schedule.milestones = {plan.milestones} must be rising epochs below schedule.epochs = {plan.epochs} "
            'for schedule.kind = "step"'
        )
    if plan.warmup_epochs >= plan.epochs:
        yield f"schedule.warmup_epochs = {plan.warmup_epochs} is not shorter than schedule.epochs = {plan.epochs}"
    if plan.cycle_warmup_epochs >= (plan.cycle_epochs or math.inf):
        yield (
            f"schedule.cycle_warmup_epochs = {plan.cycle_warmup_epochs} is not shorter than schedule.cycle_epochs = "
            f"{plan.cycle_epochs}"
        )
    if plan.temperature_schedule == "ramp" and not 0 < plan.temperature_ramp_epochs <= plan.epochs:
        yield (
            f"schedule.temperature_ramp_epochs = {plan.temperature_ramp_epochs} must be from 1 to schedule.epochs = "
            f'{plan.epochs} for schedule.temperature_schedule = "ramp"'
        )
    if plan.temperature_schedule == "explore" and plan.kind != "cyclic":
        yield 'schedule.temperature_schedule = "explore" needs schedule.kind = "cyclic"'
    if plan.temperature_schedule == "explore" and plan.explore_fraction == 0:
        yield 'schedule.explore_fraction must be above 0 for schedule.temperature_schedule = "explore"'
    kind = sampler_class(recipe.sampler.name)
    thermostat = kind is not None and kind.has_thermostat and not recipe.sampler.thermostat_follows_step
    if plan.temperature_schedule == "explore" and thermostat:
        yield (
            'schedule.temperature_schedule = "explore" has T = 0, where the thermostats of '
            "sampler.thermostat_follows_step = false gather friction without end: leave that out, and they rest there"
        )
    if plan.temperature_schedule == "anneal" and plan.kind == "constant":
        yield 'schedule.temperature_schedule = "anneal" needs a step size that falls: schedule.kind = "cyclic"'
    if plan.temperature_schedule == "anneal" and plan.sample_every_steps:
        yield (
            f"schedule.sample_every_steps = {plan.sample_every_steps} would take samples at other temperatures than "
            'sampler.temperature with schedule.temperature_schedule = "anneal": leave it out, for one a cycle'
        )
    if plan.temperature_schedule == "anneal" and plan.temperature_peak == 1:
        yield 'schedule.temperature_peak must be above 1 for schedule.temperature_schedule = "anneal"'


def _samples_of_cycle(plan: ScheduleSection) -> Iterator[str]:
    """Several samples of a cycle have to lie in the part of it that samples."""
    before = (plan.samples_per_cycle - 1) * plan.sample_gap_epochs  # from the first of them to the cycle's end
    if plan.cycle_epochs is None or not before:
        return
    several = f"schedule.samples_per_cycle = {plan.samples_per_cycle}"
    if plan.sample_every_steps:
        yield f"{several} and schedule.sample_every_steps say the same thing twice: give one of them"
    if plan.temperature_schedule == "anneal":
        yield (
            f"{several} would take samples at other temperatures than sampler.temperature with "
            'schedule.temperature_schedule = "anneal": leave it out, for one a cycle'
        )
    bounds = {"of which there are no more": 0.0}
    if plan.cycle_warmup_epochs:
        warmup = f"and the first {plan.cycle_warmup_epochs} warm up (schedule.cycle_warmup_epochs)"
        bounds[warmup] = float(plan.cycle_warmup_epochs)
    if plan.temperature_schedule == "explore":
        explore = plan.explore_fraction * plan.cycle_epochs
        bounds[f"and the first {explore:g} explore (schedule.explore_fraction = {plan.explore_fraction:g})"] = explore
    what = max(bounds, key=lambda words: bounds[words])
    if plan.cycle_epochs - before <= bounds[what]:
        yield (
            f"{several} with schedule.sample_gap_epochs = {plan.sample_gap_epochs} begin {before} epochs before the "
            f"end of a cycle of {plan.cycle_epochs}, {what}: take fewer"
        )


def _draw(recipe: Recipe) -> Iterator[str]:
    """What examples drawn by importance do not go together with."""
    if recipe.data.draw == "auto":
        return
    importance = f'data.draw = "{recipe.data.draw}"'
    if recipe.data.augment != "none":
        yield (
            f'{importance} scores each example as it is, and data.augment = "{recipe.data.augment}" shows another one '
            'at every draw: use data.augment = "none", or data.draw = "auto"'
        )
    if recipe.sampler.name == "sgd":
        yield (
            f'{importance} is for samplers: with sampler.name = "sgd", BatchNorm would average over examples that are '
            'drawn more often than others: use data.draw = "auto"'
        )
    if recipe.run.parallel == "data":
        yield (
            f'{importance} keeps the scores of all examples in one process, and run.parallel = "data" gives each a '
            'part of every batch: use "chains", or data.draw = "auto"'
        )


def _sampler(recipe: Recipe) -> Iterator[str]:
    sampler, plan = recipe.sampler, recipe.schedule
    if sampler.noise_examples and sampler.noise_rank:
        yield "sampler.noise_examples is friction for all of the noise: use sampler.noise_rank = 0 with it"
    if sampler.noise_examples and recipe.run.parallel == "data":
        yield (
            'sampler.noise_examples needs all examples of a batch in one process, and run.parallel = "data" gives each '
            'a part: use "chains"'
        )
    if sampler.mass_looks > 1 and not plan.burn_in_epochs:
        yield (
            f"sampler.mass_looks = {sampler.mass_looks} measures masses until burn-in ends, and "
            "schedule.burn_in_epochs = 0: give it some epochs"
        )
    speeds = [key for key in ("speed", "max_speed") if getattr(sampler, key) is not None]
    direct = [key for key in ("mass", "friction", "speed_limit") if getattr(sampler, key) is not None]
    if speeds and direct:
        yield f"sampler.{direct[0]} and sampler.{speeds[0]} say the same thing twice: give speeds or mass, not both"
    if sampler.max_speed is not None and sampler.speed is None:
        yield "sampler.max_speed needs sampler.speed beside it"
    if sampler.name == "sgd":
        if sampler.momentum == 1:
            yield 'sampler.momentum = 1.0 must be below 1 with sampler.name = "sgd"'
        if sampler.nesterov and not sampler.momentum:
            yield "sampler.nesterov needs sampler.momentum above 0"
        return
    kind = sampler_class(sampler.name)
    if kind is not None and kind.has_momentum:
        if sampler.speed is not None and sampler.momentum is None:
            yield "sampler.momentum is not set, and sampler.speed needs it"
        if sampler.momentum is not None and sampler.speed is None:
            yield "sampler.momentum needs sampler.speed beside it; with sampler.mass give sampler.friction instead"
        if sampler.momentum == 0:
            # The sampler's friction is -log(momentum)/lr.
            yield (
                f'sampler.momentum = 0.0 must be above 0 with sampler.name = "{sampler.name}" (infinite friction): '
                'use "sgld" for a sampler without momentum'
            )
    if sampler.thermostat_from_noise and sampler.thermostat_init:
        yield "sampler.thermostat_init and sampler.thermostat_from_noise say the same thing twice: give one of them"
    if sampler.thermostat_from_noise and (sampler.temperature == 0 or plan.temperature_schedule != "constant"):
        # The equilibrium is h Var(G)/(2 m T) at the temperature where the sampler begins.
        yield (
            "sampler.thermostat_from_noise needs a temperature above 0 where the sampler begins: set "
            'sampler.temperature, and schedule.temperature_schedule = "constant"'
        )
    if recipe.target.prior == "none":
        yield f'target.prior = "none" has no posterior to sample with sampler.name = "{sampler.name}"'
    if recipe.model.norm == "bn":
        from atmc.nn.registry import NORMS

        others = [norm for norm in NORMS.get(recipe.model.name, ()) if norm not in ("bn", "none")]
        yield (
            f'model.norm = "bn" cannot be sampled with sampler.name = "{sampler.name}" (BatchNorm makes the '
            f"likelihood depend on the batch): use {either(others or ['frn'])}"
        )


def _rest(recipe: Recipe) -> Iterator[str]:
    for split in recipe.run.evaluate:
        if split not in ("train", "validation", "test"):
            yield f'run.evaluate: "{split}" is not a split; use "train", "validation" or "test"'
        if split == "validation" and recipe.data.validation == 0:
            yield 'run.evaluate asks for "validation", and data.validation = 0 holds nothing out'
    if recipe.run.device not in ("auto", "cpu", "cuda") and not recipe.run.device.startswith("cuda:"):
        yield f'run.device = "{recipe.run.device}" must be auto, cpu, cuda or cuda:N'
    if recipe.run.parallel == "data" and recipe.chains > 1:
        yield f'run.parallel = "data" runs one chain over all processes, and chains = {recipe.chains}'
