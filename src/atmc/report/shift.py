"""Scores of a run on corrupted test images, by corruption and severity (`--shift corruptions`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atmc.common.errors import InputError
from atmc.posterior import metrics

if TYPE_CHECKING:
    from atmc.report.read_run import Reading

KIND = "corruptions"
SHOWN = 1000  # test images at most: there are 35 corrupted copies of each
SCORES = ("accuracy", "nll", "ece")
Scores = dict[str, float]


@dataclass(frozen=True)
class Shift:
    """Scores by corruption, each a list with one entry for each severity; `clean` are of the same images before."""

    images: int
    samples: int
    clean: Scores
    clean_single: Scores
    predictive: dict[str, list[Scores]]
    single: dict[str, list[Scores]]

    def curve(self, score: str, single: bool = False) -> list[float]:
        """The mean over corruptions, for severities 0 (clean) to 5."""
        clean, found = (self.clean_single, self.single) if single else (self.clean, self.predictive)
        by = [[scores[severity][score] for scores in found.values()] for severity in range(5)]
        return [clean[score], *(float(np.mean(each)) for each in by)]

    def by_corruption(self) -> list[tuple[str, float, float, float]]:
        """Of each corruption accuracy, NLL and ECE of the predictive, averaged over severities."""
        means = {
            name: [float(np.mean([scores[s] for scores in each])) for s in SCORES]
            for name, each in self.predictive.items()
        }
        return [(name, accuracy, nll, ece) for name, (accuracy, nll, ece) in means.items()]

    def to_json(self) -> dict[str, Any]:
        """What `atmc evaluate --shift corruptions --json` prints."""
        severity = [{"severity": s, "predictive": self._at(s), "single": self._at(s, single=True)} for s in range(6)]
        return {
            "shift": KIND,
            "images": self.images,
            "samples": self.samples,
            "severity": severity,
            "corruptions": {
                name: {"predictive": self.predictive[name], "single": self.single[name]} for name in self.predictive
            },
        }

    def _at(self, severity: int, single: bool = False) -> Scores:
        return {score: self.curve(score, single)[severity] for score in SCORES}


def check_kind(shift: str | None) -> None:
    if shift is not None and shift != KIND:
        raise InputError(f"--shift {shift}: there is only {KIND}")


def measure(reading: Reading, device: str | None = None) -> Shift:
    """Corrupt the test images of a run, at most SHOWN of them evenly spaced, and score its samples."""
    from atmc.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
    from atmc.report.read_run import pixels

    examples = reading.examples("test")
    shape = reading.run.manifest["data"]["shape"]
    if len(shape) != 3:
        raise InputError(f"--shift is for images, and {reading.path} was made for examples of shape {list(shape)}")
    chosen = np.unique(np.linspace(0, len(examples) - 1, min(SHOWN, len(examples))).round().astype(int)).tolist()
    images, labels = pixels(examples, chosen), examples.labels[chosen].numpy()
    if str(images.dtype) != "torch.uint8":
        raise InputError(f"--shift is for images of whole numbers 0 to 255, and {reading.path} has others")
    names = [name for name in CORRUPTIONS if name != "jpeg" or shape[0] in (1, 3)]
    clean = _both(reading.ask(images, device), labels)
    found: dict[str, list[tuple[Scores, Scores]]] = {name: [] for name in names}
    for name in names:
        for severity in SEVERITIES:
            found[name].append(_both(reading.ask(corrupt(images, name, severity), device), labels))
    return Shift(
        len(labels),
        len(reading.run.bank),
        *clean,
        {name: [predictive for predictive, _ in each] for name, each in found.items()},
        {name: [single for _, single in each] for name, each in found.items()},
    )


def _both(probs: Any, labels: Any) -> tuple[Scores, Scores]:
    """Of all samples together, and of the last."""
    parts: Sequence[Any] = (metrics.predictive(probs).astype(np.float32), probs[-1])
    one, two = ({score: float(getattr(metrics, score)(part, labels)) for score in SCORES} for part in parts)
    return one, two
