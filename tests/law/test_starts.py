"""How a chain begins, whose noise it uses, and what it says of its own temperature."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from atmc.samplers import ATMC, SGHMC, SGNHT
from atmc.samplers.integrator import synchronised_virial
from atmc.samplers.kinetic_energy import inverse_momentum_scale

from .harness import ALARM, SEED, Estimate, Settings, combine, judge
from .laws import atmc_harmonic, draw_momentum, kinetic, momentum_grid, sghmc_harmonic, synchronised
from .makers import real, sampler
from .starts import global_stream, thermostat_starts_at_zero


@pytest.mark.parametrize("c", [math.inf, 0.9], ids=["gaussian", "hyperbolic"])
def test_a_thermostat_of_zero_is_zero(c: float) -> None:
    verdict = thermostat_starts_at_zero(real, Settings("ATMC", h=0.1, m=2.0, d=1.2, c=c, t=1.5, mu=0.5))
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("cls", [ATMC, SGNHT])
@pytest.mark.parametrize("start", [0.0, -0.5, 0.7])
def test_the_thermostat_starts_where_it_is_told(cls: type[ATMC] | type[SGNHT], start: float) -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    assert torch.equal(cls([p], thermostat_init=start).state[p]["thermostat"], torch.full((3,), start))


@pytest.mark.parametrize(("m", "c", "t"), [(2.0, math.inf, 0.3), (2.0, 0.9, 1.5), (11.1, 1.0, 1.0), (1.0, 0.1, 1.0)])
def test_momenta_start_in_their_law(m: float, c: float, t: float) -> None:
    """Kolmogorov–Smirnov against the distribution function of exp(−K/T) by quadrature."""
    p = torch.nn.Parameter(torch.zeros(50_000, dtype=torch.float64))
    drawn = SGHMC([p], mass=m, speed_limit=c, temperature=t, momentum_init="law", seed=SEED + 3).state[p]["momentum"]
    grid, weight = momentum_grid(m, c, t)
    cdf = np.cumsum(weight) - weight / 2
    test = stats.kstest(drawn.numpy(), lambda x: np.interp(x, grid, cdf))
    assert test.pvalue > ALARM / 4, test


def test_the_momentum_law_of_this_harness_is_the_generalised_hyperbolic_one() -> None:
    """Our own draws against scipy's: a normal whose variance is generalised inverse Gaussian."""
    m, c, t = 2.0, 0.9, 1.5
    ours = draw_momentum(torch.Size((50_000,)), m, c, t, torch.Generator().manual_seed(SEED + 1), torch.float64)
    law = stats.genhyperbolic(p=1.0, a=m * c**2 / t, b=0.0, scale=m * c)
    grid = np.linspace(-12, 12, 4001)
    cdf = np.cumsum(law.pdf(grid)) * (grid[1] - grid[0])
    assert stats.kstest(ours.numpy(), lambda x: np.interp(x, grid, cdf)).pvalue > ALARM
    assert law.pdf(1.0) / law.pdf(0.0) == pytest.approx(float(np.exp(-kinetic(np.array(1.0), m, c) / t)))


def _noise(steps: int, seed: int, rows: int = 4096) -> torch.Tensor:
    """The normals a sampler adds, read off its momenta: [steps, rows]."""
    h, d = 0.1, 1.0
    chain = real(Settings("SGHMC", h=h, d=d), torch.zeros(rows), seed=seed)
    scale = math.sqrt(-math.expm1(-2 * d * h))
    drawn = []
    for _ in range(steps):
        chain.momentum.zero_()
        chain.step(torch.zeros(rows))
        drawn.append(chain.momentum.clone() / scale)
    return torch.stack(drawn)


