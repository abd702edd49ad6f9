"""Step size, temperature and sampling times of a whole run, as tables over its steps.

Tables, because then the schedule costs the host nothing: the device looks the numbers up by its own step counter, and
hundreds of captured steps can be enqueued without a word in between. A million steps are 4 MB.

An epoch is rarely a whole number of steps. All times given in epochs are rounded up to the first step by which that
many epochs have been seen, one by one, so that rounding never adds up.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.recipe.settings import Recipe, ScheduleSection
from atmc.samplers.cyclic_cosine import cosine_fall, warmup_rise

StepsFor = Callable[[float], int]


@dataclass(frozen=True)
class Schedule:
    """`lr[t]` and `temperature[t]` for step t, and the numbers of steps after which a sample is taken."""

    lr: Tensor  # float32 [steps], on the CPU
    temperature: Tensor  # float32 [steps]
    warm_steps: int  # the first steps, made by SGD
    sample_after: tuple[int, ...]  # rising; k means: once k steps are done
    cycle_ends: tuple[int, ...]  # rising, the last is the last step; one only where nothing cycles
    steps_per_epoch: float
    look_again: tuple[int, ...] = ()  # rising: where masses are measured once more, before the step of that number

    @property
    def steps(self) -> int:
        return len(self.lr)

    def epoch(self, done: int) -> float:
        """Epochs of data seen after `done` steps."""
        return done / self.steps_per_epoch

    def cycle(self, done: int) -> int:
        """The cycle, counted from 0, in which step `done` falls."""
        return min(bisect.bisect_right(self.cycle_ends, done), len(self.cycle_ends) - 1)

    def next_stop(self, done: int) -> int:
        """The first sampling time, end of a cycle, measurement or change of phase after `done` steps, or the end."""
        stops = [self.steps]
        for times in (self.sample_after, self.cycle_ends, self.look_again):
            at = bisect.bisect_right(times, done)
            stops += times[at : at + 1]
        if done < self.warm_steps:
            stops.append(self.warm_steps)
        return min(stops)


def steps_for(num_data: int, batch_size: int) -> StepsFor:
    """The number of steps after which so many epochs have been seen in full."""
    return lambda epochs: math.ceil(epochs * num_data / batch_size - 1e-9)


def make_schedule(recipe: Recipe, num_data: int) -> Schedule:
    """The tables of `recipe` for a training set of `num_data` examples."""
    plan = recipe.schedule
    after = steps_for(num_data, recipe.data.batch_size)
    # Everything is laid out on the stream of steps from the start, warm start included.
    warm = after(plan.warm_start_epochs)

    def since(epochs: float) -> int:
        """Steps from the end of the warm start to `epochs` epochs after it."""
        return after(plan.warm_start_epochs + epochs) - warm

    steps = since(plan.epochs)
    ends = _cycle_ends(plan, steps, since)
    factor = _factor(plan, steps, ends, since)
    lr = factor * recipe.sampler.lr
    temperature = _temperature(plan, factor, ends, since) * recipe.sampler.temperature
    looks = recipe.sampler.mass_looks - 1
    burn_in = since(plan.burn_in_epochs)
    # The warm start descends along one cosine, so that the sampler takes over from a network at rest.
    descent = 0.5 * (1 + torch.cos(math.pi * torch.arange(warm, dtype=torch.float64) / max(1, warm)))
    return Schedule(
        lr=torch.cat([descent * plan.warm_start_lr, lr]).float(),
        temperature=torch.cat([torch.zeros(warm, dtype=torch.float64), temperature]).float(),
        warm_steps=warm,
        sample_after=tuple(warm + k for k in _sampling_times(plan, steps, ends, since)),
        cycle_ends=tuple(warm + k for k in ends),
        steps_per_epoch=num_data / recipe.data.batch_size,
        look_again=tuple(sorted({warm + max(1, burn_in * k // looks) for k in range(1, looks + 1)})),
    )


def _cycle_ends(plan: ScheduleSection, steps: int, since: StepsFor) -> list[int]:
    if plan.kind != "cyclic" or not plan.cycle_epochs:
        return [steps]
    ends = [since(k * plan.cycle_epochs) for k in range(1, math.floor(plan.epochs / plan.cycle_epochs + 1e-9) + 1)]
    return ends if ends[-1] == steps else [*ends, steps]  # a last cycle may be cut short by the run's end


def _last_is_whole(plan: ScheduleSection) -> bool:
    cycles = plan.epochs / (plan.cycle_epochs or plan.epochs)
    return abs(cycles - round(cycles)) < 1e-9


def _phase(plan: ScheduleSection, steps: int, ends: list[int], since: StepsFor) -> Tensor:
    """For each step how far its cycle has come, in [0, 1)."""
    assert plan.cycle_epochs
    starts = torch.tensor([0, *ends[:-1]], dtype=torch.float64)
    length = torch.tensor(ends, dtype=torch.float64) - starts
    if not _last_is_whole(plan):  # the one cut short goes at the pace of a whole one
        length[-1] = since(plan.cycle_epochs)
    t = torch.arange(steps, dtype=torch.float64)
    which = torch.bucketize(t, torch.tensor(ends, dtype=torch.float64), right=True)
    return (t - starts[which]) / length[which]


def _explores(plan: ScheduleSection, steps: int, ends: list[int], since: StepsFor) -> Tensor:
    """For each step whether it belongs to the part of a cycle that explores, at T = 0, and gives no samples."""
    if plan.temperature_schedule != "explore":
        return torch.zeros(steps, dtype=torch.bool)
    return _phase(plan, steps, ends, since) < plan.explore_fraction


def _factor(plan: ScheduleSection, steps: int, ends: list[int], since: StepsFor) -> Tensor:
    t = torch.arange(steps, dtype=torch.float64)
    if plan.kind == "cyclic":
        factor = cosine_fall(_phase(plan, steps, ends, since), plan.hold_fraction)  # Sect. 5 of the paper
    elif plan.kind == "cosine":
        factor = cosine_fall(t / steps, plan.hold_fraction)
    elif plan.kind == "step":
        passed = sum(((t >= since(milestone)).double() for milestone in plan.milestones), torch.zeros_like(t))
        factor = torch.full_like(t, plan.gamma) ** passed
    else:
        factor = torch.ones_like(t)
    factor = factor.clamp(min=plan.lr_floor)
    if plan.warmup_epochs:
        factor = factor * warmup_rise(t, since(plan.warmup_epochs))
    if plan.cycle_warmup_epochs:
        # A cycle ends in a place as sharp as its last, small steps allow, and thermostats that do not follow the step
        # size have unlearned the noise of large ones. Full steps at once have thrown out chains that are otherwise
        # stable.
        starts = torch.tensor([0, *ends[:-1]], dtype=torch.float64)
        which = torch.bucketize(t, torch.tensor(ends, dtype=torch.float64), right=True)
        factor = factor * warmup_rise(t - starts[which], since(plan.cycle_warmup_epochs))
    return factor


def _temperature(plan: ScheduleSection, factor: Tensor, ends: list[int], since: StepsFor) -> Tensor:
    """For each step the temperature as a multiple of the recipe's; `factor` is that of the step size."""
    steps = len(factor)
    t = torch.arange(steps, dtype=torch.float64)
    if plan.temperature_schedule == "ramp":
        return (t / since(plan.temperature_ramp_epochs)).clamp(max=1.0)
    if plan.temperature_schedule == "anneal":
        # Gradient noise heats in proportion to the step size. A temperature that goes with it asks no friction against
        # that heat while steps are large, so the chain crosses from mode to mode, and is T where samples are taken.
        return (plan.temperature_peak * factor).clamp(min=1.0)
    return (~_explores(plan, steps, ends, since)).double()


