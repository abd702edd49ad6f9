"""Predictive uncertainty and its split into aleatoric and epistemic parts.

For K samples with weights w_k (summing to one) and p̄ = Σ_k w_k p_k, in nats:

    entropy    H[p̄]                      total uncertainty about the label
    aleatoric  Σ_k w_k H[p_k]            mean uncertainty of a single sample: ambiguous or noisy inputs
    epistemic  H[p̄] − Σ_k w_k H[p_k]     mutual information between label and weights, which more data would reduce

Epistemic uncertainty is the weighted mean of KL(p_k ‖ p̄), hence between 0 (all samples agree) and the entropy of the
weights (at most log K). `Moments` adds one sample at a time, so that the K samples need not be in memory at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atmc.common.text import plural
from atmc.posterior.arrays import check_samples, check_weights, each_sample


def entropy(probs: Tensor) -> Tensor:
    """−Σ_c p_c log p_c over the last axis, in nats, with 0 log 0 = 0."""
    each: Tensor = torch.special.entr(probs)
    return each.sum(dim=-1)


@dataclass(frozen=True, repr=False)
class Prediction:
    """The predictive and its uncertainty for each of N examples. All float64; labels are int64."""

    probs: Tensor  # [N, C] p̄, the predictive: the average of the samples' probabilities
    entropy: Tensor  # [N] H[p̄], nats
    aleatoric: Tensor  # [N]
    epistemic: Tensor  # [N]; entropy = aleatoric + epistemic
    variation: Tensor  # [N] standard deviation over the samples of the probability of `label`
    agreement: Tensor  # [N] weight of the samples whose own most probable class is `label`
    samples: int  # K
    classes: tuple[str, ...] | None = None

    @property
    def label(self) -> Tensor:
        """[N] the most probable class."""
        return self.probs.argmax(dim=-1)

    @property
    def confidence(self) -> Tensor:
        """[N] its probability."""
        return self.probs.amax(dim=-1)

    @property
    def names(self) -> list[str]:
        """The labels by name, or as numbers where the classes have no names."""
        return [self.classes[i] if self.classes else str(i) for i in self.label.tolist()]

    def __len__(self) -> int:
        return int(self.probs.shape[0])

    def __repr__(self) -> str:
        """The means over the examples instead of the tensors."""
        about = f"{plural(len(self), 'example')}, {self.probs.shape[-1]} classes, {plural(self.samples, 'sample')}"
        if not len(self):
            return f"Prediction({about})"
        total, own = float(self.entropy.mean()), float(self.epistemic.mean())
        mean = f"confidence {float(self.confidence.mean()):.3f}, entropy {total:.3f} nats, of which epistemic {own:.3f}"
        return f"Prediction({about}; mean {mean})"

    def uncertainty(self, kind: str = "entropy") -> Tensor:
        """A score that grows with uncertainty, for `risk_coverage` and `detection`."""
        scores = {
            "entropy": self.entropy,
            "epistemic": self.epistemic,
            "aleatoric": self.aleatoric,
            "confidence": 1.0 - self.confidence,
            "variation": self.variation,
            "disagreement": 1.0 - self.agreement,
        }
        if kind not in scores:
            raise ValueError(f"no uncertainty is called {kind!r}; choose one of {', '.join(scores)}")
        return scores[kind]

    def to(self, device: torch.device | str) -> Prediction:
        """The same on another device."""
        return self._map(lambda t: t.to(device))

    def __getitem__(self, index: slice | Tensor) -> Prediction:
        """The same for some of the examples."""
        return self._map(lambda t: t[index])

    def _map(self, f: Any) -> Prediction:
        tensors = {name: f(getattr(self, name)) for name in _FIELDS}
        return Prediction(**tensors, samples=self.samples, classes=self.classes)

    @staticmethod
    def concat(parts: list[Prediction]) -> Prediction:
        """Predictions for consecutive batches as one."""
        if not parts:
            raise ValueError("there are no examples to predict: the input is empty")
        tensors = {name: torch.cat([getattr(p, name) for p in parts]) for name in _FIELDS}
        return Prediction(**tensors, samples=parts[0].samples, classes=parts[0].classes)


_FIELDS = ("probs", "entropy", "aleatoric", "epistemic", "variation", "agreement")


def _votes(probs: Tensor) -> Tensor:
    """One-hot argmax in float64. `one_hot` would read the labels back, which a captured graph cannot do."""
    column = torch.arange(probs.shape[-1], device=probs.device)
    return (column == probs.argmax(dim=-1, keepdim=True)).double()


class Moments:
    """Running weighted sums over samples, for one batch: Σ w p, Σ w p², Σ w H[p], Σ w 1[argmax]. All float64.

    Weights must sum to one over all calls of `add`; `result` reads the sums.
    """

    def __init__(self, examples: int, classes: int, device: torch.device | str = "cpu") -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.first = zeros(examples, classes)
        self.second = zeros(examples, classes)
        self.votes = zeros(examples, classes)
        self.inner = zeros(examples)

    def zero_(self) -> None:
        for total in (self.first, self.second, self.votes, self.inner):
            total.zero_()

    def add(self, probs: Tensor, weight: Tensor | float) -> None:
        """Add one sample's float64 probabilities `[N, C]`; `weight` may be on the device, which avoids a wait."""
        self.first.add_(probs * weight)
        self.second.add_(probs.square() * weight)
        self.inner.add_(entropy(probs) * weight)
        self.votes.add_(_votes(probs) * weight)

    def add_all(self, probs: Tensor, weights: Tensor) -> None:
        """Add several samples `[K, N, C]` with weights `[K]` in fewer calls."""
        weighted = probs * weights[:, None, None]
        self.first.add_(weighted.sum(dim=0))
        self.second.add_((weighted * probs).sum(dim=0))
        self.inner.add_((entropy(probs) * weights[:, None]).sum(dim=0))
        self.votes.add_((_votes(probs) * weights[:, None, None]).sum(dim=0))

    def part(self, examples: int) -> Moments:
        """A copy of the sums of the first `examples` examples."""
        other = Moments(0, 0)
        other.first, other.second = self.first[:examples].clone(), self.second[:examples].clone()
        other.votes, other.inner = self.votes[:examples].clone(), self.inner[:examples].clone()
        return other

    def merge_(self, other: Moments) -> None:
        """Add the sums of further samples for the same examples."""
        self.first.add_(other.first)
        self.second.add_(other.second)
        self.votes.add_(other.votes)
        self.inner.add_(other.inner)

    def result(self, samples: int, classes: tuple[str, ...] | None = None) -> Prediction:
        """The sums as a `Prediction`."""
        total = entropy(self.first).clamp_min(0.0)  # Σ w p may be 1 + 2e-16, whose entropy is below zero
        aleatoric = torch.minimum(self.inner, total)  # equal in exact arithmetic when all samples agree; never above
        label = self.first.argmax(dim=-1, keepdim=True)
        mean, square = self.first.gather(-1, label), self.second.gather(-1, label)
        return Prediction(
            probs=self.first.clone(),
            entropy=total,
            aleatoric=aleatoric,
            epistemic=total - aleatoric,
            variation=(square - mean.square()).clamp_min(0.0).sqrt().squeeze(-1),
            agreement=self.votes.gather(-1, label).squeeze(-1),
            samples=samples,
            classes=classes,
        )


def from_probs(probs: Any, weights: Any = None, classes: tuple[str, ...] | None = None) -> Prediction:
    """A `Prediction` from stored probabilities `[K, N, C]`, in any floating type."""
    array = check_samples(probs)
    w = check_weights(weights, array.shape[0])
    moments = Moments(array.shape[1], array.shape[2])
    for k, sample in enumerate(each_sample(array)):
        moments.add(torch.from_numpy(np.ascontiguousarray(sample)), float(w[k]))
    return moments.result(array.shape[0], classes)