@pytest.mark.parametrize("integrator", ["leapfrog", "strang"])
def test_no_two_parameters_share_their_noise(integrator: str) -> None:
    """Parameters of one precision and of two, that end within a block of the stream, and the two draws of a step.

    Added noise and first momenta; in double precision no number comes twice, and between any two parameters, at the
    same place, they do not correlate (false alarms: 10⁻⁴ over all pairs, the correlation of n pairs being N(0, 1/n)).
    """
    n, kinds = 3000, (torch.float64, torch.float64, torch.float32, torch.bfloat16)
    params = [torch.nn.Parameter(torch.zeros(n, dtype=kind)) for kind in kinds]
    how = {"friction": 1.0, "integrator": integrator, "momentum_init": "law", "seed": SEED + 3}
    one = SGHMC(params, lr=0.5, **how)  # type: ignore[arg-type]
    drawn = [[one.state[p]["momentum"].double().clone() for p in params]]
    for _ in range(3):
        for p in params:
            one.state[p]["momentum"].zero_()
            p.grad = torch.zeros_like(p)
        one.step()
        drawn.append([one.state[p]["momentum"].double().clone() for p in params])
    wide = torch.cat([row[i] for row in drawn for i in (0, 1)])
    assert len(wide.unique()) == len(wide)
    table = torch.stack([x / x.square().mean().sqrt() for row in drawn for x in row])
    found = (table @ table.T / n).triu(1).abs().max()
    pairs = len(table) * (len(table) - 1) / 2
    assert found < stats.norm.isf(ALARM / 2 / pairs) / math.sqrt(n)


