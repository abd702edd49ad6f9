"""The predictive of a regression and its scores.

Each sample k predicts a law with mean f_k(x) and scale σ_k(x) (Gaussian or Student-t noise, as the likelihood says), so
the predictive is the mixture Σ_k w_k p(y | f_k, σ_k). All of it is in the units of the targets:

    mean       f̄ = Σ_k w_k f_k
    epistemic  Σ_k w_k (f_k − f̄)²     variance over samples, which more data would reduce
    aleatoric  Σ_k w_k v_k            the noise of the targets: v = σ², times ν/(ν − 2) for Student-t
    variance   aleatoric + epistemic  (the law of total variance)

Scores on known targets:

    nll        −log Σ_k w_k Π_j p(y_j | f_kj, σ_kj)            of each example's target, all components j together
    coverage   is 0.05 ≤ Σ_k w_k F((y − f_k)/σ_k) ≤ 0.95?      of each number: inside the central 90 % interval or not
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.common.text import plural
from atmc.posterior.arrays import check_weights, to_numpy
from atmc.posterior.inputs import as_batches, fitting, home_of, pick_device
from atmc.posterior.intervals import Spread, groups_of, spread_of
from atmc.posterior.metric_entries import Metric, entries, register, summary_of
from atmc.posterior.mixture import Mixture, quantile
from atmc.target.likelihoods import Gaussian, LocationScale

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior

LEVEL = 0.9  # of the central interval whose coverage is counted
AT_ONCE = 1 << 22  # numbers worked on together


@dataclass(frozen=True, repr=False)
class Estimate:
    """The predictive of N inputs; all float64, in the units and the shape of the targets."""

    mean: Tensor
    aleatoric: Tensor  # variances
    epistemic: Tensor
    samples: int
    mixture: Mixture | None = field(default=None, compare=False)  # each sample's law, for `interval`

    @property
    def std(self) -> Tensor:
        """Standard deviation of the predictive."""
        return (self.aleatoric + self.epistemic).sqrt()

    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds this share of the predictive."""
        if not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, as 0.9, not {level!r}")
        if self.mixture is None:
            raise InputError("this estimate has no samples to make an interval of: take it from posterior.regress(x)")
        ends = [quantile(self.mixture, q).to(self.mean.device) for q in ((1 - level) / 2, (1 + level) / 2)]
        return ends[0].reshape(self.mean.shape), ends[1].reshape(self.mean.shape)

    def __len__(self) -> int:
        return int(self.mean.shape[0])

    def __repr__(self) -> str:
        """The means over the examples instead of the tensors."""
        outputs = plural(math.prod(self.mean.shape[1:]), "output")
        about = f"{plural(len(self), 'example')}, {outputs}, {plural(self.samples, 'sample')}"
        if not len(self):
            return f"Estimate({about})"
        parts = (self.aleatoric + self.epistemic, self.aleatoric, self.epistemic)
        total, noise, own = (float(part.mean()) for part in parts)
        return f"Estimate({about}; mean variance {total:.3g}, of which aleatoric {noise:.3g} and epistemic {own:.3g})"


