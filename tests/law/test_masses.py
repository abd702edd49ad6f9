"""Masses from the gradient leave the law right if they are frozen, and only then.

Each row is a chain on a normal target with a mass from its own gradient, as `sampler.mass_from = "element"` measures
it. Measured during burn-in and then kept, the masses differ by a factor of hundreds, and Var θ is that of the discrete
step for any mass (`laws.atmc_harmonic`). A chain whose mass goes on following its gradient is slow in the tails, and
too often there.
"""

import pytest
import torch

from atmc.engine.gradient_statistics import Gradients, change_masses, masses
from atmc.recipe.settings import SamplerSection

from .harness import SEED, Settings, Verdict, judge, run
from .laws import atmc_harmonic, draw_momentum
from .makers import Real, real

SETTINGS = Settings("ATMC", h=0.2, m=1.0, d=1.5, mu=8.0)  # thermostats stay below D
STIFFNESS, BETWEEN = 1.0, 20  # steps between two measurements
LOOKS = SamplerSection(mass_from="element")


class Looking:
    """A chain that measures its masses every few steps, until `frozen` of its steps are made."""

    def __init__(self, chain: Real, frozen: float) -> None:
        self.chain, self.frozen, self.taken = chain, frozen, 0

    theta = property(lambda self: self.chain.theta)
    momentum = property(lambda self: self.chain.momentum)
    thermostat = property(lambda self: self.chain.thermostat)

    def step(self, gradient: torch.Tensor) -> None:
        if self.taken % BETWEEN == 0 and self.taken < self.frozen:
            square = [gradient.square()]
            found = masses(Gradients(square, square), LOOKS, SETTINGS.m)
            assert found is not None
            change_masses(self.chain.sampler, found)
        self.chain.step(gradient)
        self.taken += 1


def verdict(frozen: float, rows: int = 2048, burn_in: int = 400, steps: int = 1500) -> Verdict:
    s = SETTINGS
    generator = torch.Generator().manual_seed(SEED + 5)
    theta = torch.randn(rows, generator=generator, dtype=torch.float64) / STIFFNESS**0.5
    momentum = draw_momentum(theta.shape, s.m, s.c, s.t, generator, torch.float64)
    chain = Looking(real(s, theta, momentum, torch.zeros_like(theta), seed=SEED + 6), frozen)
    estimates = run(chain, lambda x: STIFFNESS * x, steps, lambda c: {"theta²": c.theta.square()}, drop=burn_in)
    expected, _ = atmc_harmonic(STIFFNESS, s.h, s.m, s.d, s.t, 0.0)
    return judge(estimates, {"theta²": expected})


def test_masses_frozen_after_burn_in_leave_the_law_right() -> None:
    found = verdict(frozen=100)
    assert found.passed, str(found)


def test_a_mass_that_goes_on_adapting_is_caught() -> None:
    found = verdict(frozen=float("inf"))
    assert not found.passed
    assert found.comparisons[0].z > 0  # it stays where gradients are large


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_momenta_keep_their_temperature(kind: str) -> None:
    params = torch.zeros(4000)
    chain = real(SETTINGS, params, torch.randn(4000, generator=torch.Generator().manual_seed(0)))
    new = [9.0] if kind == "number" else [torch.linspace(0.5, 20.0, 4000)]
    before = chain.momentum.clone()
    change_masses(chain.sampler, new)
    mass = torch.as_tensor(new[0])
    torch.testing.assert_close(chain.momentum.square() / mass, before.square())
    chain.step(torch.zeros(4000))
    assert float((chain.momentum.square() / mass).mean()) == pytest.approx(1.0, abs=0.1)
