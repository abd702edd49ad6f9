"""What the doctor hands out, and how sure it may sound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEVELS = ("ok", "note", "warning", "problem")
FEW = 8  # samples below which the two halves of a chain cannot be compared
# A finding that rests on a test is made below this p-value. Five such tests can call a chain ill (two of the
# thermostat, training loss, mixing, late samples), so by these alone a chain of independent samples is called so by
# chance in at most 5 % of cases; a sixth, whether chains keep to modes of their own, makes a note. Above it nothing
# is shown, health neither: what looks large and may be chance is left open.
SIGNIFICANT = 0.01
OPEN = "may be chance"  # how sure an open question makes one


@dataclass(frozen=True)
class Advice:
    """One finding. `action` is empty where nothing needs to be done; `sure` says how certain it is.

    `doubt` says what it leaves open ("whether …"); while anything is, no chain is called healthy.
    """

    level: str
    title: str
    evidence: str
    action: str = ""
    sure: str = ""
    doubt: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (f"[{self.level}] {self.title}.", self.evidence, self.action) if part)


def cannot_tell(doubt: str, evidence: str, action: str, level: str = "note", sure: str = OPEN) -> Advice:
    """An open question: "whether …", what is seen, and what would answer it."""
    return Advice(level, f"Cannot tell {doubt}", evidence, action, sure, doubt)


def words(p: float) -> str:
    """How sure a p-value makes one, in words."""
    if not np.isfinite(p):
        return "cannot tell"
    return "almost certain" if p < 0.002 else "very likely" if p < 0.01 else "likely" if p < 0.05 else "not shown"
