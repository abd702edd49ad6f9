"""What the host learns of a chain, and when: losses and temperatures, copied out behind the chain's back.

An observation enqueues a copy of the device's loss buffer and goes on; the host reads it when it has arrived, usually
while the next steps are already running.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from atmc.samplers import Sampler

THERMOSTAT = ("thermostat_q01", "thermostat_q50", "thermostat_q99")
_QUANTILES = (0.01, 0.5, 0.99)
_MOST = 65_536  # thermostats looked at for their quantiles: plenty for three digits


@dataclass
class Observation:
    """Losses of the steps [first, first + count), and readings at the end of them; on their way to the host."""

    first: int
    count: int
    capacity: int
    packed: Tensor
    event: Any
    made: float
    stops: int = 0  # of readings along the gradient noise
    names: tuple[str, ...] = ()  # of the other readings

    @property
    def ready(self) -> bool:
        return self.event is None or bool(self.event.query())

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()

    def losses(self) -> list[float]:
        """In the order of the steps."""
        self.wait()
        ring = self.packed[: self.capacity].tolist()
        return [ring[step % self.capacity] for step in range(self.first, self.first + self.count)]

    def readings(self) -> dict[str, float]:
        """Kinetic temperature, thermostat, and kicks that are too large; of these what the optimizer has."""
        self.wait()
        return dict(zip(self.names, self.packed[self.capacity + self.stops :].tolist(), strict=True))

    def noise(self) -> list[float]:
        """Temperatures along the gradient noise, of the stops since the last observation; those that are numbers."""
        self.wait()
        return [t for t in self.packed[self.capacity : self.capacity + self.stops].tolist() if math.isfinite(t)]


@torch.no_grad()
def observe(losses: Tensor, optimizer: Optimizer, first: int, count: int, noise: Sequence[Tensor] = ()) -> Observation:
    """Begin to copy out the losses of `count` steps from `first` on. Call it on the chain's stream.

    `noise` are temperatures along the gradient noise that were read in these steps.
    """
    parts = [losses.double(), *(t.double().reshape(1) for t in noise)]
    names: tuple[str, ...] = ()
    if isinstance(optimizer, Sampler):
        names = ("kinetic_temperature",)
        parts.append(optimizer.kinetic_temperature().double().reshape(1))
        flat = [s.flat["thermostat"] for s in optimizer._shards if "thermostat" in s.flat]
        if flat:
            names += THERMOSTAT
            parts.append(_quantiles(torch.cat([f.reshape(-1) for f in flat]) if len(flat) > 1 else flat[0].reshape(-1)))
        if optimizer.noise_examples:
            names += ("kick_excess",)
            parts.append(optimizer.kick_excess().double().reshape(1))
    packed = torch.cat(parts)
    event = None
    if packed.is_cuda:
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        packed, event = host, torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    return Observation(first, count, len(losses), packed, event, time.monotonic(), len(noise), names)


def _quantiles(flat: Tensor) -> Tensor:
    some = flat[:: max(1, flat.numel() // _MOST)].double().sort().values
    last = some.numel() - 1
    return torch.stack([some[round(q * last)] for q in _QUANTILES])
