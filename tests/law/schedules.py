"""Does a chain stay in its law while a schedule changes the step size, and is it there where a cycle ends?

Samples are taken at the ends of cycles, after steps that have become small. A gradient's noise B = h Var(G) goes with
the step size, and with it the friction that balances it: the thermostat must go with it too, or it keeps, at small
steps, the friction of large ones. Chains are started in the law, with Var(G) fixed, and looked at only when a cycle has
ended. Columns are pairs of stiffness and noise, from softer than a cycle is long to far stiffer.

A cycle may also explore, at T = 0, and then sample. Whatever can settle in what is left of the cycle has to be in its
law where that ends, as if nothing had happened before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .harness import SEED, Chain, Estimate, Settings, Verdict, extrapolate, judge, noisy, run
from .laws import draw_momentum
from .makers import Real, real

STIFFNESS = torch.tensor([0.05, 0.5, 4.0, 0.05, 0.5, 4.0])
#: Gradient noise per unit time at the largest step, h₀ Var G.
NOISE = torch.tensor([0.0, 0.0, 0.0, 15.0, 15.0, 15.0])
FLOOR = 0.02  # the smallest step of a cycle, as a share of the largest


class Cycling:
    """A chain whose step size falls along a cosine and returns at once, as `CyclicCosine` has it.

    For a share `explore` of each cycle its temperature is 0. `ended` are θ and p where a cycle ended last. With
    `momentum` every step leaves as much of it: friction rises as steps become small.
    """

    def __init__(self, chain: Real, h: float, length: int, explore: float, momentum: bool = False) -> None:
        self.chain, self.h, self.length, self.explore, self.taken = chain, h, length, explore, 0
        if momentum:
            group = chain.sampler.param_groups[0]
            group["momentum"] = math.exp(-group["friction"] * h)
        self.temperature = chain.sampler.param_groups[0]["temperature"]
        self.ended = chain.theta, chain.momentum

    @property
    def theta(self) -> Tensor:
        return self.chain.theta

    @property
    def momentum(self) -> Tensor:
        return self.chain.momentum

    @property
    def thermostat(self) -> Tensor:
        return self.chain.thermostat

    def step(self, gradient: Tensor) -> None:
        phase = self.taken % self.length / self.length
        group = self.chain.sampler.param_groups[0]
        group["lr"] = self.h * max(0.5 * (1 + math.cos(math.pi * phase)), FLOOR)
        group["temperature"] = 0.0 if phase < self.explore else self.temperature
        self.chain.step(gradient)
        self.taken += 1
        if self.taken % self.length == 0:
            self.ended = self.theta.clone(), self.momentum.clone()


def cycle_ends(
    settings: Settings,
    rows: int,
    cycles: int,
    time: float,
    seed: int,
    explore: float = 0.0,
    momentum: bool = False,
    **options: Any,
) -> dict[str, Estimate]:
    """Averages over the ends of cycles, each `time` long at a constant step, of chains started in the law.

    The thermostat is looked at where the next cycle has explored: at the end itself if none of it does.
    """
    s = settings
    generator = torch.Generator().manual_seed(3000 + seed)
    sigma, spread, centre = (s.t / STIFFNESS).sqrt(), math.sqrt(s.t / s.mu), NOISE / (2 * s.m * s.t)
    shape = torch.Size((rows, len(NOISE)))
    theta = sigma * torch.randn(shape, generator=generator)
    p = draw_momentum(shape, s.m, s.c, s.t, generator, theta.dtype)
    xi = centre + spread * torch.randn(shape, generator=generator)
    length = round(time / s.h)
    chain = Cycling(real(s, theta, p, xi, seed, **options), s.h, length, explore, momentum)

    def statistics(_: Chain) -> Mapping[str, Tensor]:
        theta, p = chain.ended
        slow = 1.0 if math.isinf(s.c) else (1 + (p / (s.m * s.c)) ** 2) ** -0.5
        x = (chain.thermostat - centre) / spread
        return {"θ²": (theta / sigma) ** 2, "pK'": p**2 * slow / (s.m * s.t), "ξ": x, "ξ²": x**2}

    gradient = noisy(lambda th: STIFFNESS * th, (NOISE / s.h).sqrt(), 7000 + seed)
    columns = [f"[{j}]" for j in range(len(NOISE))]
    return run(chain, gradient, cycles * length, statistics, round(explore * length), length, columns)


def invariance(
    settings: Settings, rows: int = 1024, cycles: int = 5, time: float = 20.0, seed: int = SEED, **options: Any
) -> Verdict:
    """θ², p K' and the thermostat against the law, extrapolated from a largest step of h and of h/2."""
    coarse = cycle_ends(settings, rows, cycles, time, seed, **options)
    fine = cycle_ends(settings.halved(), rows, cycles, time, seed + 1, **options)
    expected = {name: {"θ²": 1.0, "pK'": 1.0, "ξ": 0.0, "ξ²": 1.0}[name.split()[0]] for name in coarse}
    return judge(extrapolate(coarse, fine), expected)


def explored(settings: Settings, **options: Any) -> Verdict:
    """The same where 0.3 of a longer cycle explore: at its end, of θ² what settles in the rest of it, and of p K' all.

    And the thermostat where exploring ends: it has been left as it was.
    """
    how = {"rows": 2048, "cycles": 2, "time": 160.0, "explore": 0.3, **options}
    found = invariance(settings, **how).comparisons
    return Verdict(tuple(c for c in found if c.name not in ("θ² [0]", "θ² [3]")))


def constant(settings: Settings, steps: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """θ, p and ξ after some steps of one size."""
    chain = real(settings, torch.ones(64, len(NOISE)), seed=SEED, **options)
    gradient = noisy(lambda th: STIFFNESS * th, (NOISE / settings.h).sqrt(), SEED)
    for _ in range(steps):
        chain.step(gradient(chain.theta))
    return chain.theta, chain.momentum, chain.thermostat


def one_cycle(settings: Settings, largest: float, steps: int = 3000, rows: int = 2048) -> Verdict:
    """θ² and p² on unit springs near the peak and at the end of a `OneCycleLR`, started in the law."""
    generator = torch.Generator().manual_seed(SEED)
    theta, p = (torch.randn(rows, 1, generator=generator) for _ in range(2))
    chain = real(settings, theta, p, torch.randn(rows, 1, generator=generator), SEED)
    cycle = torch.optim.lr_scheduler.OneCycleLR(chain.sampler, largest, total_steps=steps, cycle_momentum=False)
    found: dict[str, Estimate] = {}
    for step in range(1, steps):
        chain.step(chain.theta)
        cycle.step()
        if step in (steps // 2, steps - 1):
            where = "end" if step == steps - 1 else "after the peak"
            found |= {f"θ² {where}": Estimate.of(chain.theta**2), f"p² {where}": Estimate.of(chain.momentum**2)}
    return judge(found, dict.fromkeys(found, 1.0))
