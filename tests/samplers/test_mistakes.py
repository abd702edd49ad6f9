"""What readings say of the commonest mistakes of a loop: the kinetic temperature does not see all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import atmc


def loop(
    backward: Callable[[atmc.Potential, torch.Tensor, torch.Tensor], None], steps: int = 4000, burn_in: int = 1500
) -> tuple[float, float]:
    """The guide's problem and numbers at constant steps; the mean kinetic and configurational temperature."""
    torch.manual_seed(0)
    x = torch.randn(400, 2)
    y = (x.square().sum(1) + 0.5 * torch.randn(400) > 1.4).long()
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    potential = atmc.Potential(model, num_data=400, prior=atmc.priors.gaussian(1.0))
    speed = (0.02 / 400) ** 0.5
    sampler = atmc.ATMC.from_speeds(model.parameters(), lr=1e-3, speed=speed, max_speed=3 * speed, momentum=0.9)
    found = []
    for step in range(steps):
        i = torch.randint(400, (50,))
        sampler.zero_grad()
        backward(potential, x[i], y[i])
        sampler.step()
        if step >= burn_in and step % 10 == 9:
            found.append((sampler.readings().kinetic, sampler.readings().configurational))
    kinetic, configurational = torch.tensor(found).mean(0).tolist()
    return kinetic, configurational


def right(potential: atmc.Potential, x: torch.Tensor, y: torch.Tensor) -> None:
    potential(x, y).backward()


def mean_loss(potential: atmc.Potential, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.nn.functional.cross_entropy(potential.model(x), y).backward()


def clipped(potential: atmc.Potential, x: torch.Tensor, y: torch.Tensor) -> None:
    potential(x, y).backward()
    torch.nn.utils.clip_grad_norm_(potential.model.parameters(), 1.0)


def test_a_right_loop_has_both_temperatures() -> None:
    """After the guide's burn-in: weights are slow, and after 500 steps still far below T."""
    kinetic, configurational = loop(right)
    assert kinetic == pytest.approx(1.0, abs=0.05)
    assert configurational == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("mistake", [mean_loss, clipped])
def test_a_loss_that_is_a_mean_and_clipped_gradients_show_in_the_positions_only(mistake) -> None:
    kinetic, configurational = loop(mistake, steps=1500, burn_in=500)
    assert kinetic == pytest.approx(1.0, abs=0.05)
    assert abs(configurational) < 0.1


def test_a_thermostat_that_is_not_given_an_inertia_follows_noisy_gradients() -> None:
    """With the paper's inertia, 1, the chain stays hot for as long as this runs."""
    hot = {}
    for inertia in (None, 1.0):
        generator = torch.Generator().manual_seed(1)
        theta = torch.nn.Parameter(torch.randn(2000, generator=generator))
        options = {} if inertia is None else {"inertia": inertia}
        sampler = atmc.ATMC.from_speeds([theta], lr=1e-3, speed=1e-2, momentum=0.9, **options)
        readings = []
        for step in range(1200):
            theta.grad = theta.detach() + 100.0 * torch.randn(2000, generator=generator)
            sampler.step()
            if step >= 800 and step % 10 == 9:
                readings.append(sampler.readings().kinetic)
        hot[inertia] = sum(readings) / len(readings)
    assert hot[None] == pytest.approx(1.0, abs=0.05)
    assert hot[1.0] > 1.5


def test_the_inertia_that_is_not_given_goes_with_noise_and_temperature() -> None:
    def made(kind: type = atmc.ATMC, group: dict | None = None, **options) -> float:
        params = [{"params": [torch.nn.Parameter(torch.zeros(2))], **(group or {})}]
        return kind(params, **options).param_groups[0]["inertia"]

    assert made(friction=30.0) == pytest.approx(0.01)
    assert made(friction=30.0, temperature=0.5) == pytest.approx(0.005)
    assert made(friction=30.0, temperature=torch.tensor(0.5)) == pytest.approx(0.005)
    assert made(friction=30.0, temperature=0.0) == pytest.approx(0.01)
    assert made(friction=1.0) == made(friction=0.0) == 1.0
    assert made(friction=30.0, inertia=0.3) == 0.3
    assert made(friction=30.0, group={"friction": 60.0}) == pytest.approx(0.0025)
    assert made(friction=30.0, group={"inertia": 0.7}) == 0.7
    assert made(atmc.SGNHT, friction=30.0) == pytest.approx(0.01)
    assert made(atmc.SGNHT, friction=30.0, thermostat="scalar") == 1.0