def _of_cycle(plan: ScheduleSection, end: int, since: StepsFor) -> list[int]:
    """Sampling times of the cycle that ends at step `end`, counted back from there: gaps are whole, and so it ends."""
    return [end - since(k * plan.sample_gap_epochs) for k in reversed(range(plan.samples_per_cycle))]


def _sampling_times(plan: ScheduleSection, steps: int, ends: list[int], since: StepsFor) -> list[int]:
    burn_in = since(plan.burn_in_epochs)
    if plan.sample_every_steps:
        explores = _explores(plan, steps, ends, since)
        every = range(burn_in + plan.sample_every_steps, steps + 1, plan.sample_every_steps)
        times = [time for time in every if not explores[time - 1]]
        if not times:
            raise InputError(
                f"schedule.sample_every_steps = {plan.sample_every_steps} never comes round in the {steps - burn_in} "
                "steps after schedule.burn_in_epochs, at a temperature above 0: no sample would be taken"
            )
        return times
    if plan.kind == "cyclic":
        # "Collecting after 150 epochs" with cycles of 50 means that the cycle ending at 200 is the first to give one.
        whole = ends if _last_is_whole(plan) else ends[:-1]
        times = [time for end in whole for time in _of_cycle(plan, end, since) if time > burn_in]
        explores = _explores(plan, steps, ends, since)
        if early := [time for time in times if explores[time - 1]]:  # by rounding, where an epoch is a step or two
            raise InputError(
                f"schedule.samples_per_cycle = {plan.samples_per_cycle} would take a sample at step {early[0]}, where "
                f"schedule.explore_fraction = {plan.explore_fraction:g} still explores: take fewer, or explore less"
            )
        if not times:
            raise InputError(
                f"schedule.burn_in_epochs = {plan.burn_in_epochs} leaves no whole cycle of schedule.cycle_epochs = "
                f"{plan.cycle_epochs} within schedule.epochs = {plan.epochs}: no sample would be taken"
            )
        return times
    return [steps]