def test_the_added_noise_is_standard_normal_and_white() -> None:
    """Distribution by Kolmogorov–Smirnov, whiteness within and between steps by the spectrum of the whole stream."""
    stream = _noise(64, seed=SEED + 5).double().flatten()
    n = len(stream)
    assert stats.kstest(stream.numpy(), "norm").pvalue > ALARM / 3
    # Autocorrelation at every lag at once; each is N(0, 1/n) for white noise.
    correlation = torch.fft.irfft(torch.fft.rfft(stream, 2 * n).abs() ** 2)[1 : n // 2] / n
    assert correlation.abs().max() < stats.norm.isf(ALARM / 6 / n) * 1.05 / math.sqrt(n)
    squares = stream**2 - 1
    correlation = torch.fft.irfft(torch.fft.rfft(squares, 2 * n).abs() ** 2)[1 : n // 2] / (2 * n)
    # Squares of normals have heavy tails: their sums reach normality slowly, hence the wider bound.
    assert correlation.abs().max() < stats.norm.isf(ALARM / 6 / n) * 1.3 / math.sqrt(n)


@pytest.mark.parametrize("seed", [SEED, SEED + 1, 2**31 - 1 - SEED])
def test_no_lag_aligns_the_samplers_noise_with_the_global_generator(seed: int) -> None:
    ours = _noise(16, seed).double().flatten()
    n = len(ours)
    others = [
        torch.randn(n, generator=torch.Generator().manual_seed(seed)).double(),
        _noise(16, seed + 1).double().flatten(),
    ]
    for other in others:
        spectrum = torch.fft.rfft(ours, 2 * n) * torch.fft.rfft(other, 2 * n).conj()
        assert torch.fft.irfft(spectrum).abs().max() / n < stats.norm.isf(ALARM / 4 / (2 * n)) / math.sqrt(n)


@pytest.mark.parametrize("seed", [SEED, SEED + 7])
def test_equal_seeds_of_sampler_and_program_do_not_meet(seed: int) -> None:
    verdict = global_stream(real, seed)
    assert verdict.passed, str(verdict)


def _readings(s: Settings, k: float, sd: float, variance: float | None = None, centre: float = 0.0) -> Estimate:
    """The sampler's own kinetic temperature on U = kθ²/2, averaged over time; one replicate per sampler.

    Chains start in their law, as far as it is known: `variance` of θ, `centre` of ξ. Twelve samplers of 2,048 elements
    see smaller errors than 24 of 512 did, Student's wider quantile included, in half the steps.
    """
    replicates, rows = [], 2048
    for seed in range(SEED, SEED + 12):
        generator = torch.Generator().manual_seed(80_000 + seed)
        theta = torch.randn(rows, generator=generator) * math.sqrt(s.t / k if variance is None else variance)
        one = sampler(s, theta, seed, momentum_init="law", measure_every=2)
        (param,) = one.param_groups[0]["params"]
        if "thermostat" in one.state[param]:
            one.state[param]["thermostat"].normal_(centre, math.sqrt(s.t / s.mu), generator=generator)
        seen = []
        for step in range(round(10 / s.h)):
            param.grad = k * param.detach() + sd * torch.randn(rows, generator=generator)
            one.step()
            if step * s.h > 2 and step % 2 == 0:
                seen.append(float(one.kinetic_temperature()))
        replicates.append(sum(seen) / len(seen))
    return Estimate.of(torch.tensor(replicates))


@pytest.mark.parametrize("sd", [0.0, 6.0])
@pytest.mark.parametrize("integrator", ["leapfrog", "strang"])
def test_the_kinetic_temperature_is_read_at_a_synchronised_time(integrator: str, sd: float) -> None:
    """Against the exact law of the discrete step, on a stiff target where the raw momentum reads 10 % too warm."""
    s = Settings("SGHMC", h=0.2, m=1.0, d=3.0, t=1.5, integrator=integrator)
    raw = sghmc_harmonic(9.0, s.h, s.m, s.d, s.t, sd**2)[1]
    expected = synchronised(raw, 9.0, s.h, s.m, s.d)
    assert expected == pytest.approx(s.t + math.tanh(s.d * s.h / 2) * sd**2 / s.d**2)
    reading = _readings(s, 9.0, sd)
    verdict = judge({"T": reading}, {"T": expected})
    assert verdict.passed, str(verdict)
    assert not judge({"T": reading}, {"T": raw / s.m}).passed


@pytest.mark.parametrize("integrator", ["leapfrog", "strang"])
def test_gradient_noise_does_not_bias_the_kinetic_temperature(integrator: str) -> None:
    """hξ̄ = 0.5: the square of the momentum half way through a kick, with a quarter of its noise, would be 0.84 T."""
    s = Settings("ATMC", h=0.1, m=2.0, d=8.0, t=1.5, mu=4.0, integrator=integrator)
    sd = math.sqrt(5.0 * 2 * s.m * s.t / s.h)
    variance, centre = atmc_harmonic(1.0, s.h, s.m, s.d, s.t, sd**2)
    reading = _readings(s, 1.0, sd, variance, centre)
    verdict = judge({"T": reading}, {"T": synchronised(s.m * s.t, 1.0, s.h, s.m, s.d)})
    assert verdict.passed, str(verdict)
    assert not judge({"T": reading}, {"T": 0.96 * s.t}).passed


@pytest.mark.parametrize("name", ["ATMC", "SGNHT", "SGHMC"])
@pytest.mark.parametrize("integrator", ["leapfrog", "strang"])
def test_the_kinetic_temperature_under_a_speed_limit(name: str, integrator: str) -> None:
    """The mean of p K'(p) extrapolated to h = 0, with gradient noise where there is a thermostat to balance it."""
    s = Settings(name, h=0.1, m=1.0, d=6.0 if name == "ATMC" else 1.0, c=0.9, t=1.5, mu=4.0, integrator=integrator)
    level = 0.0 if name == "SGHMC" else 3.0  # of ξ̄
    both = [_readings(x, 2.0, math.sqrt(level * 2 * x.m * x.t / x.h), centre=level) for x in (s, s.halved())]
    verdict = judge({"T": combine((-1 / 3, 4 / 3), both)}, {"T": 1.5})
    assert verdict.passed, str(verdict)


def test_half_a_kick_comes_off_the_reading_up_to_fourth_order() -> None:
    """E[reading] − T for p = q + (h/2) g, q in its law under a speed limit and g normal, by quadrature.

    Without friction, so that tanh(b h/2)/b = h/2. At half the kick the rest is a sixteenth; what an extrapolation from
    two step sizes removes, and so cannot see, would be a quarter.
    """
    m, c, t, sd = 2.0, 0.9, 1.5, 3.0
    q = torch.linspace(-60.0, 60.0, 6001, dtype=torch.float64)
    law = torch.from_numpy(np.exp(-kinetic(q.numpy(), m, c) / t))
    nodes, weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(40))
    chance = law[:, None] / law.sum() * (weights / weights.sum())

    def off(h: float) -> float:
        g = sd * nodes
        read = synchronised_virial(
            q[:, None] + h / 2 * g, g, 0.0, lr=h, mass=m, inverse_scale=inverse_momentum_scale(m, c)
        )
        return float((chance * read).sum()) - t

    assert off(0.0) == pytest.approx(0.0, abs=1e-9)
    assert off(0.2) / off(0.1) == pytest.approx(16.0, rel=0.1)
    assert abs(off(0.1)) < 1e-4
