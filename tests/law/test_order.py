"""Law 4: the bias of θ falls as h², for Strang and for leapfrog; the paper's hyperbolic step's as h."""

import itertools
import math

import pytest

from .harness import Settings
from .laws import atmc_harmonic, sghmc_harmonic
from .makers import mutant, real
from .order import momentum_bias, order, stiffness
from .reference import Flaw

# Dh = 0.72 throughout. SGNHT's fluctuating friction has the larger term of fourth order (a ratio of 4.7 at h = 0.24,
# D = 3, measured on eight times the chains) and gets the smaller step. As used, the ratios so measured are 4.0 to 4.2.
SLOW = math.sqrt(0.75)  # a speed limit with mc²/T = 1
BASE = {"m": 2.0, "t": 1.5, "mu": 1.5}  # the spread of ξ, √(T/μ), is 1
CASES = [
    Settings(sampler, h=h, d=0.72 / h, c=c, integrator=integrator, **BASE)
    for sampler, integrator, h in (
        ("ATMC", "leapfrog", 0.24),
        ("ATMC", "strang", 0.24),
        ("SGNHT", "leapfrog", 0.12),
        ("SGHMC", "leapfrog", 0.24),
    )
    for c in (math.inf, math.sqrt(3.0))  # mc²/T = 4
]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_bias_is_of_second_order(settings: Settings) -> None:
    measured = order(real, settings)
    assert measured.allows(4.0), str(measured)
    assert not measured.allows(2.0), str(measured)


def test_the_papers_step_is_not() -> None:
    """With a friction frozen over the step, under a hyperbolic K: the same test, which this one must fail."""
    measured = order(real, Settings("SGHMC", h=0.1, d=5.0, c=SLOW, integrator="leapfrog-frozen", **BASE))
    assert not measured.allows(4.0), str(measured)


@pytest.mark.parametrize(
    ("flaw", "c"), [(Flaw.NO_MASS, math.inf), (Flaw.NOISE_OF_ONE_B, math.inf), (Flaw.FULL_FRICTION, math.sqrt(3.0))]
)
def test_an_error_is_caught(flaw: Flaw, c: float) -> None:
    """In SGHMC, which has no thermostat to repair it: a wrong law has a bias that does not fall, and a noise variance
    with φ(bh) for φ(2bh) one that falls as h. A quarter of the chains, on which the unbroken sampler passes."""
    settings = Settings("SGHMC", h=0.24, d=3.0, c=c, **BASE)
    whole, broken = (order(make, settings, rows=6144) for make in (real, mutant(flaw)))
    assert whole.allows(4.0), str(whole)
    assert not broken.allows(4.0), str(broken)


def test_the_exact_discrete_laws_are_of_second_order() -> None:
    """The closed forms that other tests lean on, by halving: no Monte-Carlo error at all."""
    for law in (atmc_harmonic, sghmc_harmonic):
        m, t, k = BASE["m"], BASE["t"], stiffness(BASE["m"])
        off = [law(k, h, m, 3.0, t, 0.0)[0] * k / t - 1 for h in (0.02, 0.01)]
        assert off[0] / off[1] == pytest.approx(4.0, rel=2e-3)


@pytest.mark.parametrize(("corrected", "order"), [(True, 2), (False, 1)])
def test_the_hyperbolic_momentum_step_alone(corrected: bool, order: int) -> None:
    """Stationary E[mK'² − T mK''] by quadrature: of order h² corrected, of order h as in the paper."""
    setting = {"m": BASE["m"], "d": 1.0, "c": SLOW, "t": BASE["t"]}
    off = [momentum_bias(h, corrected, **setting) for h in (0.2, 0.1, 0.05)]
    orders = [math.log2(abs(a / b)) for a, b in itertools.pairwise(off)]
    assert orders[-1] == pytest.approx(order, abs=0.4), (off, orders)
    if corrected:
        frozen = momentum_bias(0.1, False, **setting)
        assert abs(off[1]) < 0.1 * abs(frozen)
