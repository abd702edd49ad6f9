"""Law 6: the Ornstein–Uhlenbeck momentum step alone against its closed-form mean and variance."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from unittest import mock

import mpmath
import pytest
import torch

from atmc.samplers import SGNHT, backends
from atmc.samplers.integrator import momentum_step

from .makers import broken_momentum_step
from .reference import Flaw, ou_moments

GRID = list(
    itertools.product(
        (-3.0, -0.4, -1e-9, 0.0, 1e-12, 1e-5, 0.7, 105.0),  # b: Nosé–Hoover's may be zero or negative
        (0.0, 1e-3, 0.1, 2.0),  # h
        (0.0, 0.3, 4.0),  # α
        (0.5, 11.1),  # m
        (0.0, 1.0, 2.5),  # T
    )
)


Step = Callable[..., torch.Tensor]


def _step(p: float, g: float, eta: float, b: float, h: float, alpha: float, m: float, t: float, by: Step) -> float:
    p_, g_, eta_, alpha_, b_ = (torch.tensor([v], dtype=torch.float64) for v in (p, g, eta, alpha, b))
    return by(p_, g_, eta_, alpha_, b_, lr=h, mass=m, inverse_scale=0.0, temperature=t, corrected=True).item()


def _truth(p: float, g: float, b: float, h: float, alpha: float, m: float, t: float) -> tuple[float, float]:
    """Mean and variance of dp = −G dt − b p dt + √(2Tαm) dW at time h, to fifty digits."""
    with mpmath.workdps(50):
        b_, h_ = mpmath.mpf(b), mpmath.mpf(h)
        once = h_ if b == 0 else (1 - mpmath.exp(-b_ * h_)) / b_
        twice = h_ if b == 0 else (1 - mpmath.exp(-2 * b_ * h_)) / (2 * b_)
        return float(mpmath.exp(-b_ * h_) * p - once * g), float(2 * mpmath.mpf(t) * alpha * m * twice)


def off_the_grid(by: Step) -> dict[tuple[float, ...], str]:
    """Where mean or variance of a momentum step are not the closed forms, and what they are there.

    The step is affine in η, so three values of η give its mean and its standard deviation without any sampling.
    """
    p, g, off = 1.3, -0.8, {}
    for b, h, alpha, m, t in GRID:
        mean, variance = _truth(p, g, b, h, alpha, m, t)
        at = [_step(p, g, eta, b, h, alpha, m, t, by) for eta in (-1.0, 0.0, 1.0)]
        size = abs(mean) + math.sqrt(variance) + 1
        if not (
            at[1] == pytest.approx(mean, rel=1e-13, abs=1e-15)
            and (at[2] - at[0]) / 2 == pytest.approx(math.sqrt(variance), rel=1e-12, abs=4e-16 * size)
            and at[2] + at[0] == pytest.approx(2 * at[1], rel=1e-13, abs=4e-16 * size)
        ):
            off[b, h, alpha, m, t] = f"{at} against {mean} ± √{variance}"
    return off


def test_mean_and_variance_over_the_grid() -> None:
    assert off_the_grid(momentum_step) == {}


@pytest.mark.parametrize("flaw", [Flaw.SIGN, Flaw.NO_MASS, Flaw.NOISE_OF_ONE_B], ids=lambda flaw: flaw.name)
def test_an_error_is_caught(flaw: Flaw) -> None:
    """Wherever it makes a difference: for a friction, or a noise of some mass, that is not too small to show."""
    off = off_the_grid(partial(broken_momentum_step, flaw))
    differ = {
        (b, h, alpha, m, t)
        for b, h, alpha, m, t in GRID
        if h > 0 and (flaw is Flaw.NO_MASS or abs(b) > 1e-3) and (flaw is Flaw.SIGN or alpha * t > 0)
    }
    assert differ
    assert differ <= set(off)
    assert off_the_grid(partial(broken_momentum_step, Flaw.FULL_FRICTION)) == {}  # none for a Gaussian K


def test_two_halves_make_a_whole() -> None:
    """Mean and variance of B(h/2) after B(h/2) are those of B(h): what lets leapfrog share one gradient."""
    p, g = -0.4, 2.2
    for b, h, alpha, m, t in GRID:
        first = _step(p, g, 0.0, b, h / 2, alpha, m, t, momentum_step)
        noise = _step(p, g, 1.0, b, h / 2, alpha, m, t, momentum_step) - first
        mean, variance = _truth(p, g, b, h, alpha, m, t)
        assert _step(first, g, 0.0, b, h / 2, alpha, m, t, momentum_step) == pytest.approx(mean, rel=1e-12, abs=1e-14)
        assert noise**2 * (math.exp(-b * h) + 1) == pytest.approx(variance, rel=1e-10, abs=1e-14)


def off_by(backend: str, dtype: torch.dtype) -> tuple[float, str]:
    """How far a backend's momentum step is from the closed form at worst, relative, and where.

    Nosé–Hoover makes any b = D + ξ from any α = D. At T = 0 a step is its mean; above, η must come out the same
    whatever the rest, and that η is standard normal has a test of its own.
    """
    start, g = torch.full((8,), 1.3, dtype=dtype), torch.full((8,), -0.8, dtype=dtype)

    def step(b: float, h: float, alpha: float, m: float, t: float) -> torch.Tensor:
        param = torch.nn.Parameter(torch.zeros(8, dtype=dtype))
        friction = {"thermostat_init": b - alpha, "reference_lr": None}  # which stays on at T = 0
        sampler = SGNHT([param], lr=h, mass=m, friction=alpha, temperature=t, backend=backend, seed=9, **friction)  # type: ignore[arg-type]
        sampler.state[param]["momentum"].copy_(start)
        param.grad = g
        sampler.step()
        return sampler.state[param]["momentum"].double()

    mean, variance = _truth(1.3, -0.8, 1.0, 1.0, 1.0, 1.0, 1.0)
    eta = (step(1.0, 1.0, 1.0, 1.0, 1.0) - mean) / math.sqrt(variance)
    worst = (0.0, "")
    for b, h, alpha, m, t in GRID:
        if abs(b) < 1e-3 and dtype is torch.float32 and b != 0:
            continue  # D + ξ does not keep so small a difference in single precision
        mean, variance = _truth(1.3, -0.8, b, h, alpha, m, t)
        off = (step(b, h, alpha, m, t) - mean - math.sqrt(variance) * eta).abs().max().item()
        worst = max(worst, (off / (abs(mean) + math.sqrt(variance) + 1), f"b={b}, h={h}, α={alpha}, m={m}, T={t}"))
    return worst


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.float32, 3e-6)], ids=["float64", "float32"])
def test_every_body_takes_this_step(backend: str, dtype: torch.dtype, rel: float) -> None:
    off, where = off_by(backend, dtype)
    assert off <= rel, where


def test_an_error_is_caught_through_a_body() -> None:
    with mock.patch.object(backends, "momentum_step", partial(broken_momentum_step, Flaw.NO_MASS)):
        assert off_by("single", torch.float32)[0] > 0.1


def test_the_reference_agrees() -> None:
    """The closed form of `reference.py`, on which the mutants rest, is the same."""
    for b, h, alpha, m, t in GRID:
        mean, variance = ou_moments(
            *(torch.tensor(v, dtype=torch.float64) for v in (1.3, -0.8, b, alpha)), m=m, h=h, t=t
        )
        expected = _truth(1.3, -0.8, b, h, alpha, m, t)
        assert (mean.item(), variance.item()) == pytest.approx(expected, rel=1e-12, abs=1e-15)
