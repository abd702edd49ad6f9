"""Selective prediction and out-of-distribution (OOD) detection by an uncertainty score.

The score (entropy, epistemic uncertainty, 1 − confidence) should be high for mistakes and for OOD inputs. Nothing here
depends on the order of the examples, ties included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atmc.posterior.arrays import Bools, Floats, check_scores, to_numpy


def _two_groups(scores: Any, positive: Any) -> tuple[Floats, Bools]:
    s = check_scores(scores)
    mark = to_numpy(positive)
    if mark.shape != s.shape:
        raise ValueError(f"positive must have the shape [{s.size}], one mark per score, not {list(mark.shape)}")
    flag = mark.astype(bool)
    if flag.all() or not flag.any():
        raise ValueError("both groups must be present: there must be positive and negative examples")
    return s, flag


def _thresholds(scores: Floats, flag: Bools) -> tuple[Floats, Floats]:
    """True and false positives when accepting scores >= t, for each distinct t from the largest down."""
    order = np.argsort(-scores, kind="stable")
    ordered, hit = scores[order], flag[order]
    last_of_tie = np.append(np.diff(ordered) != 0.0, True)
    true = np.cumsum(hit)[last_of_tie].astype(np.float64)
    false = np.cumsum(~hit)[last_of_tie].astype(np.float64)
    return true, false


def auroc(scores: Any, positive: Any) -> float:
    """The area under the ROC curve, P(score⁺ > score⁻) + ½ P(score⁺ = score⁻); 0.5 is chance, 1 is perfect."""
    true, false = _thresholds(*_two_groups(scores, positive))
    tpr = np.concatenate([[0.0], true / true[-1]])
    fpr = np.concatenate([[0.0], false / false[-1]])
    return float((np.diff(fpr) * (tpr[1:] + tpr[:-1]) / 2.0).sum())


def aupr(scores: Any, positive: Any) -> float:
    """Average precision: Σ_t (recall_t − recall_{t−1}) · precision_t over the distinct thresholds, largest first.

    Chance level is the share of positives, so state that share.
    """
    true, false = _thresholds(*_two_groups(scores, positive))
    recall = np.concatenate([[0.0], true / true[-1]])
    return float((np.diff(recall) * true / (true + false)).sum())


def fpr_at_95(scores: Any, positive: Any, recall: float = 0.95) -> float:
    """The smallest false-positive rate among thresholds that catch at least 95 % of the positives."""
    true, false = _thresholds(*_two_groups(scores, positive))
    reached = true / true[-1] >= recall - 1e-12
    return float(false[reached][0] / false[-1])


def detection(in_distribution: Any, ood: Any) -> dict[str, float]:
    """AUROC, AUPR and FPR at 95 % recall for scores of in-distribution and of OOD examples (the positives)."""
    inside, outside = check_scores(in_distribution, "in-distribution scores"), check_scores(ood, "OOD scores")
    scores = np.concatenate([inside, outside])
    flag = np.arange(scores.size) >= inside.size
    return {
        "auroc": auroc(scores, flag),
        "aupr": aupr(scores, flag),
        "fpr95": fpr_at_95(scores, flag),
        "share": outside.size / scores.size,
    }


@dataclass(frozen=True)
class RiskCoverage:
    """Risk among the accepted, for every coverage 1/N … 1 (accepting the least uncertain first)."""

    coverage: Floats
    risk: Floats
    area: float  # AURC: mean risk over the N coverages
    excess: float  # AURC minus that of an oracle that rejects mistakes first

    def accuracy_at(self, coverage: float) -> float:
        """Accuracy when at least this fraction of the examples must be answered."""
        if not 0.0 < coverage <= 1.0:
            raise ValueError(f"coverage must lie in (0, 1], not {coverage}")
        index = int(np.ceil(coverage * self.coverage.size - 1e-9)) - 1
        return float(1.0 - self.risk[index])

    def coverage_at(self, accuracy: float) -> float:
        """The largest fraction that can be answered with at least this accuracy; 0 if none."""
        good = np.flatnonzero(1.0 - self.risk >= accuracy - 1e-12)
        return float(self.coverage[good[-1]]) if good.size else 0.0


def _curve(uncertainty: Floats, wrong: Floats) -> Floats:
    """Cumulative risk in order of uncertainty; a tie is accepted in random order, so its mean error enters."""
    _, group = np.unique(uncertainty, return_inverse=True)
    mean = np.bincount(group, weights=wrong) / np.bincount(group)
    expected = mean[np.sort(group)]
    return np.asarray(np.cumsum(expected) / np.arange(1, uncertainty.size + 1))


def risk_coverage(uncertainty: Any, correct: Any) -> RiskCoverage:
    """The risk–coverage curve: risk(k) = mistakes among the k least uncertain / k, at coverage k/N.

    AURC = mean_k risk(k), which is the error rate for random rejection. Ties count by their expectation.
    """
    score = check_scores(uncertainty, "uncertainties")
    wrong = 1.0 - check_scores(to_numpy(correct).astype(np.float64), "outcomes")
    if wrong.shape != score.shape:
        raise ValueError(f"correct must have the shape [{score.size}], one per example, not {list(wrong.shape)}")
    risk = _curve(score, wrong)
    best = _curve(wrong, wrong)
    coverage = np.arange(1, score.size + 1) / score.size
    return RiskCoverage(coverage, risk, float(risk.mean()), max(float((risk - best).mean()), 0.0))


def selective(
    uncertainty: Any, correct: Any, coverages: Sequence[float] = (1.0, 0.95, 0.9, 0.8, 0.5)
) -> dict[float, float]:
    """Accuracy when only the least uncertain fraction is answered, for each coverage."""
    curve = risk_coverage(uncertainty, correct)
    return {c: curve.accuracy_at(c) for c in coverages}