def regress(
    posterior: Posterior, inputs: Any, batch_size: int = 256, device: torch.device | str | None = None
) -> Estimate:
    """The predictive mean and variance for `inputs`, one batch at a time."""
    law = law_of(posterior.likelihood)
    if law is None and posterior.likelihood is None:
        raise ValueError(
            "regress needs the noise of the targets: make the posterior with "
            "likelihood=atmc.likelihoods.Gaussian(scale); for classes use predict"
        )
    if law is None:
        raise ValueError("the likelihood of this posterior is not a regression's: use predict")
    if len(posterior) == 0:
        raise ValueError("the posterior has no samples: run the sampler past its burn-in, then predict")
    home = home_of(inputs)
    target = pick_device(home, device)
    means, scales = [], []
    states = [{n: t.to(target) for n, t in posterior.state(k).items()} for k in range(len(posterior))]
    with torch.no_grad():
        for b, raw in enumerate(as_batches(inputs, batch_size, posterior.shape)[0]):
            x = posterior.prepare(raw, target, check_scale=b == 0)
            with fitting(posterior.model, posterior.shape, raw):
                outputs = torch.stack([posterior.on(target, state)(x).double() for state in states])
            means.append(law.predict(outputs).to(home))
            scales.append(law.noise(outputs).to(home))
    f, sigma = torch.cat(means, 1), torch.cat(scales, 1)
    if not bool(torch.isfinite(f).all()) or not bool(torch.isfinite(sigma).all()):
        raise RuntimeError("the predictive is not finite: a sample has diverged, or the inputs hold NaN")
    shape, width = f.shape[1:], math.prod(f.shape[2:])
    weights = torch.from_numpy(posterior.weights).to(home)
    parts = (part.reshape(len(states), -1, width) for part in (f, sigma))
    mixture = Mixture(next(parts), None, next(parts), weights, law.degrees())
    moments = (mixture.mean, mixture.aleatoric, mixture.epistemic)
    mean, noise, own = (part.reshape(shape) for part in moments)
    return Estimate(mean, noise, own, len(posterior), mixture)


def law_of(likelihood: Any) -> Any:
    """The likelihood of a regression, which predicts a mean and a noise for each output; None for any other."""
    regression = getattr(likelihood, "task", "classification") == "regression"
    return likelihood if regression and hasattr(likelihood, "noise") and hasattr(likelihood, "predict") else None


def summary(outputs: Any, targets: Any, likelihood: Any, weights: Any = None) -> dict[str, Any]:
    """`{"single": {...}, "predictive": {...}, "samples": K, "mean_single": {...}}`, as `metrics.summary` for classes.

    `outputs` `[K, N, ...]` are each sample's, `targets` `[N, ...]` what is true, `likelihood` a regression's, or the
    standard deviation of Gaussian noise.
    """
    whole = mixture_of(outputs, targets, likelihood, weights)
    each = [_scores(_terms(one_of(whole, k))) for k in range(len(whole.weights))]
    return summary_of(each, _scores(_terms(whole)), whole.weights.numpy())


def spreads(of: Mixture) -> dict[str, Spread]:
    """Every registered metric by name, with its 95 % interval; the groups are of whole examples."""
    terms, count = _terms(of), len(of.known)
    group = torch.from_numpy(groups_of(count))
    kept = [group != g for g in range(int(group.max()) + 1)] if count > 1 else []
    value, without = _scores(terms), [_scores(terms, rows) for rows in kept]
    return {
        metric.name: spread_of(metric, value[metric.name], np.array([part[metric.name] for part in without]), count)
        for metric in terms
    }


def constant_spreads(targets: Any) -> dict[str, Spread]:
    """One answer for every example: the mean of these targets, with Gaussian noise of their standard deviation."""
    y = torch.from_numpy(np.asarray(to_numpy(targets), dtype=np.float64)).reshape(len(targets), -1)
    mean, std = y.mean(0), y.std(0, correction=0).clamp_min(1e-300)
    same = [part.expand_as(y)[None] for part in (mean, std)]
    return spreads(Mixture(same[0], y, same[1], torch.ones(1, dtype=torch.float64)))


