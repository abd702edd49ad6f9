"""The same harness over the CUDA kernel: other code, other rounding, the same laws."""

import math
from functools import partial

import pytest
import torch
from scipy import stats

from . import schedules
from .convergence import convergence
from .gradient_noise import thermostat_exact
from .harness import ALARM, Settings
from .invariance import invariance
from .makers import real
from .order import order
from .starts import global_stream, thermostat_starts_at_zero

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: the law of the CUDA kernel is not tested"
    ),
]

cuda = partial(real, device="cuda")
BASE = {"h": 0.1, "m": 2.0, "d": 1.2, "t": 1.5, "mu": 0.5}
CASES = [
    Settings(sampler, c=c, integrator=integrator, **BASE)
    for sampler in ("ATMC", "SGNHT", "SGHMC")
    for c in (math.inf, 0.9)
    for integrator in ("leapfrog", "strang")
] + [Settings("SGLD", **BASE)]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_law_is_left_invariant(settings: Settings) -> None:
    verdict = invariance(cuda, settings)
    assert verdict.passed, str(verdict)


def test_a_correlated_gaussian_is_found() -> None:
    verdict, divergence = convergence(cuda, Settings("ATMC", h=0.2, m=2.0, c=1.2, t=2.0, mu=0.3))
    assert verdict.passed, str(verdict)
    assert divergence.passed, divergence


def test_atmc_has_exactly_the_law_of_its_discrete_step() -> None:
    verdict = thermostat_exact(cuda, Settings("ATMC", h=0.15, m=2.0, d=6.0, t=1.5, mu=2.0))
    assert verdict.passed, str(verdict)


def test_the_bias_is_of_second_order() -> None:
    measured = order(cuda, Settings("ATMC", h=0.24, m=2.0, d=3.0, c=math.sqrt(3.0), t=1.5, mu=1.5))
    assert measured.allows(4.0), str(measured)
    assert not measured.allows(2.0), str(measured)


@pytest.mark.parametrize(("sampler", "c"), [("ATMC", math.inf), ("ATMC", 0.9), ("SGNHT", math.inf)])
def test_the_law_does_not_depend_on_the_step_size(sampler: str, c: float) -> None:
    verdict = schedules.invariance(Settings(sampler, c=c, **BASE), rows=4096, device="cuda")
    assert verdict.passed, str(verdict)


def test_a_cycle_that_explores_at_zero_ends_in_the_law() -> None:
    verdict = schedules.explored(Settings("ATMC", c=0.9, **BASE), device="cuda")
    assert verdict.passed, str(verdict)


def test_no_lag_aligns_the_noise_with_the_devices_own_generator() -> None:
    """Both are Philox there: only the keys keep them apart."""
    seed, rows, drawn = 0, 4096, []
    chain = cuda(Settings("SGHMC", h=0.1), torch.zeros(rows), seed=seed)
    for _ in range(16):
        chain.sampler.state[chain.param]["momentum"].zero_()
        chain.step(torch.zeros(rows))
        drawn.append(chain.momentum.double())
    ours = torch.cat(drawn) / math.sqrt(-math.expm1(-0.2))
    n = len(ours)
    other = torch.randn(n, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).double().cpu()
    spectrum = torch.fft.rfft(ours, 2 * n) * torch.fft.rfft(other, 2 * n).conj()
    assert torch.fft.irfft(spectrum).abs().max() / n < stats.norm.isf(ALARM / (4 * n)) / math.sqrt(n)


def test_starts_and_streams() -> None:
    verdict = thermostat_starts_at_zero(cuda, Settings("ATMC", **BASE))
    assert verdict.passed, str(verdict)
    verdict = global_stream(cuda, seed=0)
    assert verdict.passed, str(verdict)
