"""What the rows of a run's metrics say: temperatures against their target, the thermostat, and whether the loss drifts.

Kinetic temperature T_kin = mean over parameters of p K'(p) is T in equilibrium; configurational temperature
T_conf = mean of θ·∇U is T too (virial theorem), but a single reading of it scatters widely. A chain that is hotter than
asked has gradient noise that its thermostat has not yet absorbed, and samples a flatter posterior than the one named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.posterior.arrays import Floats

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Level:
    """A mean over rows, with the standard error that the rows' own scatter and correlation imply."""

    mean: float
    error: float
    rows: int

    def excludes(self, value: float, times: float = 3.0) -> bool:
        """Whether `value` lies more than `times` standard errors away."""
        return bool(np.isfinite(self.error) and abs(self.mean - value) > times * self.error)


@dataclass(frozen=True)
class Trend:
    """A monotone trend: Theil–Sen slope per step of the series, Kendall's τ, and its two-sided p-value."""

    slope: float
    tau: float
    p_value: float
    points: int


def column(rows: Rows, name: str) -> Floats:
    """One column as numbers; what a row does not have is NaN."""
    return np.array([float(r[name]) if isinstance(r.get(name), int | float) else np.nan for r in rows])


def settled(rows: Rows, burn_in_epochs: float) -> list[Mapping[str, Any]]:
    """Log rows of the main phase after burn-in."""
    logs = [r for r in rows if r.get("event") == "log" and r.get("phase", "main") == "main"]
    return [r for r in logs if float(r.get("epoch") or 0.0) > burn_in_epochs]


def level(values: Floats) -> Level:
    """Mean and standard error of a correlated series by batch means: √n batches of √n consecutive values.

    error = sd(batch means) / √batches. With fewer than eight values there is no error to speak of: NaN.
    """
    known = values[np.isfinite(values)]
    n = known.size
    if n == 0:
        return Level(float("nan"), float("nan"), 0)
    if n < 8:
        return Level(float(known.mean()), float("nan"), n)
    size = int(np.sqrt(n))
    count = n // size
    means = known[n - count * size :].reshape(count, size).mean(axis=1)
    return Level(float(known.mean()), float(means.std(ddof=1) / np.sqrt(count)), n)


def temperature_ratio(rows: Rows, name: str = "kinetic_temperature") -> Level:
    """Measured over asked temperature, averaged over rows whose target is positive; 1 is right."""
    measured, asked = column(rows, name), column(rows, "temperature")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(asked > 0, measured / asked, np.nan)
    return level(ratio)


def cycle_ends(rows: Rows, share: float = 0.2) -> list[Mapping[str, Any]]:
    """The rows of the last `share` of every cycle (at least one each), where samples are taken; all if one cycle."""
    cycles: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for row in rows:
        cycles.setdefault((row.get("chain", 0), row.get("cycle", 0)), []).append(row)
    if len({cycle for _, cycle in cycles}) <= 1:
        return list(rows)
    return [row for part in cycles.values() for row in part[-max(1, round(share * len(part))) :]]


def loss_per_cycle(rows: Rows) -> Floats:
    """Mean training loss at the end of every cycle, in order, over all chains; without cycles, of every row."""
    ends = cycle_ends(rows)
    by = "cycle" if len({row.get("cycle", 0) for row in rows}) > 1 else "step"
    groups: dict[Any, list[float]] = {}
    for row, loss in zip(ends, column(ends, "loss"), strict=True):
        if np.isfinite(loss):
            groups.setdefault(row.get(by, 0), []).append(float(loss))
    return np.array([np.mean(groups[key]) for key in sorted(groups)])


def trend(values: Any) -> Trend:
    """Mann–Kendall test for a monotone trend, with the median of all pairwise slopes as its size.

    τ = (concordant − discordant) / pairs of (time, value). Assumes that without a trend the order is arbitrary; exact
    for short series without ties (scipy). p is NaN below five points, where even a perfect order proves little.
    """
    x = np.asarray(values, dtype=np.float64)
    x = x[np.isfinite(x)]
    if x.size < 2:
        return Trend(float("nan"), float("nan"), float("nan"), x.size)
    i, j = np.triu_indices(x.size, k=1)
    slope = float(np.median((x[j] - x[i]) / (j - i)))
    if x.size < 5 or np.ptp(x) == 0.0:
        return Trend(slope, float("nan"), float("nan"), x.size)
    from scipy.stats import kendalltau  # type: ignore[import-untyped]

    found = kendalltau(np.arange(x.size), x)
    return Trend(slope, float(found.statistic), float(found.pvalue), x.size)
