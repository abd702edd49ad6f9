"""What is left of the law where a cycle ends, as a table for the documentation: `python -m tests.law.cycles`.

ATMC with the paper's step size and friction (h₀ = 0.001, momentum 0.9, T = 1) on harmonic directions with gradient
noise, in cosine cycles of 1,000 steps; the kinetic temperature, and the variance of each direction as a share of what
it should be, where cycles end. With the paper's thermostat, and with one that follows the step size. Last with noise
whose variance falls as the square of the step size, which none can follow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .harness import SEED, Chain, Settings, run
from .makers import real
from .schedules import Cycling

SQUARES = torch.tensor([0.0001, 0.01, 0.05, 0.3])  # (hω)² of the directions at the largest step
STEPS, CYCLES, ROWS = 1000, 6, 2000
H = 0.001
D = -math.log(0.9) / H


def cycle_ends(friction: float, spread: float, follows: bool, power: int = 0) -> list[float]:
    """Kinetic temperature and variances at the ends of six cycles, after six.

    `friction` is the equilibrium of ξ at the mean step, half of the largest; Var(G) goes with that `power` of the step.
    """
    s = Settings("ATMC", h=H, m=1.0, d=D, t=1.0, mu=1.0 / (spread * D) ** 2)
    generator = torch.Generator().manual_seed(SEED)
    stiffness, shape = SQUARES / H**2, (ROWS, len(SQUARES))
    theta, p = torch.randn(shape, generator=generator) / stiffness.sqrt(), torch.randn(shape, generator=generator)
    xi = torch.full(shape, 2 * friction if follows else friction)  # stated for the largest step, or for the mean one
    made = real(s, theta, p, xi, SEED, **({} if follows else {"reference_lr": None}))
    chain = Cycling(made, H, STEPS, explore=0.0)
    level = math.sqrt(2 * friction * 2 * s.m * s.t / H)  # h₀ Var(G)/(2mT) is twice the friction of the mean step

    def gradient(th: Tensor) -> Tensor:
        falling = 0.5 * (1 + math.cos(math.pi * (chain.taken % STEPS) / STEPS))
        noise = torch.randn(th.shape, generator=generator, dtype=th.dtype)
        return stiffness * th + level * falling ** (power / 2) * noise

    def statistics(chain: Chain) -> dict[str, Tensor]:
        shares = chain.theta**2 * stiffness
        return {"kinetic": (chain.momentum**2).mean(1), **{str(j): shares[:, j] for j in range(len(SQUARES))}}

    found = run(chain, gradient, CYCLES * STEPS, statistics, drop=CYCLES * STEPS, every=STEPS)
    return [estimate.mean for estimate in found.values()]


def table() -> str:
    """One line for each noise, thermostat and inertia."""
    head = "| ξ̄ at the mean step | thermostat | spread κ of ξ, of D | kinetic T | k Var θ at .0001 | .01 | .05 | .3 |"
    lines = [head, "|" + " --- |" * 8]
    for friction, power in ((50.0, 0), (1000.0, 0), (1000.0, 2)):
        for follows in (False, True):
            for spread in (1 / 3, 1.0):
                shares = cycle_ends(friction, spread, follows, power)
                kind = "follows h" if follows else "the paper's"
                noise = f"{friction:,.0f}" + (", Var(G) ∝ h²" if power else "")
                cells = [noise, kind, "1" if spread == 1 else "1/3", *(f"{x:.2f}".removeprefix("0") for x in shares)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
