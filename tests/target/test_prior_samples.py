"""Draws follow the density: Kolmogorov–Smirnov against an independent distribution function, and moments.

Seeds are fixed, so a pass stays a pass. The level of every test is 1e-4 and there are about 30 of them: a correct
sampler met this file with a chance of about 0.3 % to fail on the day the seeds were chosen.
"""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from atmc.common.errors import InputError
from atmc.target import priors
from atmc.target.priors import radial_law

DRAWS = 40_000
LEVEL = 1e-4


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tabled_cdf(log_density, low: float, high: float, nodes: int = 4001):
    """A distribution function from an unnormalised log-density on a grid, by Simpson's rule (not the code's own)."""
    x = np.linspace(low, high, nodes)
    weight = np.exp(log_density(x) - log_density(x).max())
    mass = integrate.cumulative_simpson(weight, x=x, initial=0.0)
    return lambda q: np.interp(q, x, mass / mass[-1])


def horseshoe_cdf(a: float, floor: float):
    """∫ over v of the Cauchy mixture, elementary: v·atan(x/v) + (x/2) log(v² + x²) between ε and A."""
    low, high = a * floor, a * math.sqrt(1 + floor**2)

    def part(x, v):
        return v * np.arctan(x / v) + 0.5 * x * np.log(v**2 + x**2)

    return lambda x: 0.5 + (part(x, high) - part(x, low)) / (math.pi * (high - low))


@pytest.mark.parametrize(
    ("prior", "cdf"),
    [
        (priors.Normal(0.7, loc=1.0), stats.norm(1.0, 0.7).cdf),
        (priors.Laplace(2.0, loc=-1.0), stats.laplace(-1.0, 2.0).cdf),
        (priors.StudentT(1.0, 0.5), stats.cauchy(0, 0.5).cdf),
        (priors.StudentT(5.0, 2.0, loc=0.3), stats.t(5.0, 0.3, 2.0).cdf),
        (priors.Horseshoe(0.5), horseshoe_cdf(0.5, 0.01)),
        (priors.Horseshoe(2.0, floor=0.3), horseshoe_cdf(2.0, 0.3)),
        (priors.GroupLaplace(5.0), stats.laplace(0, 5.0).cdf),
    ],
    ids=lambda value: "" if callable(value) else str(value),  # a function's name has its address in it
)
def test_elementwise_draws_follow_the_density(prior, cdf):
    draws = prior.sample((DRAWS,), generator())
    assert draws.shape == (DRAWS,)
    assert draws.dtype == torch.float32
    assert torch.isfinite(draws).all()
    assert stats.kstest(draws.numpy(), cdf).pvalue > LEVEL


@pytest.mark.parametrize("d", [1, 2, 27, 576, 20_000])
def test_direction_draws_have_the_right_radius_and_no_preferred_angle(d):
    rows = max(60, min(DRAWS, 2_000_000 // d))
    draws = priors.Direction().sample((rows, d), generator(d)).double()
    # The squared radius s has density ∝ s^(d/2−1) exp(−(d/2)(s−1)²): another variable than the code integrates in.
    s = draws.square().sum(1).numpy()
    spread = 8 * math.sqrt(2 / d) if d > 1 else 8
    if d == 1:  # the square has an integrable pole at 0; the radius itself has none
        s, log_density, low = np.sqrt(s), lambda r: -0.5 * (r**2 - 1) ** 2, 0.0
    else:
        low = max(1e-12, 1.366 - spread)

        def log_density(v):
            return (0.5 * d - 1) * np.log(v) - 0.5 * d * (v - 1) ** 2

    assert stats.kstest(s, tabled_cdf(log_density, low, 1.366 + spread)).pvalue > LEVEL
    # Angles: each coordinate of the unit vector has mean 0 and variance 1/d; z-scores of the first three.
    unit = draws / draws.norm(dim=1, keepdim=True)
    z = unit[:, :3].mean(0) * math.sqrt(rows * d)
    assert z.abs().max() < stats.norm.isf(LEVEL / 2 / 3)


def test_a_high_dimensional_direction_is_not_of_unit_length():
    """Its density peaks at 1, its draws lie at √((1+√3)/2), within 0.38/√d: what a chain will equilibrate to."""
    d = 4_608
    norms = priors.Direction().sample((400, d), generator()).norm(dim=1).double()
    assert math.isclose(radial_law.TYPICAL_RADIUS, math.sqrt((1 + math.sqrt(3)) / 2))
    deviation = 0.38 / math.sqrt(d)
    # Mean within 4 standard errors, and the correction to it is of order 1/d.
    assert abs(float(norms.mean()) - radial_law.TYPICAL_RADIUS) < 4 * deviation / 20 + 2 / d
    assert float(norms.std()) == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize("d", [2, 30])
def test_group_laplace_rows_have_gamma_norms(d):
    draws = priors.GroupLaplace(1.5).sample((5_000, d), generator(d)).double()
    assert stats.kstest(draws.norm(dim=1).numpy(), stats.gamma(d, scale=1.5).cdf).pvalue > LEVEL


def test_shapes_seeds_and_the_improper_prior():
    for prior in [priors.Direction(), priors.GroupLaplace(1.0), priors.Normal(1.0), priors.Horseshoe(1.0)]:
        first = prior.sample((4, 3, 2, 2), generator(5))
        assert first.shape == (4, 3, 2, 2)
        assert torch.equal(first, prior.sample((4, 3, 2, 2), generator(5)))
        assert not torch.equal(first, prior.sample((4, 3, 2, 2), generator(6)))
    assert priors.Direction().sample((8,), generator()).shape == (8,)
    with pytest.raises(InputError, match="cannot be sampled"):
        priors.Flat().sample((2,))


def test_a_gradient_chain_on_the_prior_reaches_the_prior():
    """Overdamped Langevin with the closed-form gradient, many chains at once: it stays at the draws' radius."""
    prior, d, h = priors.Direction(), 8, 2e-3
    stream = generator(9)
    x = prior.sample((4_000, d), stream).double()
    before = x.square().sum(1).mean()
    for _ in range(400):
        noise = torch.randn(x.shape, generator=stream, dtype=torch.float64)
        x = x - h * prior.neg_grad(x) + math.sqrt(2 * h) * noise
    after = x.square().sum(1)
    # The walk forgets its start; Euler's bias at this h is below 2 %.
    assert float(after.mean()) == pytest.approx(float(before), rel=0.02)
