"""Readings of a chain: temperatures with their intervals, and the thermostat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from atmc.samplers.flat_state import Shard, view_like
from atmc.samplers.kinetic_energy import degrees_per_element, least_friction

QUANTILES = (0.01, 0.5, 0.99)
NONE = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class TensorReading:
    """One parameter tensor.

    `kinetic` is the mean of p K'(p) at the last measured synchronised time and should be near `temperature`: inside
    [`low`, `high`] with probability 99.9 % if gradients are exact. Gradient noise does not shift it, but widens its
    scatter, by √(1 + h ξ̄/4) at most. `configurational` is the mean of θ·G at the same time; its average over a chain in
    equilibrium is `temperature` too, but one reading scatters widely.
    `thermostat` and `silent` are those of a step of size h₀ (`reference_lr`) at T₀, whatever the present ones are:
    quantiles of the friction ξ, and the share of elements to which it leaves no noise to be added (ξ ≥ D). What does
    not apply is NaN.
    """

    name: str
    elements: int
    temperature: float
    kinetic: float
    low: float
    high: float
    configurational: float
    thermostat: tuple[float, float, float]  # quantiles of ξ at h₀: 1 %, 50 %, 99 %
    silent: float

    @property
    def at_temperature(self) -> bool:
        """Whether the kinetic temperature lies in its interval."""
        return self.low <= self.kinetic <= self.high


@dataclass(frozen=True)
class Readings:
    """All parameters together, and each tensor. The fields are those of `TensorReading`, weighted by elements."""

    kinetic: float
    low: float
    high: float
    configurational: float
    thermostat: tuple[float, float, float]
    silent: float
    tensors: tuple[TensorReading, ...]

    def as_dict(self) -> dict[str, Any]:
        """The totals as plain numbers, for a log line."""
        return {
            "kinetic_temperature": self.kinetic,
            "kinetic_low": self.low,
            "kinetic_high": self.high,
            "configurational_temperature": self.configurational,
            "thermostat_q01": self.thermostat[0],
            "thermostat_q50": self.thermostat[1],
            "thermostat_q99": self.thermostat[2],
            "silent_share": self.silent,
        }

    def by_tensor(self) -> dict[str, tuple[float, float]]:
        """Kinetic and configurational temperature of each tensor, by its name."""
        return {tensor.name: (tensor.kinetic, tensor.configurational) for tensor in self.tensors}


def read(shards: list[Shard], adaptive: bool) -> Readings:
    """All readings on the host, computed on the device and copied once.

    `adaptive`: whether a high thermostat reduces the added noise (ATMC).
    """
    tensors = [reading for shard in shards for reading in _read_shard(shard, adaptive)]

    def mean(values: list[tuple[float, int]]) -> float:
        known = [(v, n) for v, n in values if not math.isnan(v)]
        return sum(v * n for v, n in known) / sum(n for _, n in known) if known else math.nan

    kinetic = mean([(t.kinetic, t.elements) for t in tensors])
    # The variances of the per-tensor means add up; each is what its own interval implies.
    degrees = [_degrees(shard, i) * shard.params[i].numel() for shard in shards for i in range(len(shard.params))]
    seen = [(t, d) for t, d in zip(tensors, degrees, strict=True) if d and not math.isnan(t.kinetic)]
    total = sum(t.elements for t, _ in seen)
    temperature = sum(t.elements * t.temperature for t, _ in seen) / total if total else math.nan
    spread = sum((t.elements / total * t.temperature) ** 2 / d for t, d in seen) if total else 0.0
    low, high = _interval(temperature, temperature**2 / spread if spread else math.inf)
    thermostats = [
        _thermostat(shard, i).to(shards[0].device, torch.float64 if len(shards) > 1 else shards[0].dtype)
        for shard in shards
        if "thermostat" in shard.flat
        for i in range(len(shard.params))
    ]
    every = torch.cat(thermostats) if thermostats else torch.empty(0)
    return Readings(
        kinetic=kinetic,
        low=low,
        high=high,
        configurational=mean([(t.configurational, t.elements) for t in tensors]),
        thermostat=_triple(_quantiles(every).tolist()) if every.numel() else NONE,
        silent=mean([(t.silent, t.elements) for t in tensors]),
        tensors=tuple(tensors),
    )


def _degrees(shard: Shard, index: int) -> float:
    group, mass = shard.groups[index], shard.mass(index)
    if "speed_limit" not in group:
        return 0.0
    temperature = float(group["temperature"])
    if temperature == 0.0:
        return 1.0
    typical = float(mass.double().median()) if isinstance(mass, Tensor) else float(mass)
    return degrees_per_element(typical * group["speed_limit"] ** 2 / temperature)


def _thermostat(shard: Shard, index: int) -> Tensor:
    """ξ of one parameter as a vector, on its device (a single number if it is shared by all)."""
    flat = shard.flat["thermostat"]
    own = flat if flat.numel() == 1 else view_like(flat, shard.offsets[index], shard.params[index])
    return own.detach().flatten()


def _read_shard(shard: Shard, adaptive: bool) -> list[TensorReading]:
    sums = shard.readings.tolist()
    states = _states(shard, adaptive) if "thermostat" in shard.flat else [(math.nan,) * 4] * len(shard.params)
    found = []
    for index, (p, group) in enumerate(zip(shard.params, shard.groups, strict=True)):
        n = p.numel()
        temperature = float(group["temperature"])
        kinetic, configurational = (v / n if n else math.nan for v in sums[index])
        known = not math.isnan(kinetic)
        low, high = _interval(temperature, _degrees(shard, index) * n) if known else (math.nan, math.nan)
        *quantiles, silent = states[index]
        numbers = temperature, kinetic, low, high, configurational
        found.append(TensorReading(shard.names[index], n, *numbers, _triple(quantiles), silent))
    return found


def _states(shard: Shard, adaptive: bool) -> list[tuple[float, ...]]:
    """For each parameter three quantiles of ξ, and the share of its elements that get no added noise."""
    rows = []
    for index, group in enumerate(shard.groups):
        xi = _thermostat(shard, index)
        if shard.params[index].numel() == 0:
            rows.append(shard.flat["thermostat"].new_full((4,), math.nan, dtype=torch.float64))
            continue
        silent = (
            (xi >= least_friction(group)).double().mean() if adaptive else torch.zeros_like(xi[0], dtype=torch.float64)
        )
        rows.append(torch.cat([_quantiles(xi).double(), silent.reshape(1)]))
    return [tuple(row) for row in torch.stack(rows).tolist()]


def _quantiles(x: Tensor) -> Tensor:
    """Quantiles of a vector of any length (torch.quantile stops at 16 million elements)."""
    last = x.numel() - 1
    ordered = x.sort().values
    return torch.stack([ordered[round(q * last)] for q in QUANTILES])


def _triple(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = values
    return low, middle, high


def _interval(temperature: float, degrees: float, level: float = 0.999) -> tuple[float, float]:
    """Where T χ²_ν/ν lies with probability `level`."""
    if degrees == 0.0 or math.isnan(temperature):
        return math.nan, math.nan
    if math.isinf(degrees):
        return temperature, temperature
    tail = (1.0 - level) / 2.0
    return (
        temperature * chi_square_quantile(tail, degrees) / degrees,
        temperature * chi_square_quantile(1.0 - tail, degrees) / degrees,
    )


@lru_cache(maxsize=1024)
def chi_square_quantile(probability: float, degrees: float) -> float:
    """The quantile of χ² with any positive number of degrees of freedom.

    Wilson and Hilferty's cube is accurate to 1e-4 relative from about a thousand degrees on; below that, bisection on
    the incomplete gamma function.
    """
    spread = 2.0 / (9.0 * degrees)
    guess = degrees * max(1.0 - spread + NormalDist().inv_cdf(probability) * math.sqrt(spread), 0.0) ** 3
    if degrees > 1000.0:
        return guess
    low, high = 0.0, 2.0 * guess + 20.0
    shape = torch.tensor(degrees / 2.0, dtype=torch.float64)
    for _ in range(100):
        middle = (low + high) / 2.0
        below = float(torch.special.gammainc(shape, torch.tensor(middle / 2.0, dtype=torch.float64))) < probability
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2.0
