"""Who judges the judges: the false-alarm rates are what they say, and the reference obeys the exact laws."""

import math

import pytest
import torch
from scipy import stats

from .convergence import COVARIANCE, MEAN, divergence
from .gradient_noise import thermostat_exact
from .harness import ALARM, SEED, Estimate, Settings, Verdict, combine, judge
from .invariance import invariance
from .laws import momentum_mean
from .makers import reference
from .posteriors import banana, double_well


def test_false_alarms_of_a_verdict() -> None:
    """At a rate of 1 %, on squares of normals (skewed, as what is averaged here), six comparisons at a time."""
    generator = torch.Generator().manual_seed(100 + SEED)
    trials, alarms = 1000, 0
    for _ in range(trials):
        rows = torch.randn((512, 6, 5), generator=generator).square().mean(2)
        estimates = {str(j): Estimate.of(rows[:, j]) for j in range(6)}
        alarms += not judge(estimates, dict.fromkeys(estimates, 1.0), alarm=0.01).passed
    assert stats.binom.sf(alarms - 1, trials, 0.011) > ALARM / 2, alarms / trials
    assert stats.binom.cdf(alarms, trials, 0.009) > ALARM / 2, alarms / trials


def test_false_alarms_of_the_divergence() -> None:
    """2n·KL is χ²: its quantiles from draws of the target itself."""
    generator = torch.Generator().manual_seed(101 + SEED)
    root = torch.linalg.cholesky(COVARIANCE)
    values = []
    for _ in range(1000):
        draws = MEAN + torch.randn((1024, 3), generator=generator) @ root.T
        values.append(divergence(draws, COVARIANCE.double()).kl)
    assert stats.kstest([2 * 1024 * v for v in values], stats.chi2(9).cdf).pvalue > ALARM
    assert (
        divergence(MEAN + torch.randn((2048, 3), generator=generator) @ root.T * 1.1, COVARIANCE.double()).passed
        is False
    )


def test_a_verdict_fails_on_what_is_not_a_number() -> None:
    broken = Estimate.of(torch.tensor([1.0, math.nan, 2.0]))
    assert not Verdict(judge({"x": broken}, {"x": 1.0}).comparisons).passed
    assert not judge({"x": Estimate.of(torch.full((9,), math.inf))}, {"x": 1.0}).passed


def test_extrapolation_removes_the_second_order() -> None:
    exact, slope = 2.0, 0.7
    at = [Estimate(exact + slope * h**2, 0.01, 99) for h in (0.2, 0.1)]
    combined = combine((-1 / 3, 4 / 3), at)
    assert combined.mean == pytest.approx(exact)
    assert combined.se == pytest.approx(0.01 * math.sqrt(17) / 3)


@pytest.mark.parametrize(("m", "c", "t"), [(2.0, math.inf, 1.5), (2.0, 0.9, 1.5), (11.1, 1.0, 0.1), (1.0, 0.3, 2.0)])
def test_the_momentum_law_is_what_the_thermostat_balances(m: float, c: float, t: float) -> None:
    """⟨pK'⟩ = T and ⟨mK'²⟩ = T⟨mK''⟩ for every K: integration by parts, here by quadrature."""

    def r(p):  # type: ignore[no-untyped-def]
        return (1 + (p / (m * c)) ** 2) ** -0.5

    assert momentum_mean(lambda p: r(p) * p**2 / m, m, c, t) == pytest.approx(t, rel=1e-6)
    assert momentum_mean(lambda p: r(p) ** 2 * p**2 / m - t * r(p) ** 3, m, c, t) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("target", [double_well(), banana()], ids=lambda target: target.name)
def test_quadrature_obeys_the_virial_theorem(target) -> None:  # type: ignore[no-untyped-def]
    """⟨θ·∇U⟩ = dT binds gradient, potential and grid together."""
    axis = torch.linspace(-target.width, target.width, 1201, dtype=torch.float64)
    grid = torch.cartesian_prod(*[axis] * target.dimension).reshape(-1, target.dimension)
    weight = torch.softmax(-target.potential(grid), 0)
    virial = (grid * target.gradient(0)(grid)).sum(1)
    assert float((virial * weight).sum()) == pytest.approx(target.dimension, abs=1e-8)


@pytest.mark.parametrize("c", [math.inf, 0.9], ids=["gaussian", "hyperbolic"])
def test_the_reference_keeps_the_law(c: float) -> None:
    verdict = invariance(
        reference, Settings("SGNHT", h=0.1, m=2.0, d=1.2, c=c, t=1.5, mu=0.5, integrator="strang"), rows=2048
    )
    assert verdict.passed, str(verdict)


def test_the_reference_has_exactly_the_law_of_the_discrete_step() -> None:
    verdict = thermostat_exact(reference, Settings("ATMC", h=0.15, m=2.0, d=6.0, t=1.5, mu=2.0))
    assert verdict.passed, str(verdict)