def mixture_of(outputs: Any, targets: Any, likelihood: Any, weights: Any = None) -> Mixture:
    """The predictive of outputs `[K, N, ...]` with its targets `[N, ...]`, both checked."""
    law = Gaussian(float(likelihood)) if isinstance(likelihood, int | float) else likelihood
    raw = torch.from_numpy(np.ascontiguousarray(to_numpy(outputs)))
    y = torch.from_numpy(np.ascontiguousarray(to_numpy(targets)))
    if raw.ndim < 2 or raw.shape[0] == 0 or raw.shape[1] == 0:
        raise ValueError(f"outputs must be [samples, examples, ...] with at least one of each, not {list(raw.shape)}")
    if not bool(torch.isfinite(raw).all()):
        raise ValueError("the outputs are not finite: a sample has diverged, or the inputs hold NaN")
    f, sigma = law.predict(raw), law.noise(raw)
    if isinstance(law, LocationScale) and f.shape[1:] != y.shape and f[0].numel() == y.numel():
        y = y.reshape(f.shape[1:])  # [N] for [N, 1], and the other way round
    if f.shape[1:] != y.shape:
        cure = "; pass y[:, None]" if f.shape[1:] == (*y.shape, 1) else ""
        raise InputError(
            f"targets of shape {list(y.shape)} for outputs of shape {list(f.shape[1:])}: they must have one shape "
            f"(they are compared number by number, never broadcast){cure}"
        )
    if not bool(torch.isfinite(y).all()):
        raise InputError("the targets hold NaN or infinite values")
    w = torch.from_numpy(check_weights(weights, len(f)))
    width = math.prod(y.shape[1:])
    parts = [part.double().reshape(len(f), -1, width) for part in (f, sigma)]
    return Mixture(parts[0], y.double().reshape(-1, width), parts[1], w, law.degrees())


def one_of(of: Mixture, k: int) -> Mixture:
    """Sample `k` alone."""
    return Mixture(of.outputs[k : k + 1], of.targets, of.scale[k : k + 1], torch.ones(1).double(), of.degrees)


def squared_error(of: Mixture) -> Tensor:
    """(f̄ − y)² of each number."""
    return (of.mean - of.known).square()


def nll_each(of: Mixture) -> Tensor:
    """−log density of each example's target, in nats."""
    return -torch.logsumexp(of.log_density().sum(2) + of.weights.log()[:, None], dim=0)


def inside(of: Mixture) -> Tensor:
    """Whether each number lies in the central interval."""
    return (of.below(of.known) - 0.5).abs() <= LEVEL / 2


# An error is in the units of the targets, which may be any: three digits of it, wherever they are.
register(
    Metric(
        "rmse",
        "RMSE",
        squared_error,
        digits=".3g",
        task="regression",
        after=math.sqrt,
        lowest=0.0,
        about="Root mean squared error: how far predictions typically are from the truth, in the units of the target. "
        "Large errors count most.",
    )
)
register(
    Metric(
        "nll",
        "NLL",
        nll_each,
        unit="nats",
        task="regression",
        about="Negative log-likelihood: the mean of −log(predicted density at the true value). Lower is better; it "
        "rewards small errors and an uncertainty of the right size. Its zero depends on the units of the target.",
    )
)
register(
    Metric(
        "coverage90",
        "in 90 % interval",
        inside,
        "neither",
        unit="%",
        digits=".1f",
        task="regression",
        proportion=True,
        about="The share of true values inside the interval that the model gives 90 %. Near 90 is right; below it the "
        "model is overconfident, above it underconfident.",
    )
)


def _terms(of: Mixture) -> dict[Metric, Tensor]:
    """What each example adds to every metric, `[N, …]`, some examples at a time."""
    found: dict[Metric, list[Tensor]] = {metric: [] for metric in entries("regression")}
    count = max(1, AT_ONCE // max(1, of.outputs[:, 0].numel()))
    for start in range(0, len(of.known), count):
        some = slice(start, start + count)
        part = Mixture(of.outputs[:, some], of.known[some], of.scale[:, some], of.weights, of.degrees)
        for metric, rows in found.items():
            rows.append(metric.of(part).double())
    return {metric: torch.cat(rows) for metric, rows in found.items()}


def _scores(terms: dict[Metric, Tensor], rows: Tensor | slice = slice(None)) -> dict[str, float]:
    return {metric.name: metric.after(float(each[rows].mean())) for metric, each in terms.items()}
