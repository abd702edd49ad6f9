"""How fast a sampler may go on a network and data that nobody has tuned for: found by a short walk, before the run.

A sampler of average speed v is SGD with momentum at the rate v² N on the mean loss. Two things limit that rate. Where
the loss is most curved, λ, a step must not overshoot: rate · λ stays small. And mini-batch gradients heat: a parameter
whose gradient of U has the variance Var(G) needs the friction h Var(G)/(2 m T), that is D · rate · Var(G)/(2 N T D h),
to stay at T. A thermostat finds that friction, but its law rests on noise that is new at every step, and batches that
go through the data epoch by epoch are not; so it has to stay below the friction D that is there anyway. Where that
limit holds, going faster would not get a chain further: noisy directions move by (2T/Var(G)) G a step at any speed.
With friction along the noise (`sampler.noise_rank`) it is the noisiest direction that counts, v the largest eigenvalue
of the covariance of G: the friction follows a noise that changes with θ only while rate · v/(4 N T) stays below NOISY.
That bound holds where it must and is far too strict elsewhere; so where the batch may grow, pilots take its place, and
only curvature limits the rate (`batch_growth.py`).

Both are known only near where the network fits, so a copy of it is led there first, by SGD on the same potential.
"""

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atmc.data import DeviceStore, ImageData
from atmc.data.choose_batches import fits
from atmc.engine.batch_growth import Choice, choose_batch, pilot
from atmc.engine.step_stability import curvature

STEPS = 300  # of the walk, at most; and at most EPOCHS epochs
EPOCHS = 20
LOOKS = 24  # gradients whose variance is taken, and rounds of power iteration
EXAMPLES = 1024  # for the curvature
BENT = 0.5  # most of rate · λ: 0.7 of a radian a step of the stiffest oscillation
HEAT = 0.5  # most of the friction that gradient noise asks for, in units of D (the median over parameters)
# Most of rate · v/(4 N T). A network (64–50–10, digits, batches of 20) is at 1.15 times T along the noise at 0.25,
# and at 2.1 times T at 1; without that friction at 2.4 and 6.5.
NOISY = 0.25
MOMENTUM = 0.9
Potential = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class StepSize:
    """Rates on the mean loss: `start` for SGD from the first weights on, `rate` for the sampler afterwards."""

    start: float
    rate: float
    choice: Choice | None = None  # of the batch, where pilots made it


def find_step_size(
    model: nn.Module,
    data: ImageData,
    make: Callable[[nn.Module], Potential],
    batch: int,
    most: float,
    device: Any,
    noise_rank: int = 0,
    temperature: float = 1.0,
    largest: int = 0,
    kind: type | None = None,
) -> StepSize:
    """The largest rates up to `most` that curvature and gradient noise allow; `make` gives a network its potential.

    Where the batch may grow to `largest`, pilots of the sampler `kind` choose it and its rate.
    """
    walker = _Walker(copy.deepcopy(model).to(device), data, make, min(batch, len(data)), torch.device(device))
    start = min(most, BENT / walker.curvature())
    while not walker.walk(start) and start > 1e-9 * most:
        start /= 4
    bent = BENT / walker.curvature()
    if largest > batch and kind is not None:

        def read(size: int, rate: float) -> tuple[float, float]:
            draw = functools.partial(walker.noisy_gradient, size)
            return pilot(walker.params, draw, kind, len(data), rate, noise_rank, temperature, MOMENTUM)

        choice = choose_batch(read, batch, largest, _short(min(most, bent)))
        return StepSize(_short(start), choice.rate, choice)
    each, along = walker.variance()
    if noise_rank:
        noisy = 4 * NOISY * len(data) * temperature / max(along, 1e-300)
    else:
        noisy = 2 * HEAT * math.log(1 / MOMENTUM) * len(data) / max(each, 1e-300)
    return StepSize(_short(start), _short(min(most, bent, noisy)))


