"""What the doctor says about cycles rests on this: a thermostat that keeps its friction as the step size falls ends
below T, and with it the stiff directions; one that follows the step size does not."""

from __future__ import annotations

import math

import pytest
import torch

import atmc

ELEMENTS, LENGTH, CYCLES = 2000, 100, 40
STIFF = (1e-4, 0.05)  # (h ω)² at the largest step: one direction slower than a cycle, one much faster


def cycle_ends(
    cyclic: bool = True, follows: bool = False, noise: float = 50.0, inertia: float = 1e-3
) -> tuple[list[float], list[float]]:
    """Kinetic temperature, and k Var θ/T, of Gaussian targets at the ends of cycles; `noise` is ξ̄ at the mean step.

    Settings are those of the demo; 2,000 independent elements for each stiffness, the second half of 40 cycles.
    """
    h = 1e-3
    params = [torch.nn.Parameter(torch.empty(ELEMENTS)) for _ in STIFF]
    sampler = atmc.ATMC.from_speeds(
        params,
        lr=h,
        speed=0.004,
        max_speed=0.0133,
        momentum=0.9,
        inertia=inertia,
        reference_lr="lr" if follows else None,
        momentum_init="law",
        seed=1,
    )
    mass = float(sampler.param_groups[0]["mass"])
    springs = [stiff * mass / h**2 for stiff in STIFF]
    spread = math.sqrt(noise * 2 * mass / (h / 2 if cyclic else h))
    generator = torch.Generator().manual_seed(0)
    for p, k in zip(params, springs, strict=True):
        p.data = torch.randn(ELEMENTS, generator=generator) / math.sqrt(k)
    kinetic, virial = torch.zeros(len(STIFF)), torch.zeros(len(STIFF))
    for cycle in range(CYCLES):
        for i in range(LENGTH):
            sampler.param_groups[0]["lr"] = h * 0.5 * (1 + math.cos(math.pi * i / LENGTH)) if cyclic else h
            for p, k in zip(params, springs, strict=True):
                p.grad = k * p.data + spread * torch.randn(ELEMENTS, generator=generator)
            sampler.step()
        if cycle >= CYCLES // 2:
            kinetic += torch.tensor([reading.kinetic for reading in sampler.readings().tensors])
            virial += torch.tensor(
                [float(k * p.detach().square().mean()) for p, k in zip(params, springs, strict=True)]
            )
    return (kinetic / (CYCLES // 2)).tolist(), (virial / (CYCLES // 2)).tolist()


@pytest.mark.parametrize("follows", [False, True])
def test_at_a_constant_step_everything_is_at_temperature(follows: bool) -> None:
    kinetic, virial = cycle_ends(cyclic=False, follows=follows)
    assert kinetic == pytest.approx([1.0, 1.0], abs=0.03)
    # The slow direction is correlated over the whole run: 2,000 elements alone make its error √(2/2000) = 0.03.
    assert virial == pytest.approx([1.0, 1.0], abs=0.13)


@pytest.mark.parametrize("inertia", [1e-3, 1e-4])
def test_friction_that_stays_cools_the_momenta_and_the_stiff_directions(inertia: float) -> None:
    """A lighter thermostat does not help: the doctor says first that it should follow the step size."""
    kinetic, (slow, stiff) = cycle_ends(inertia=inertia)
    assert max(kinetic) < 0.8
    assert slow == pytest.approx(1.0, abs=0.13)
    assert kinetic[1] - 0.05 < stiff < 0.9


@pytest.mark.parametrize("inertia", [1e-3, 1e-4])
def test_friction_that_follows_the_step_size_cools_nothing(inertia: float) -> None:
    kinetic, (slow, stiff) = cycle_ends(follows=True, inertia=inertia)
    assert kinetic == pytest.approx([1.0, 1.0], abs=0.05)
    assert slow == pytest.approx(1.0, abs=0.13)
    assert stiff == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(("knows", "ends_at"), [(True, (0.94, 1.06)), (False, (1.2, 1.6))])
def test_a_cycle_that_begins_hot_ends_at_its_temperature(knows: bool, ends_at: tuple[float, float]) -> None:
    """Annealed from 8 T to T with the step size. Friction goes with h/T: a thermostat that knows h alone ends hot."""
    h, length, noise = 1e-3, 4000, 500.0
    p = torch.nn.Parameter(torch.zeros(4000))
    sampler = atmc.ATMC.from_speeds(
        [p],
        lr=h,
        speed=0.004,
        max_speed=0.0133,
        momentum=0.9,
        inertia=8e-4,
        reference_temperature="temperature" if knows else None,
        seed=1,
    )
    group = sampler.param_groups[0]
    spring, spread = 0.05 * group["mass"] / h**2, math.sqrt(4 * noise * group["mass"] / h)
    generator = torch.Generator().manual_seed(0)
    found = []
    for step in range(4 * length):
        factor = 0.5 * (1 + math.cos(math.pi * (step % length) / length))
        group["lr"], group["temperature"] = h * factor, max(1.0, 8 * factor)
        p.grad = spring * p.data + spread * torch.randn(4000, generator=generator)
        sampler.step()
        if step % length > 0.995 * length and step > 2 * length:
            found.append(float(spring * p.detach().square().mean()))
    low, high = ends_at
    assert low < sum(found) / len(found) < high


def test_less_gradient_noise_does_help() -> None:
    kinetic, (slow, stiff) = cycle_ends(noise=10.0)
    assert min(kinetic) > 0.88
    assert slow == pytest.approx(1.0, abs=0.13)
    assert stiff > 0.95
