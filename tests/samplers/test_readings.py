"""Temperatures, intervals and schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import atmc
from atmc.samplers.kinetic_energy import degrees_per_element, sample_momentum
from atmc.samplers.readings import chi_square_quantile


@pytest.mark.parametrize("degrees", [0.7, 1.0, 3.0, 40.0, 999.0, 1001.0, 1e6])
@pytest.mark.parametrize("probability", [0.0005, 0.5, 0.9995])
def test_chi_square_quantile(degrees, probability):
    assert chi_square_quantile(probability, degrees) == pytest.approx(stats.chi2.ppf(probability, degrees), rel=1e-4)


@pytest.mark.parametrize("stiffness", [0.05, 1.0, 11.1, 500.0])
def test_degrees_per_element(stiffness):
    def weight(x):
        return math.exp(-stiffness * (math.hypot(1.0, x) - 1.0))

    def g(x):
        return stiffness * x * x / math.hypot(1.0, x)

    reach = 60.0 / stiffness + 20.0 / math.sqrt(stiffness)
    total, first, second = (
        integrate.quad(lambda x, k=k: weight(x) * g(x) ** k, 0, reach, limit=500)[0] for k in (0, 1, 2)
    )
    assert first / total == pytest.approx(1.0, rel=1e-6)
    assert degrees_per_element(stiffness) == pytest.approx(2.0 / (second / total - 1.0), rel=1e-4)


@pytest.mark.parametrize("stiffness", [0.05, 1.0, 11.1, 500.0])
def test_momenta_follow_their_law(stiffness):
    """Kolmogorov–Smirnov against the law's own distribution function, at a false-alarm rate of 1e-5."""
    mass, limit, temperature = 2.0, math.sqrt(stiffness / 2.0), 1.0
    rng = np.random.default_rng(4)
    p = sample_momentum(torch.empty(20_000), mass, limit, temperature, rng).numpy()
    grid = np.linspace(-1, 1, 400_001) * mass * limit * math.sqrt((1 + 45 / stiffness) ** 2 - 1)
    density = np.exp(-stiffness * (np.sqrt(1 + (grid / (mass * limit)) ** 2) - 1))
    cdf = integrate.cumulative_trapezoid(density, grid, initial=0)
    result = stats.kstest(p, lambda x: np.interp(x, grid, cdf / cdf[-1]))
    assert result.pvalue > 1e-5


def test_masses_per_element_shape_the_first_momenta():
    p = torch.nn.Parameter(torch.zeros(2, 40_000))
    mass = torch.tensor([[1.0], [9.0]]).expand(2, 40_000)
    sampler = atmc.ATMC([p], mass=[mass], momentum_init="law", temperature=0.5)
    variance = sampler.state[p]["momentum"].var(dim=1)
    assert variance[0] == pytest.approx(0.5, rel=0.05)
    assert variance[1] == pytest.approx(4.5, rel=0.05)


def test_readings_are_of_the_right_tensor(kit):
    """One parameter is made hot; its reading says so and the others' do not."""
    params = [
        torch.nn.Parameter(torch.zeros(400)),
        torch.nn.Parameter(torch.zeros(500)),
        torch.nn.Parameter(torch.zeros(300)),
    ]
    sampler = atmc.ATMC(
        [(f"p{i}", p) for i, p in enumerate(params)], lr=1e-3, friction=1.0, momentum_init="law", speed_limit=2.0
    )
    sampler.state[params[1]]["momentum"].mul_(3.0)
    for p in params:
        p.grad = torch.zeros_like(p)
    sampler.step()
    readings = sampler.readings()
    assert [t.at_temperature for t in readings.tensors] == [True, False, True]
    assert readings.tensors[1].name == "p1"
    assert readings.tensors[1].kinetic > 3.0
    assert readings.kinetic == pytest.approx(float(sampler.kinetic_temperature()), rel=1e-6)
    assert readings.kinetic > readings.high


def test_intervals_are_those_of_their_law():
    """T χ²_ν/ν lies there with 99.9 %: an element counts 2/Var(p K'/T) degrees, and variances of tensors add up."""
    params = [torch.nn.Parameter(torch.zeros(40)), torch.nn.Parameter(torch.zeros(60))]
    groups = [
        {"params": params[:1], "temperature": 0.5},
        {"params": params[1:], "temperature": 2.0, "mass": 3.0, "speed_limit": 0.7},
    ]
    sampler = atmc.SGHMC(groups, lr=0.01)
    for p in params:
        p.grad = torch.zeros_like(p)
    sampler.step()
    readings = sampler.readings()
    degrees = [40.0, 60.0 * degrees_per_element(3.0 * 0.7**2 / 2.0)]
    mean = 0.4 * 0.5 + 0.6 * 2.0
    together = mean**2 / ((0.4 * 0.5) ** 2 / degrees[0] + (0.6 * 2.0) ** 2 / degrees[1])
    of = [(readings.tensors[0], 0.5, degrees[0]), (readings.tensors[1], 2.0, degrees[1]), (readings, mean, together)]
    for found, temperature, nu in of:
        assert found.low == pytest.approx(temperature * stats.chi2.ppf(0.0005, nu) / nu, rel=1e-4)
        assert found.high == pytest.approx(temperature * stats.chi2.isf(0.0005, nu) / nu, rel=1e-4)


