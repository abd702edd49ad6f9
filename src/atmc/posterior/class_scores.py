"""What a classifier gets wrong: its confusion matrix, each class on its own, and how far to rely on confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.posterior.arrays import Ints, check_labels, check_probs
from atmc.posterior.calibration import wilson

THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Share:
    """A share of some examples with Wilson's 95 % interval."""

    hits: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.hits / self.of

    @classmethod
    def count(cls, hits: int, of: int) -> Share | None:
        """None where there is nothing to take a share of."""
        if of == 0:
            return None
        low, high = wilson(hits, of)
        return cls(hits, of, float(low), float(high))


@dataclass(frozen=True)
class ClassScore:
    """One class: `found` is the recall, `right` the precision; `taken_for` the most frequent wrong answer."""

    name: str
    examples: int
    found: Share | None  # None where no example is of this class
    right: Share | None  # None where it was never the answer
    taken_for: str | None
    times: int


@dataclass(frozen=True)
class ConfidenceLevel:
    """The answers with at least some confidence: which share of all they are, and which share of them is right."""

    threshold: float
    answered: float
    right: Share | None


def confusion(probs: Any, labels: Any) -> Ints:
    """Counts `[C, C]`: row the true class, column the most probable one."""
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    classes = p.shape[1]
    flat = np.bincount(y * classes + p.argmax(axis=1), minlength=classes * classes)
    return np.asarray(flat.reshape(classes, classes), dtype=np.int64)


def class_scores(counts: Ints, classes: Sequence[str]) -> tuple[ClassScore, ...]:
    """The scores of every class, in the order of the classes, from a confusion matrix."""
    names = [str(name) for name in classes]
    if counts.shape != (len(names), len(names)):
        raise ValueError(f"a confusion matrix of {len(names)} classes has another shape than {list(counts.shape)}")
    found = []
    for i, name in enumerate(names):
        row, own = counts[i], int(counts[i, i])
        others = np.where(np.arange(len(names)) == i, 0, row)
        worst = int(others.argmax())
        times = int(others[worst])
        found.append(
            ClassScore(
                name=name,
                examples=int(row.sum()),
                found=Share.count(own, int(row.sum())),
                right=Share.count(own, int(counts[:, i].sum())),
                taken_for=names[worst] if times else None,
                times=times,
            )
        )
    return tuple(found)


def confidence_levels(probs: Any, labels: Any, thresholds: Sequence[float] = THRESHOLDS) -> tuple[ConfidenceLevel, ...]:
    """How many answers have at least each confidence, and how many of those are right."""
    p = check_probs(probs)
    y = check_labels(labels, *p.shape)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    found = []
    for threshold in thresholds:
        kept = confidence >= threshold
        share = Share.count(int(right[kept].sum()), int(kept.sum()))
        found.append(ConfidenceLevel(threshold, float(kept.mean()), share))
    return tuple(found)


def weakest(scores: Sequence[ClassScore], accuracy: float) -> tuple[ClassScore, ...]:
    """The classes that are found less often than others by more than chance explains, the weakest first.

    That is: the upper end of the class's interval lies below the accuracy over all classes. The interval is for one
    class; with C classes that are all alike about C/40 are named by chance.
    """
    able = [score for score in scores if score.found is not None and score.found.high < accuracy]
    return tuple(sorted(able, key=lambda score: score.found.value if score.found else 1.0))


def confusions(counts: Ints, classes: Sequence[str], most: int = 3) -> list[tuple[str, str, int]]:
    """The most frequent mistakes: (true class, answer, how often), most frequent first."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = [divmod(int(at), len(classes)) for at in order]
    return [(str(classes[i]), str(classes[j]), int(wrong[i, j])) for i, j in pairs if wrong[i, j]]
