"""The predictive of a regression and its scores.

Each sample predicts N(f_k(x), σ²) with the likelihood's σ, so the predictive is the mixture Σ_k w_k N(f_k(x), σ²):

    mean       f̄ = Σ_k w_k f_k
    epistemic  Σ_k w_k (f_k − f̄)²     variance over samples, which more data would reduce
    aleatoric  σ²                     the noise of the targets
    variance   aleatoric + epistemic  (the law of total variance)

Scores on known targets:

    nll        −log Σ_k w_k Π_j N(y_j; f_kj, σ²)               of each example's target, all components j together
    coverage   is 0.05 ≤ Σ_k w_k Φ((y − f_k)/σ) ≤ 0.95?        of each number: inside the central 90 % interval or not
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.common.text import plural
from atmc.posterior.arrays import check_weights, to_numpy
from atmc.posterior.inputs import as_batches, fitting, home_of, pick_device
from atmc.posterior.metric_entries import Metric, entries, register, summary_of

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior

LEVEL = 0.9  # of the central interval whose coverage is counted
AT_ONCE = 1 << 22  # numbers worked on together


@dataclass(frozen=True, repr=False)
class Estimate:
    """The predictive of N inputs; all float64, shaped as the network's outputs."""

    mean: Tensor
    aleatoric: Tensor  # variances
    epistemic: Tensor
    samples: int

    @property
    def std(self) -> Tensor:
        """Standard deviation of the predictive."""
        return (self.aleatoric + self.epistemic).sqrt()

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
    """The predictive mean and variance for `inputs`, one batch at a time, two passes over the samples' outputs."""
    scale = noise_of(posterior.likelihood)
    if scale is None and posterior.likelihood is None:
        raise ValueError(
            "regress needs the noise of the targets: make the posterior with "
            "likelihood=atmc.likelihoods.Gaussian(scale); for classes use predict"
        )
    if scale is None:
        raise ValueError("the likelihood of this posterior is not a regression's: use predict")
    if len(posterior) == 0:
        raise ValueError("the posterior has no samples: run the sampler past its burn-in, then predict")
    home = home_of(inputs)
    target = pick_device(home, device)
    weights = torch.from_numpy(posterior.weights).to(target)
    means, spreads = [], []
    states = [{n: t.to(target) for n, t in posterior.state(k).items()} for k in range(len(posterior))]
    with torch.no_grad():
        for b, raw in enumerate(as_batches(inputs, batch_size, posterior.shape)[0]):
            x = posterior.prepare(raw, target, check_scale=b == 0)
            with fitting(posterior.model, posterior.shape, raw):
                outputs = torch.stack([posterior.on(target, state)(x).double() for state in states])
            shape = (-1, *[1] * (outputs.ndim - 1))
            mean = (outputs * weights.view(shape)).sum(dim=0)
            means.append(mean)
            spreads.append(((outputs - mean).square() * weights.view(shape)).sum(dim=0))
    mean = torch.cat(means).to(home)
    if not bool(torch.isfinite(mean).all()):
        raise RuntimeError("the predictive is not finite: a sample has diverged, or the inputs hold NaN")
    return Estimate(mean, torch.full_like(mean, scale**2), torch.cat(spreads).to(home), len(posterior))


def noise_of(likelihood: Any) -> float | None:
    """The standard deviation σ of a regression's targets, as its likelihood has it; None for classes."""
    scale = getattr(likelihood, "scale", None)
    return None if scale is None or getattr(likelihood, "task", "regression") != "regression" else float(scale)


