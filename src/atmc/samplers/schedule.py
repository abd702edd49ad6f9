"""The paper's cyclic step size, and cycles that explore before they sample, as a `torch.optim` scheduler."""

from __future__ import annotations

import math

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .checks import plain_number


class CyclicCosine(LRScheduler):
    """h_t = (h₀/2) [1 + cos(π · (t mod n)/n)]: from h₀ down to almost 0 in n steps, then back to h₀ at once.

    Take a sample where a cycle ends: there the step, and with it every discretisation error, is smallest. Call `step()`
    after each sampler step. Works with any optimizer.

    Args:
        cycle: length n of a cycle, in steps; or in epochs if `steps_per_epoch` is given (neither need be whole).
        steps_per_epoch: steps in an epoch, to give `cycle` in epochs.
        explore: for this first part of each cycle, in [0, 1), the temperature is 0 and the sampler SGD with momentum:
            large steps carry the chain to another place, and the rest of the cycle samples there. On CIFAR-10 at a low
            temperature nothing lowered the NLL as much (docs/cifar10.md); which places are visited is then the
            optimiser's choice.
        hold: for this first part of each cycle, in [0, 1), h stays at h₀; the cosine takes the rest of the cycle.
        warmup: over this first part of each cycle, in [0, 1), h rises from almost 0 instead of starting at h₀, which
            has thrown chains out of the narrow places that small steps had led them to.
        floor: h does not fall below this share of h₀, in [0, 1], other than in the warm-up. With `explore` until it is
            reached, the sampler comes on where SGD has settled, and with steps that can still take it somewhere: the
            last part of a cycle then gives several samples.

    The CIFAR-10 rows *SGD settled first* of this project have cycles of 50 epochs with `explore=0.94, hold=0.6,
    warmup=0.06, floor=0.05`, and a sample after each of the last three epochs of a cycle.
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
        if self.explore:
            for number, group in enumerate(optimizer.param_groups):
                if "temperature" not in group:
                    raise ValueError(f"explore = {explore:g} needs a sampler: group {number} has no temperature")
                group.setdefault("initial_temperature", float(group["temperature"]))
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        factor = cyclic_cosine(self.last_epoch, self.cycle_steps, self.hold, self.warmup, self.floor)
        return [base * factor for base in self.base_lrs]  # a tensor stays one: nothing waits for the device

    def step(self, epoch: int | None = None) -> None:
        """Set the step size, and the temperature where cycles explore, for the next step."""
        super().step(epoch)
        if not self.explore:
            return
        for group in self.optimizer.param_groups:
            value = 0.0 if self.exploring else group["initial_temperature"]
            if isinstance(group["temperature"], Tensor):
                group["temperature"].fill_(value)
            else:
                group["temperature"] = value

    @property
    def exploring(self) -> bool:
        """Whether the step that comes is at temperature 0. Asked before `step()`, it says so of the step just made."""
        return math.fmod(self.last_epoch, self.cycle_steps) / self.cycle_steps < self.explore

    @property
    def cycle(self) -> int:
        """How many cycles are complete."""
        return int(self.last_epoch // self.cycle_steps)

    def ends_cycle(self) -> bool:
        """Whether the next step begins a new cycle: the moment to take a sample."""
        return self.last_epoch > 0 and self.last_epoch % self.cycle_steps < 1.0


def _positive(value: float) -> bool:
    return 0.0 < value < math.inf


def cyclic_cosine(step: int, cycle: float, hold: float = 0.0, warmup: float = 0.0, floor: float = 0.0) -> float:
    """The factor on the step size at a step of a cycle of the given length, in (0, 1]."""
    taken = math.fmod(step, cycle)
    fallen = max(0.0, taken / cycle - hold) / (1.0 - hold)
    risen = min(1.0, (taken + 1.0) / (warmup * cycle)) if warmup else 1.0
    return max(floor, 0.5 * (1.0 + math.cos(math.pi * fallen))) * risen
