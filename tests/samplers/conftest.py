"""Shared pieces of the sampler tests: every sampler in every configuration, and a problem to step on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import atmc

Make = Callable[..., Any]


def _configurations() -> dict[str, tuple[type, dict[str, Any]]]:
    kinetic = {"mass": 2.0, "friction": 1.5, "temperature": 0.7}
    rest = {"temperature": 0.0, "thermostat_init": 2.5}
    return {
        "atmc": (atmc.ATMC, {**kinetic, "inertia": 0.3}),
        "atmc-hyperbolic": (atmc.ATMC, {**kinetic, "speed_limit": 0.6, "reference_lr": 0.08}),
        "atmc-frozen": (
            atmc.ATMC,
            {**kinetic, "speed_limit": 0.6, "integrator": "leapfrog-frozen", "reference_lr": 0.02},
        ),
        "atmc-strang": (
            atmc.ATMC,
            {**kinetic, "speed_limit": 0.6, "integrator": "strang", "reference_temperature": 0.3},
        ),
        "atmc-resting": (atmc.ATMC, {**kinetic, **rest, "reference_temperature": 0.3}),
        "atmc-never-warm": (atmc.ATMC, {**kinetic, **rest, "reference_lr": 0.08}),
        "sgnht": (atmc.SGNHT, {**kinetic, "reference_lr": 0.06, "reference_temperature": 0.4}),
        "sgnht-scalar": (atmc.SGNHT, {**kinetic, "thermostat": "scalar", "speed_limit": 0.6, "reference_lr": 0.2}),
        "sghmc": (atmc.SGHMC, {**kinetic, "noise_estimate": 0.2}),
        "sghmc-strang": (atmc.SGHMC, {**kinetic, "integrator": "strang", "speed_limit": 1.0}),
        "sgld": (atmc.SGLD, {"temperature": 0.7}),
        "sgld-rmsprop": (atmc.SGLD, {"temperature": 0.7, "preconditioner": "rmsprop"}),
    }


CONFIGURATIONS = _configurations()


@pytest.fixture(params=sorted(CONFIGURATIONS))
def make(request: pytest.FixtureRequest) -> Make:
    """A function that makes one configuration of a sampler; options override."""
    cls, defaults = CONFIGURATIONS[request.param]

    def build(params: Any, **options: Any) -> Any:
        return cls(params, **{"lr": 0.05, "seed": 7, **defaults, **options})

    return build


def problem(device: str = "cpu", dtype: torch.dtype = torch.float32, large: bool = True) -> list[torch.nn.Parameter]:
    """Parameters of awkward shapes: tiny, larger than one piece, channels-last, a scalar, an odd length."""
    g = torch.Generator().manual_seed(1)
    shapes: list[tuple[int, ...]] = [(5,), (200, 333) if large else (20, 3), (), (8, 3, 3, 3), (1025,)]
    params = []
    for shape in shapes:
        value = torch.randn(shape, generator=g).to(device, dtype)
        if len(shape) == 4:
            value = value.contiguous(memory_format=torch.channels_last)
        params.append(torch.nn.Parameter(value))
    return params


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    """A noisy quadratic's gradient, the same for the same step and parameters."""
    for i, p in enumerate(params):
        g = torch.Generator().manual_seed(1000 * step + i)
        noise = torch.randn(p.shape, generator=g).to(p.device, p.dtype)
        p.grad = p.detach() * (1 + i) + 0.5 * noise


def run(sampler: Any, params: list[torch.nn.Parameter], steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        set_gradients(params, step)
        sampler.step()


def snapshot(sampler: Any, params: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Parameters and all state, copied."""
    out = [p.detach().clone() for p in params]
    out += [sampler.state[p][slot].clone() for p in params for slot in sampler.slots]
    return out


class Kit:
    """The helpers above, for test modules (which cannot import from conftest)."""

    problem = staticmethod(problem)
    set_gradients = staticmethod(set_gradients)
    run = staticmethod(run)
    snapshot = staticmethod(snapshot)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
