"""The data of a report as plain values and float64 arrays, so that page, figures and tables need no torch.

`collect.py` fills them from run directories. What a run does not have is `None` or empty, and the page omits it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atmc.common.text import plural
from atmc.posterior.calibration import CalibrationBins
from atmc.posterior.class_scores import ConfidenceLevel
from atmc.posterior.intervals import Spread
from atmc.posterior.ood_detection import RiskCoverage
from atmc.report.shift import Shift

Array = NDArray[np.float64]
Scores = Mapping[str, float]  # of `metrics.scores`: every registered metric by its name
Spreads = Mapping[str, Spread]  # of `intervals.spreads`: the same with their intervals
FEW_DIGITS = "digits?train="  # followed by how many are labelled
OWN = "tensors"  # the name of data that were only ever tensors in somebody's program


def called(data: str, split: str) -> str:
    """The examples of a split in a sentence; tensors have no name, and need not be images."""
    if data == OWN:
        return f"{split} examples"
    return f"{titled(data)} {split} images"


def is_path(data: str) -> bool:
    """Whether data are named by a path."""
    return data.startswith(("folder:", "shards:"))


def titled(data: str) -> str:
    """The name of data without the path before it, or the option of `digits?train=200` after it."""
    if data.startswith("folder:"):
        return data.partition("?")[0].removeprefix("folder:").rstrip("/").rpartition("/")[2] or "images"
    if data.startswith(FEW_DIGITS):
        return "digits"
    return data.removeprefix("shards:").rpartition("/")[2] if is_path(data) else data


@dataclass(frozen=True)
class Growth:
    """Scores of the average of the first k samples; `gap` is the bins' mean of |confidence − accuracy|."""

    samples: Array
    accuracy: Array
    nll: Array
    gap: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Trace:
    """The trace of one chain, an entry for each line of its metrics log, NaN where a value is missing.

    `thermostat` is the median over the weights; 98 % of them lie between `thermostat_low` and `thermostat_high`.
    """

    chain: int
    epoch: Array
    loss: Array
    temperature: Array
    thermostat: Array
    thermostat_low: Array
    thermostat_high: Array


@dataclass(frozen=True)
class ImageCard:
    """One test image and its most probable classes, most probable first."""

    png: bytes
    truth: str
    bars: tuple[tuple[str, float], ...]
    epistemic_share: float | None
    small: bool = True

    @property
    def right(self) -> bool:
        return bool(self.bars) and self.bars[0][0] == self.truth


@dataclass(frozen=True)
class OodScores:
    """Entropy (nats) on one set of OOD images and on the test set, and how well it separates them."""

    name: str
    about: str
    entropy: Array
    test_entropy: Array
    auroc: float
    aupr: float | None = None
    fpr95: float | None = None  # test images rejected by the threshold that rejects 95 % of the OOD images
    single_auroc: float | None = None
    strip: bytes = b""  # PNG of a few images side by side


@dataclass(frozen=True)
class Finding:
    """One finding of `atmc doctor`; level is "ok", "note", "warning" or "problem"."""

    level: str
    title: str
    evidence: str = ""
    action: str = ""


@dataclass(frozen=True)
class RunFacts:
    """Everything the page says about one run."""

    name: str
    method: str
    network: str
    data: str
    split: str
    examples: int
    temperature: float | None
    temperature_before: float | None  # at the beginning of a cycle, if different
    augment: str
    samples: int
    chains: int
    epochs: float
    seconds: float | None
    device: str
    seed: int
    single: Scores
    predictive: Scores
    bins_single: CalibrationBins
    bins: CalibrationBins
    risk: RiskCoverage
    risk_single: RiskCoverage
    growth: Growth
    nll_each: Array
    scaled: Scores | None = None
    scaled_by: float | None = None
    traces: tuple[Trace, ...] = ()
    surest: tuple[ImageCard, ...] = ()
    least_sure: tuple[ImageCard, ...] = ()
    ood: tuple[OodScores, ...] = ()
    shift: Shift | None = None  # scores on corrupted test images
    findings: tuple[Finding, ...] = ()
    pilots: tuple[dict[str, str], ...] = ()  # that chose the temperature, the chosen one first
    recipe: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()  # what is wrong with the run's files; also among the notes
    data_digest: str = ""
    likelihood: str = "categorical"
    takes_images: bool = True  # whether `atmc predict` can use the run
    single_spreads: Spreads = field(default_factory=dict)
    spreads: Spreads = field(default_factory=dict)  # of the predictive
    scaled_spreads: Spreads = field(default_factory=dict)
    constant: Mapping[str, Spreads] = field(default_factory=dict)  # of answers that look at no example
    classes: tuple[str, ...] = ()
    confusion: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    levels: tuple[ConfidenceLevel, ...] = ()
    path: str = ""  # as typed, for commands

    @property
    def what(self) -> str:
        """The examples it was evaluated on, in words."""
        return called(self.data, self.split)

    @property
    def data_said(self) -> str:
        """The data set in words, without its path, and how many of its images are labelled where not all are."""
        if self.data.startswith("folder:"):
            return f"{self.title}, a folder of pictures"
        if self.data.startswith(FEW_DIGITS):
            return f"{self.title}, {self.data.removeprefix(FEW_DIGITS)} labelled images"
        return "tensors given in Python" if self.data == OWN else self.title

    @property
    def title(self) -> str:
        return titled(self.data)

    @property
    def samples_said(self) -> str:
        """The numbers of samples and chains in words."""
        if not self.is_posterior:
            return plural(self.samples, "network")
        return f"{plural(self.samples, 'sample')} of {plural(self.chains, 'chain')}"

    @property
    def noun(self) -> str:
        """The plural noun of an example: images or examples."""
        return self.what.rpartition(" ")[2]

    @property
    def is_posterior(self) -> bool:
        """Whether a sampler drew the networks; those of an optimiser have no temperature."""
        return self.temperature is not None

    @property
    def samples_weights(self) -> bool:
        """Whether this run averages several networks."""
        return self.samples > 1


@dataclass(frozen=True)
class ReportData:
    """One page: one or several runs in order."""

    runs: tuple[RunFacts, ...]
    made_on: str
    version: str
    command: str = ""
