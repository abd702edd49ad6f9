"""What the rows of a run's metrics say: temperatures against their target, the thermostat, and whether the loss drifts.

Kinetic temperature T_kin = mean over parameters of p K'(p) is T in equilibrium; configurational temperature
T_conf = mean of θ·∇U is T too (virial theorem), but a single reading of it scatters widely. A chain that is hotter than
asked has gradient noise that its thermostat has not yet absorbed, and samples a flatter posterior than the one named.
Both are T in any stationary chain, also in one that mini-batches heat in a few directions and cool in all others: that
shows along the gradient noise alone (`noise_ratio`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    degrees: float = float("inf")  # of freedom behind the error: few rows know their own scatter badly

    def excludes(self, value: float, chance: float = 0.003) -> bool:
        """Whether a mean this far from `value` would be met with less than this chance, by Student's t."""
        if not np.isfinite(self.error):
            return False
        from scipy.stats import t  # type: ignore[import-untyped]

        away = abs(self.mean - value)
        return bool(away > t.isf(chance / 2, self.degrees) * self.error)

    def factor(self, chance: float = 0.05) -> float:
        """The interval of a positive mean goes from mean/factor to mean · factor: the error of its logarithm."""
        from scipy.stats import t

        return math.exp(float(t.isf(chance / 2, self.degrees)) * self.error / self.mean)


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


def over_chains(rows: Rows, name: str) -> Floats:
    """One column as a series in time: at each step the mean over the chains that have a number there."""
    at: dict[Any, list[float]] = {}
    for row, value in zip(rows, column(rows, name), strict=True):
        if np.isfinite(value):
            at.setdefault(row.get("step", 0), []).append(float(value))
    return np.array([np.mean(at[step]) for step in sorted(at)])


def settled(rows: Rows, burn_in_epochs: float) -> list[Mapping[str, Any]]:
    """Log rows of the main phase after burn-in, which is counted from the first step as the rows' epochs are."""
    logs = [r for r in rows if r.get("event") == "log" and r.get("phase", "main") == "main"]
    return [r for r in logs if float(r.get("epoch") or 0.0) > burn_in_epochs]


def second_half(rows: Rows) -> list[Mapping[str, Any]]:
    """The rows of the later half of the epochs that they span, of every chain."""
    epochs = column(rows, "epoch")
    if not np.isfinite(epochs).any():
        return []
    middle = (np.nanmin(epochs) + np.nanmax(epochs)) / 2
    return [row for row, epoch in zip(rows, epochs, strict=True) if epoch > middle]


def level(values: Floats, weights: Floats | None = None) -> Level:
    """Mean and standard error of a correlated series by batch means: √n batches of √n consecutive values.

    error = sd(batch means) / √batches. With fewer than eight values there is no error to speak of: NaN.
    """
    heavy = np.ones_like(values) if weights is None else weights
    kept = np.isfinite(values) & (heavy > 0)
    known, heavy = values[kept], heavy[kept]
    n = known.size
    if n == 0:
        return Level(float("nan"), float("nan"), 0)
    mean = float(np.average(known, weights=heavy))
    if n < 8:
        return Level(mean, float("nan"), n)
    size = int(np.sqrt(n))
    count = n // size
    parts = known[n - count * size :].reshape(count, size), heavy[n - count * size :].reshape(count, size)
    means = np.average(parts[0], weights=parts[1], axis=1)
    return Level(mean, float(means.std(ddof=1) / np.sqrt(count)), n, count - 1.0)


def temperature_ratio(rows: Rows, name: str = "kinetic_temperature", by_time: bool = False) -> Level:
    """Measured over asked temperature, averaged over rows whose target is positive; 1 is right.

    `by_time` weighs each row with its step size: the average over the time of the dynamics, in which a chain whose step
    size goes down and up spends little of it where steps are small.
    """
    measured, asked = column(rows, name), column(rows, "temperature")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(asked > 0, measured / asked, np.nan)
    return level(ratio, np.nan_to_num(column(rows, "lr")) if by_time else None)


def noise_ratio(rows: Rows) -> Level:
    """The temperature along the gradient noise over the one asked: the plain mean of all readings; 1 is right."""
    measured, asked = column(rows, "noise_temperature"), column(rows, "temperature")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(asked > 0, measured / asked, np.nan)
    return level(ratio, np.nan_to_num(column(rows, "noise_readings")))


