"""The paper's cyclic step size, as a `torch.optim` scheduler."""

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
    """

    def __init__(
        self, optimizer: Optimizer, cycle: float, steps_per_epoch: float | None = None, last_epoch: int = -1
    ) -> None:
        steps = plain_number("cycle", cycle, "a finite and positive number", _positive)
        if steps_per_epoch is not None:
            steps *= plain_number("steps_per_epoch", steps_per_epoch, "a finite and positive number", _positive)
        if not 1.0 <= steps < math.inf:
            raise ValueError(f"a cycle must last at least one step, not {steps}")
        # 0.07 epochs of 100 steps are 7 steps, whatever floating point makes of it.
        self.cycle_steps = round(steps) if math.isclose(steps, round(steps), rel_tol=1e-9) else steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        factor = cyclic_cosine(self.last_epoch, self.cycle_steps)
        return [base * factor for base in self.base_lrs]  # a tensor stays one: nothing waits for the device

    @property
    def cycle(self) -> int:
        """How many cycles are complete."""
        return int(self.last_epoch // self.cycle_steps)

    def ends_cycle(self) -> bool:
        """Whether the next step begins a new cycle: the moment to take a sample."""
        return self.last_epoch > 0 and self.last_epoch % self.cycle_steps < 1.0


def _positive(value: float) -> bool:
    return 0.0 < value < math.inf


def cyclic_cosine(step: int, cycle: float) -> float:
    """The factor on the step size at a step of a cycle of the given length, in (0, 1]."""
    return 0.5 * (1.0 + math.cos(math.pi * math.fmod(step, cycle) / cycle))
