"""Law 7: at T = 0 the sampler is `torch.optim.SGD` with momentum: a thermostat has nothing to hold there, and rests.

With x = Dh and φ(x) = (1 − e^(−x))/x the step is p ← e^(−x) p − hφ(x) G, θ ← θ + h p/m. In v = −p/(hφ(x)) that is
v ← e^(−x) v + G, θ ← θ − (h²φ(x)/m) v, which is SGD with

    momentum = e^(−Dh),    lr = h²φ(Dh)/m = (h/m)(1 − e^(−Dh))/D       (h²/m at D = 0).
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from atmc.samplers import ATMC, SGHMC, SGNHT


def _loss(theta: torch.Tensor, step: int) -> torch.Tensor:
    """Not quadratic, and another one at every step, as mini-batches make it."""
    shift = math.sin(step)
    return ((theta - shift) ** 2).sum() / 2 + torch.cos(3 * theta).sum() + (theta[0] * theta[1:]).sum() / 4


def _path(optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> torch.Tensor:
    param = torch.nn.Parameter(torch.linspace(-1, 2, 7, dtype=torch.float64))
    made, path = optimizer([param]), []
    for step in range(200):
        made.zero_grad()
        _loss(param, step).backward()  # type: ignore[no-untyped-call]
        made.step()
        path.append(param.detach().clone())
    return torch.stack(path)


@pytest.mark.parametrize(("h", "m", "d"), [(0.1, 1.0, 2.0), (1e-3, 11.1, 105.36), (0.05, 2.0, 0.0), (0.2, 0.7, 30.0)])
@pytest.mark.parametrize(
    ("sampler", "thermostat"),
    [("SGHMC", "none"), *((s, how) for s in ("ATMC", "SGNHT") for how in ("rests", "infinite inertia"))],
)
def test_at_zero_temperature_it_is_sgd(sampler: str, thermostat: str, h: float, m: float, d: float) -> None:
    lr = h * h / m if d == 0 else -h / m * math.expm1(-d * h) / d
    sgd = _path(lambda params: torch.optim.SGD(params, lr=lr, momentum=math.exp(-d * h)))
    # An infinite inertia holds ξ at 0, and with it friction at D: a thermostat that is there and does nothing.
    options: dict[str, Any] = {"lr": h, "mass": m, "friction": d, "temperature": 0.0}
    cls = {"SGHMC": SGHMC, "ATMC": ATMC, "SGNHT": SGNHT}[sampler]
    if thermostat == "infinite inertia":
        options |= {"inertia": math.inf, "reference_lr": None}
    ours = _path(lambda params: cls(params, **options))
    # Rounding grows along a path that may be chaotic where the loss is not convex; a wrong term shows at once.
    assert torch.allclose(ours[:20], sgd[:20], rtol=1e-12, atol=1e-13)
    assert torch.allclose(ours, sgd, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("device_hyperparameters", [False, True])
@pytest.mark.parametrize("cls", [ATMC, SGNHT])
def test_what_a_thermostat_has_learned_outlasts_an_exploration_at_zero(
    cls: type[ATMC | SGNHT], device_hyperparameters: bool
) -> None:
    """Warm, then T = 0, then warm: friction of the first part is neither applied nor changed in the second."""
    h, m, d = 0.05, 1.0, 2.0
    param = torch.nn.Parameter(torch.linspace(-1, 2, 7, dtype=torch.float64))
    made = cls([param], h, mass=m, friction=d, temperature=0.5, inertia=0.05, seed=3)
    group = made.param_groups[0]

    def step(number: int) -> None:
        made.zero_grad()
        _loss(param, number).backward()  # type: ignore[no-untyped-call]
        made.step()

    for number in range(100):
        step(number)
    learned = made.state[param]["thermostat"].clone()
    assert learned.abs().min() > 0.01
    group["temperature"] = torch.tensor(0.0, dtype=torch.float64) if device_hyperparameters else 0.0
    theta, p = param.detach().clone(), made.state[param]["momentum"].clone()
    kick = -math.expm1(-d * h) / d
    for number in range(100, 150):
        grad = torch.autograd.functional.jacobian(lambda x, n=number: _loss(x, n), theta)
        p = math.exp(-d * h) * p - kick * grad
        theta = theta + h * p / m
        step(number)
    assert torch.allclose(param, theta, rtol=1e-7, atol=1e-7)
    assert torch.equal(made.state[param]["thermostat"], learned)
    group["temperature"] = 0.5
    step(150)
    assert not torch.equal(made.state[param]["thermostat"], learned)


def test_from_speeds_is_the_momentum_it_says() -> None:
    """The paper's CIFAR-10 values are SGD with momentum 0.9 and a learning rate of h²φ/m on the whole potential."""
    speeds = {"lr": 1e-3, "speed": 3e-4, "momentum": 0.9, "temperature": 0.0}
    ours = _path(lambda params: SGHMC.from_speeds(params, **speeds))
    lr = 3e-4**2 * (1 - 0.9) / -math.log(0.9)
    sgd = _path(lambda params: torch.optim.SGD(params, lr=lr, momentum=0.9))
    assert torch.allclose(ours, sgd, rtol=1e-10, atol=1e-12)