def is_off(level: Level, parameters: float, chance: float = 0.003) -> bool:
    """Whether a chain at the temperature asked would not be met with a mean like this.

    The rows' own scatter judges by Student's t, of the mean or of its logarithm (error over mean): temperatures are
    positive, and what is far too hot scatters as widely as it is hot. A run that goes from bad to worse has more
    scatter still, which speaks against it and not for it. So the mean is also held against the law that it has in
    equilibrium, where d parameters read chi²(d)/d (less than that with a speed limit), as if all rows were one.
    """
    if level.excludes(1.0, chance):
        return True
    from scipy.stats import chi2, t

    if level.mean > 0 and np.isfinite(level.error):
        away = abs(np.log(level.mean)) * level.mean
        if away > t.isf(chance / 2, level.degrees) * level.error:
            return True
    if not parameters > 0 or not np.isfinite(level.mean):
        return False
    tail = chi2.sf if level.mean > 1 else chi2.cdf
    return bool(tail(parameters * level.mean, parameters) < chance / 2)


def cycle_ends(rows: Rows, share: float = 0.2) -> list[Mapping[str, Any]]:
    """The rows of the last `share` of every cycle (at least one each), where samples are taken; all if one cycle.

    A last cycle that has not come to its end, of a run that goes on or was stopped, has no end.
    """
    if len({row.get("cycle", 0) for row in rows}) <= 1:
        return list(rows)
    whole = _whole_cycles(rows, lambda length, usual: length > (1 - share) * usual)
    return [row for part in whole for row in part[-max(1, round(share * len(part))) :]]


def _whole_cycles(rows: Rows, is_whole: Callable[[int, float], bool]) -> list[list[Mapping[str, Any]]]:
    """The rows of each cycle of each chain; the last of a chain only if it has as many as `is_whole` of the usual."""
    cycles: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for row in rows:
        cycles.setdefault((row.get("chain", 0), row.get("cycle", 0)), []).append(row)
    usual = float(np.median([len(part) for part in cycles.values()])) if cycles else 0.0
    last = {chain: max(c for other, c in cycles if other == chain) for chain, _ in cycles}
    return [part for (chain, c), part in cycles.items() if c != last[chain] or is_whole(len(part), usual)]


def warmed(rows: Rows) -> list[Mapping[str, Any]]:
    """Of cycles that explore at T = 0: the later half of each cycle's rows at T, when momenta have warmed up.

    The first of them is of a chain that comes from rest, and no sample is taken there. A part that is too short to warm
    up in shows in the later half as well. A last cycle that was cut short, with fewer rows at T than the others, is
    left out.
    """
    at = [row for row in rows if float(row.get("temperature") or 0.0) > 0.0]
    whole = _whole_cycles(at, lambda length, usual: length + 1 >= usual)
    return [row for part in whole for row in part[len(part) // 2 :]]


def loss_per_cycle(rows: Rows) -> Floats:
    """Mean training loss at the end of every cycle, in order, over all chains; without cycles, of every row."""
    ends = cycle_ends(rows)
    by = "cycle" if len({row.get("cycle", 0) for row in rows}) > 1 else "step"
    groups: dict[Any, list[float]] = {}
    for row, loss in zip(ends, column(ends, "loss"), strict=True):
        if np.isfinite(loss):
            groups.setdefault(row.get(by, 0), []).append(float(loss))
    return np.array([np.mean(groups[key]) for key in sorted(groups)])


def stretches(values: Any, most: int = 40, least: int = 8) -> Floats:
    """Means of equal stretches of a series: as many as are independent of their neighbours, up to `most`.

    A test for a trend takes its points as independent, and neighbouring rows are not. So stretches are made longer as
    long as what a straight line leaves of them correlates with its neighbour. `least` remain whatever they do: what is
    correlated over an eighth of a run has not settled in it.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    count = min(known.size, most)
    while True:
        made = np.array([part.mean() for part in np.array_split(known, count)]) if count else known
        if count <= least or neighbour_correlation(made) < 0.05:
            return made
        count = max(least, count // 2)


def neighbour_correlation(values: Floats) -> float:
    """Lag-one correlation of what a straight line leaves of a series."""
    time = np.arange(values.size)
    rest = values - np.polyval(np.polyfit(time, values, 1), time)
    total = float(np.square(rest).sum())
    return float((rest[1:] * rest[:-1]).sum()) / total if total > 0 else 0.0


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
    from scipy.stats import kendalltau

    found = kendalltau(np.arange(x.size), x)
    return Trend(slope, float(found.statistic), float(found.pvalue), x.size)
