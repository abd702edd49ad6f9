"""Law 7: at T = 0 without a thermostat the sampler is `torch.optim.SGD` with momentum.

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
@pytest.mark.parametrize("sampler", ["SGHMC", "ATMC", "SGNHT"])
def test_at_zero_temperature_it_is_sgd(sampler: str, h: float, m: float, d: float) -> None:
    lr = h * h / m if d == 0 else -h / m * math.expm1(-d * h) / d
    sgd = _path(lambda params: torch.optim.SGD(params, lr=lr, momentum=math.exp(-d * h)))
    # An infinite inertia holds ξ at 0, and with it friction at D: a thermostat that is there and does nothing.
    options: dict[str, Any] = {"lr": h, "mass": m, "noise": d, "temperature": 0.0}
    cls = {"SGHMC": SGHMC, "ATMC": ATMC, "SGNHT": SGNHT}[sampler]
    options |= {} if cls is SGHMC else {"inertia": math.inf}
    ours = _path(lambda params: cls(params, **options))
    # Rounding grows along a path that may be chaotic where the loss is not convex; a wrong term shows at once.
    assert torch.allclose(ours[:20], sgd[:20], rtol=1e-12, atol=1e-13)
    assert torch.allclose(ours, sgd, rtol=1e-7, atol=1e-7)


def test_from_speeds_is_the_momentum_it_says() -> None:
    """The paper's CIFAR-10 values are SGD with momentum 0.9 and a learning rate of h²φ/m on the whole potential."""
    speeds = {"lr": 1e-3, "speed": 3e-4, "momentum": 0.9, "temperature": 0.0}
    ours = _path(lambda params: SGHMC.from_speeds(params, **speeds))
    lr = 3e-4**2 * (1 - 0.9) / -math.log(0.9)
    sgd = _path(lambda params: torch.optim.SGD(params, lr=lr, momentum=0.9))
    assert torch.allclose(ours, sgd, rtol=1e-10, atol=1e-12)