def summary(outputs: Any, targets: Any, scale: float, weights: Any = None) -> dict[str, Any]:
    """`{"single": {...}, "predictive": {...}, "samples": K, "mean_single": {...}}`, as `metrics.summary` for classes.

    `outputs` `[K, N, ...]` are each sample's, `targets` `[N, ...]` what is true, `scale` is the likelihood's σ. Scores:

    rmse: root mean squared error of the predictive mean, in the targets' units.
    nll: mean of −log density of an example's target (all its components together), in nats; strictly proper.
    coverage90: the share of targets in their central 90 % interval; below 0.9 the predictive is overconfident.
    """
    f = torch.from_numpy(np.ascontiguousarray(to_numpy(outputs)))
    y = torch.from_numpy(np.ascontiguousarray(to_numpy(targets)))
    if f.ndim < 2 or f.shape[0] == 0 or f.shape[1] == 0:
        raise ValueError(f"outputs must be [samples, examples, ...] with at least one of each, not {list(f.shape)}")
    if f.shape[1:] != y.shape:
        cure = "; pass y[:, None]" if f.shape[1:] == (*y.shape, 1) else ""
        raise InputError(
            f"targets of shape {list(y.shape)} for outputs of shape {list(f.shape[1:])}: they must have one shape "
            f"(they are compared number by number, never broadcast){cure}"
        )
    if not bool(torch.isfinite(f).all()):
        raise ValueError("the outputs are not finite: a sample has diverged, or the inputs hold NaN")
    if not bool(torch.isfinite(y).all()):
        raise InputError("the targets hold NaN or infinite values")
    w = check_weights(weights, len(f))
    each = [_scores(one[None], y, scale, np.ones(1)) for one in f]
    return summary_of(each, _scores(f, y, scale, w), w)


class Mixture(NamedTuple):
    """The predictive of some examples and their targets, in float64: the input of a regression metric."""

    outputs: Tensor  # [K, n, numbers of one example]
    targets: Tensor  # [n, numbers of one example]
    scale: float  # σ
    weights: Tensor  # [K], with the sum 1

    @property
    def z(self) -> Tensor:
        """The targets' distance from each sample's outputs, in units of σ."""
        return (self.targets - self.outputs) / self.scale


def squared_error(of: Mixture) -> Tensor:
    """(f̄ − y)² of each number."""
    mean: Tensor = torch.tensordot(of.weights, of.outputs, 1)
    return (mean - of.targets).square()


def nll_each(of: Mixture) -> Tensor:
    """−log density of each example's target, in nats."""
    width = of.targets.shape[1]
    log_density = -0.5 * of.z.square().sum(2) - width * (math.log(of.scale) + 0.5 * math.log(2 * math.pi))
    return -torch.logsumexp(log_density + of.weights.log()[:, None], dim=0)


def inside(of: Mixture) -> Tensor:
    """Whether each number lies in the central interval."""
    below: Tensor = torch.tensordot(of.weights, torch.special.ndtr(of.z), 1)
    return (below - 0.5).abs() <= LEVEL / 2


# An error is in the units of the targets, which may be any: three digits of it, wherever they are.
register(Metric("rmse", "RMSE", squared_error, digits=".3g", task="regression", after=math.sqrt))
register(Metric("nll", "NLL", nll_each, unit="nats", task="regression"))
register(Metric("coverage90", "in 90 % interval", inside, "neither", unit="%", digits=".1f", task="regression"))


def _scores(outputs: Tensor, targets: Tensor, scale: float, weights: Any) -> dict[str, float]:
    """Scores of the mixture of `outputs` `[K, N, ...]`, some examples at a time."""
    w = torch.from_numpy(np.asarray(weights, dtype=np.float64))
    width = math.prod(targets.shape[1:])  # numbers of one example
    count = max(1, AT_ONCE // (len(w) * width))
    chosen = entries("regression")
    total, terms = dict.fromkeys(chosen, 0.0), dict.fromkeys(chosen, 0)
    for start in range(0, len(targets), count):
        f = outputs[:, start : start + count].double().reshape(len(w), -1, width)
        y = targets[start : start + count].double().reshape(-1, width)
        for metric in chosen:
            found = metric.of(Mixture(f, y, scale, w))
            total[metric] += float(found.sum())
            terms[metric] += found.numel()
    return {metric.name: metric.after(total[metric] / terms[metric]) for metric in chosen}