class _Walker:
    """A copy of the network that looks around; all random numbers are its own, so that it finds the same each time."""

    def __init__(
        self,
        model: nn.Module,
        data: ImageData,
        make: Callable[[nn.Module], Potential],
        batch: int,
        device: torch.device,
    ) -> None:
        self.data, self.batch, self.device = data, batch, device
        self.store = DeviceStore(data, device if fits(data, device) else "cpu", torch.float32)
        self.potential = make(model)  # in the mode it has: frozen BatchNorm stays frozen
        self.params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.first = [p.detach().clone() for p in self.params]
        self.generator = torch.Generator().manual_seed(0)

    def walk(self, rate: float) -> bool:
        """Go from the first weights down by SGD; False where that does not end below where it began."""
        with torch.no_grad():
            for p, first in zip(self.params, self.first, strict=True):
                p.copy_(first)
        steps = min(STEPS, max(20, EPOCHS * len(self.data) // self.batch))
        moving = [torch.zeros_like(p) for p in self.params]
        losses = []
        for step in range(steps):
            loss, grads = self.gradient(self.batch)
            losses.append(loss)
            if not math.isfinite(loss):
                return False
            torch._foreach_mul_(moving, MOMENTUM)
            torch._foreach_add_(moving, grads)
            with torch.no_grad():
                lower = min(
                    1.0, 2 * (1 - step / steps)
                )  # at the full rate to the end it would be where the noise leads
                torch._foreach_add_(self.params, moving, alpha=-rate * lower / len(self.data))
        fifth = max(1, steps // 5)
        return sum(losses[-fifth:]) <= sum(losses[:fifth])

    def gradient(self, count: int) -> tuple[float, list[Tensor]]:
        """U and its gradient, estimated on a random batch of `count`."""
        index = torch.randperm(len(self.data), generator=self.generator)[:count]
        return self._gradient(index)

    def noisy_gradient(self, count: int) -> list[Tensor]:
        """The gradient on a batch drawn with replacement, as runs with `sampler.noise_rank` draw it."""
        return self._gradient(torch.randint(len(self.data), (count,), generator=self.generator))[1]

    def _gradient(self, index: Tensor) -> tuple[float, list[Tensor]]:
        x, y = self.store.examples(index.to(self.store.device))
        with torch.enable_grad():
            u = self.potential(x.to(self.device), y.to(self.device))
            grads = torch.autograd.grad(u, self.params, allow_unused=True)
        return float(u.detach()), [
            torch.zeros_like(p) if g is None else g for p, g in zip(self.params, grads, strict=True)
        ]

    def curvature(self) -> float:
        """The largest curvature λ of U/N here, by power iteration on differences of the gradient."""
        index = torch.randperm(len(self.data), generator=self.generator)[: min(EXAMPLES, len(self.data))]
        found = curvature(lambda: self._gradient(index)[1], self.params, self.generator, LOOKS) / len(self.data)
        return found if found > 0 else 1e-12

    def variance(self) -> tuple[float, float]:
        """The variance of a batch's gradient of U: its median over parameters, and along its noisiest direction.

        Examples are drawn with replacement, as with `sampler.noise_rank`; a batch of all data has none.
        """
        if self.batch >= len(self.data):
            return 0.0, 0.0
        rows = []
        for _ in range(LOOKS):
            rows.append(torch.cat([g.flatten() for g in self.noisy_gradient(self.batch)]))
        spread = torch.stack(rows)
        spread -= spread.mean(0)
        each = spread.double().square().sum(0) / (LOOKS - 1)
        alive = each[each > 0]
        top = float(torch.linalg.matrix_norm(spread.double(), ord=2)) ** 2 / (LOOKS - 1)
        return float(alive.median()) if len(alive) else 0.0, top


def _short(value: float) -> float:
    """Two digits are enough, and are the same on every machine more often than all of them."""
    return float(f"{value:.2g}")