def test_quantiles_of_the_thermostats():
    p = torch.nn.Parameter(torch.zeros(101))
    sampler = atmc.ATMC([p], inertia=math.inf)
    sampler.state[p]["thermostat"].copy_(torch.arange(101.0).flip(0))
    assert sampler.readings().thermostat == (1.0, 50.0, 99.0)
    assert sampler.readings().tensors[0].thermostat == (1.0, 50.0, 99.0)


def test_configurational_temperature_and_silent_share():
    p = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    sampler = atmc.ATMC([p], lr=0.01, friction=1.0, inertia=math.inf)
    sampler.state[p]["thermostat"].copy_(torch.tensor([0.0, 0.5, 1.0, 2.0]))
    p.grad = torch.tensor([1.0, 0.0, -1.0, 2.0])
    sampler.step()
    readings = sampler.readings()
    assert readings.configurational == pytest.approx((1.0 + 0.0 - 3.0 + 8.0) / 4)
    assert readings.silent == 0.5
    assert readings.thermostat == (0.0, 1.0, 2.0)
    assert set(readings.as_dict()) >= {"kinetic_temperature", "silent_share", "thermostat_q50"}


def test_no_reading_before_the_first_step(kit):
    sampler = atmc.ATMC(kit.problem(large=False))
    assert math.isnan(float(sampler.kinetic_temperature()))
    assert math.isnan(sampler.readings().kinetic)


def test_cyclic_cosine_is_the_papers():
    p = torch.nn.Parameter(torch.zeros(2))
    sampler = atmc.ATMC([p], lr=0.001)
    schedule = atmc.CyclicCosine(sampler, cycle=2, steps_per_epoch=5)
    seen, ends = [], []
    for step in range(25):
        seen.append(sampler.param_groups[0]["lr"])
        p.grad = torch.zeros(2)
        sampler.step()
        schedule.step()
        if schedule.ends_cycle():
            ends.append(step)
    expected = [0.0005 * (1 + math.cos(math.pi * (t % 10) / 10)) for t in range(25)]
    assert seen == pytest.approx(expected, rel=1e-12)
    assert ends == [9, 19]
    with pytest.raises(ValueError, match="cycle"):
        atmc.CyclicCosine(sampler, cycle=0)


def test_a_cycle_in_epochs_is_whole_where_it_should_be():
    """0.07 · 100 is 7.000000000000001 in floating point: the eighth step must begin a cycle, not end one at h = 0."""
    p = torch.nn.Parameter(torch.zeros(2))
    lr = torch.tensor(0.5)
    sampler = atmc.ATMC([p], lr=lr)
    schedule = atmc.CyclicCosine(sampler, cycle=0.07, steps_per_epoch=100)
    seen = []
    for _ in range(9):
        seen.append(float(lr))
        p.grad = torch.zeros(2)
        sampler.step()
        schedule.step()
    assert seen[7:] == seen[:2]
    assert sampler.param_groups[0]["lr"] is lr


@pytest.mark.parametrize("name", ["ATMC", "SGNHT", "SGHMC"])
@pytest.mark.parametrize("backend", ["single", "fused"])
def test_noise_temperature_is_the_square_of_the_momentum_along_the_noise(name, backend):
    """Gaussian K, one mass, a step too small to matter: (p·u)²/(m |u|²); and nothing moves."""
    params = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
    sampler = getattr(atmc, name)(params, lr=1e-9, mass=2.0, momentum_init="law", backend=backend)
    first, second = ([torch.randn_like(p) for p in params] for _ in range(2))
    u = torch.cat([(a - b).flatten() for a, b in zip(first, second, strict=True)])
    p = torch.cat([sampler.state[q]["momentum"].flatten() for q in params])
    before = sampler.state_dict()
    read = sampler.noise_temperature(first, second)
    assert float(read) == pytest.approx(float((p @ u) ** 2 / (2.0 * (u @ u))), rel=1e-4)
    after = sampler.state_dict()
    assert before["state"].keys() == after["state"].keys()
    for key, slots in before["state"].items():
        assert all(torch.equal(value, after["state"][key][slot]) for slot, value in slots.items())
    assert all(q.grad is None for q in params)


def test_noise_temperature_of_several_gradients_is_the_mean_over_their_contrasts():
    p = torch.nn.Parameter(torch.randn(6, dtype=torch.float64))
    sampler = atmc.ATMC([p], lr=0.1, mass=0.5, momentum_init="law", friction=2.0)
    grads = [torch.randn(6, dtype=torch.float64) for _ in range(3)]
    mean = sum(grads) / 3
    turned = [grads[0] - grads[1], (grads[0] + grads[1] - 2 * grads[2]) / math.sqrt(3)]
    pairs = [sampler.noise_temperature([mean + u / 2], [mean - u / 2]) for u in turned]
    assert float(sampler.noise_temperature(*([g] for g in grads))) == pytest.approx(float(sum(pairs) / 2), rel=1e-9)


def test_noise_temperature_where_there_is_none():
    p = torch.nn.Parameter(torch.randn(6))
    grad = [torch.randn(6)]
    assert math.isnan(float(atmc.ATMC([p], momentum_init="law").noise_temperature(grad, grad)))
    assert math.isnan(float(atmc.SGLD([p]).noise_temperature(grad, [torch.randn(6)])))
    with pytest.raises(ValueError, match="gradients 1 are 2 tensors, and there are 1 parameters"):
        atmc.ATMC([p]).noise_temperature(grad, [grad[0], grad[0]])
