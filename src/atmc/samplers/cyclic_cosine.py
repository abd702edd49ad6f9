"""The paper's cyclic step size as a `torch.optim` scheduler, with cycles that explore before they sample."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from atmc.samplers.checks import plain_number

Number = TypeVar("Number", float, Tensor)  # of one step, or of every step of a run


class CyclicCosine(LRScheduler):
    """h_t = (h₀/2) [1 + cos(π · (t mod n)/n)]: from h₀ down to almost 0 in n steps, then back to h₀ at once.

    Take a sample at the end of a cycle, where the step and its discretisation error are smallest. Call `step()` after
    each sampler step. Works with any optimizer; a group that is added later has its own lr for h₀.

    Args:
        cycle: length n of a cycle, in steps; or in epochs if `steps_per_epoch` is given (neither need be whole).
        steps_per_epoch: steps in an epoch, to give `cycle` in epochs.
        explore: for this first part of each cycle, in [0, 1), T is 0 and the sampler is SGD with momentum: large steps
            carry the chain to another mode, and the rest of the cycle samples it. SGD, not the posterior, then chooses
            the modes. On CIFAR-10 at low T nothing lowered the NLL as much (docs/cifar10.md).
        hold: for this first part of each cycle, in [0, 1), h stays at h₀; the cosine takes the rest.
        warmup: over this first part of each cycle, in [0, 1), h rises from almost 0. Starting at h₀ has thrown chains
            out of narrow modes.
        floor: h is at least this share of h₀, in [0, 1], except in the warm-up. With `explore` until the floor is
            reached, sampling starts after annealing, with steps that still mix: a cycle then gives several samples.

    The CIFAR-10 rows that sample after annealing have cycles of 50 epochs with `explore=0.94, hold=0.6, warmup=0.06,
    floor=0.05`, and a sample after each of the last three epochs of a cycle.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cycle: float,
        steps_per_epoch: float | None = None,
        last_epoch: int = -1,
        *,
        explore: float = 0.0,
        hold: float = 0.0,
        warmup: float = 0.0,
        floor: float = 0.0,
    ) -> None:
        steps = plain_number("cycle", cycle, "a finite and positive number", _positive)
        if steps_per_epoch is not None:
            steps *= plain_number("steps_per_epoch", steps_per_epoch, "a finite and positive number", _positive)
        if not 1.0 <= steps < math.inf:
            raise ValueError(f"a cycle must last at least one step, not {steps}")
        # 0.07 epochs of 100 steps are 7 steps, whatever floating point makes of it.
        self.cycle_steps = round(steps) if math.isclose(steps, round(steps), rel_tol=1e-9) else steps
        self.explore, self.hold, self.warmup = (
            plain_number(name, value, "a number in [0, 1)", lambda v: 0.0 <= v < 1.0)
            for name, value in (("explore", explore), ("hold", hold), ("warmup", warmup))
        )
        self.floor = plain_number("floor", floor, "a number in [0, 1]", lambda v: 0.0 <= v <= 1.0)
        self._note_temperatures(optimizer)
        super().__init__(optimizer, last_epoch)

    def _note_temperatures(self, optimizer: Optimizer) -> None:
        """Keep the temperature that each group returns to, where cycles explore."""
        for number, group in enumerate(optimizer.param_groups if self.explore else []):
            if "temperature" not in group:
                raise ValueError(f"explore = {self.explore:g} needs a sampler: group {number} has no temperature")
            if "initial_temperature" not in group:  # a tensor is read once: that waits for its device
                group["initial_temperature"] = float(group["temperature"])

    def get_lr(self) -> list[float | Tensor]:
        for group in self.optimizer.param_groups[len(self.base_lrs) :]:  # added since
            lr = group["lr"]
            group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr)
            self.base_lrs.append(group["initial_lr"])
        taken = math.fmod(self.last_epoch, self.cycle_steps)
        factor = max(self.floor, cosine_fall(taken / self.cycle_steps, self.hold))
        if self.warmup:
            factor *= warmup_rise(taken, self.warmup * self.cycle_steps)
        return [base * factor for base in self.base_lrs]  # a tensor stays one: nothing waits for the device

    def step(self, epoch: int | None = None) -> None:
        """Set the step size, and the temperature where cycles explore, for the next step."""
        super().step(epoch)
        self._set_temperatures()

    def _set_temperatures(self) -> None:
        self._note_temperatures(self.optimizer)
        for group in self.optimizer.param_groups if self.explore else []:
            _put(group, "temperature", 0.0 if self.exploring else group["initial_temperature"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state, with its step size and temperature.

        A new scheduler has set those of a cycle's first step; values that something else has set since are kept.
        """
        groups = self.optimizer.param_groups
        own = len(groups) == len(self._last_lr) and self.last_epoch == 0
        own = own and all(float(g["lr"]) == float(lr) for g, lr in zip(groups, self._last_lr, strict=True))
        super().load_state_dict(state_dict)
        if own:
            for group, lr in zip(groups, self.get_lr(), strict=False):  # a group may still be added
                _put(group, "lr", lr)
            self._set_temperatures()

    @property
    def exploring(self) -> bool:
        """Whether the next step is at temperature 0; before `step()`, whether the last one was."""
        return math.fmod(self.last_epoch, self.cycle_steps) / self.cycle_steps < self.explore

    @property
    def cycle(self) -> int:
        """How many cycles are complete."""
        return int(self.last_epoch // self.cycle_steps)

    def ends_cycle(self) -> bool:
        """Whether the next step begins a new cycle: the moment to take a sample."""
        return self.last_epoch > 0 and self.last_epoch % self.cycle_steps < 1.0


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    """Set a number of a group; a tensor stays where it is, since a captured graph reads it there."""
    if isinstance(group[key], Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def _positive(value: float) -> bool:
    return 0.0 < value < math.inf


def cosine_fall(phase: Number, hold: float = 0.0) -> Number:
    """Half a cosine from 1 down to 0 over the phases from `hold` to 1, and 1 before: the factor on the step size."""
    fallen = (phase - hold) / (1.0 - hold)
    if isinstance(fallen, Tensor):
        return 0.5 * (1.0 + torch.cos(math.pi * fallen.clamp(min=0.0)))
    return 0.5 * (1.0 + math.cos(math.pi * max(0.0, fallen)))


def warmup_rise(taken: Number, steps: float) -> Number:
    """The factor on the step size in a warm-up of so many steps, after `taken` of them: a line up to 1."""
    risen = (taken + 1.0) / steps
    return risen.clamp(max=1.0) if isinstance(risen, Tensor) else min(1.0, risen)
