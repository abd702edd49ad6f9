"""What a report is made of: plain values, so that the page, the figures and the tables need no network, data or torch.

`collect.py` fills these from run directories; tests and other programs may fill them by hand. Arrays are float64 numpy.
Whatever a run does not have is `None` or empty, and the page leaves that part out and says so in `notes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atmc.common.text import plural

Array = NDArray[np.float64]
Scores = Mapping[str, float]  # of `metrics.scores`: every registered metric by its name
FEW_DIGITS = "digits?train="  # followed by how many are labelled
OWN = "tensors"  # the name of data that were only ever tensors in somebody's program


def called(data: str, split: str) -> str:
    """The examples of a split in a sentence; a person's own tensors have no name, and need not be images."""
    if data == OWN:
        return f"{split} examples"
    return f"{titled(data)} {split} images"


def is_place(data: str) -> bool:
    """Whether data are named by where they lie."""
    return data.startswith(("folder:", "shards:"))


def titled(data: str) -> str:
    """What data are called where others read it: a folder by its own name, `digits?train=200` without the option."""
    if data.startswith("folder:"):
        return data.partition("?")[0].removeprefix("folder:").rstrip("/").rpartition("/")[2] or "images"
    if data.startswith(FEW_DIGITS):
        return "digits"
    return data.removeprefix("shards:").rpartition("/")[2] if is_place(data) else data


@dataclass(frozen=True)
class Bins:
    """Calibration as the paper draws it: equally sized bins by confidence, with an interval on each accuracy."""

    confidence: Array
    accuracy: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Growth:
    """Scores of the average of the first k samples; `gap` is the bins' mean of |confidence − accuracy|."""

    samples: Array
    accuracy: Array
    nll: Array
    gap: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the answered when only the surest share `coverage` of examples is answered."""

    coverage: Array
    risk: Array
    area: float


@dataclass(frozen=True)
class Trace:
    """How a chain moved: one entry for each line of metrics; what was not read is NaN.

    The thermostat has one value for each weight: its median, and the range in which 98 % of them lie.
    """

    chain: int
    epoch: Array
    loss: Array
    temperature: Array
    thermostat: Array
    thermostat_low: Array
    thermostat_high: Array
    sampled_at: Array


@dataclass(frozen=True)
class ImageCard:
    """One test image with what the model makes of it: the bars are the likeliest classes, likeliest first."""

    png: bytes
    truth: str
    bars: tuple[tuple[str, float], ...]
    epistemic_share: float | None
    small: bool = True

    @property
    def right(self) -> bool:
        return bool(self.bars) and self.bars[0][0] == self.truth


@dataclass(frozen=True)
class Strangers:
    """A set of images from elsewhere: the doubt (entropy, nats) on it, beside the doubt on the test set."""

    name: str
    about: str
    doubt: Array
    doubt_at_home: Array
    auroc: float
    aupr: float | None = None
    fpr95: float | None = None  # share of test images doubted as much, where 95 % of the strangers are doubted
    single_auroc: float | None = None
    strip: bytes = b""  # a few of them side by side, as PNG


@dataclass(frozen=True)
class Finding:
    """One sentence of `atmc doctor`; level is "ok", "note", "warning" or "problem"."""

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
    temperature_before: float | None  # at which cycles begin, where that is another
    augment: str
    samples: int
    chains: int
    epochs: float
    seconds: float | None
    device: str
    seed: int
    single: Scores
    predictive: Scores
    bins_single: Bins
    bins: Bins
    risk: RiskCoverage
    risk_single: RiskCoverage
    growth: Growth
    nll_each: Array
    scaled: Scores | None = None
    scaled_by: float | None = None
    traces: tuple[Trace, ...] = ()
    surest: tuple[ImageCard, ...] = ()
    least_sure: tuple[ImageCard, ...] = ()
    strangers: tuple[Strangers, ...] = ()
    findings: tuple[Finding, ...] = ()
    recipe: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()  # what is wrong with the run's files; also among the notes
    data_digest: str = ""
    likelihood: str = "categorical"
    takes_images: bool = True  # whether `atmc predict` can use it: not a person's own network, nor other examples

    @property
    def what(self) -> str:
        """What it was evaluated on, in words."""
        return called(self.data, self.split)

    @property
    def data_said(self) -> str:
        """The data set, and how many of its images are labelled where not all are; not where a folder lies."""
        if self.data.startswith("folder:"):
            return f"{self.title}, a folder of pictures"
        if self.data.startswith(FEW_DIGITS):
            return f"{self.title}, {self.data.removeprefix(FEW_DIGITS)} labelled images"
        return "tensors given in Python" if self.data == OWN else self.title

    @property
    def title(self) -> str:
        """What the data set is called."""
        return titled(self.data)

    @property
    def samples_said(self) -> str:
        """How many networks there are, and of how many chains."""
        if not self.is_posterior:
            return plural(self.samples, "network")
        return f"{plural(self.samples, 'sample')} of {plural(self.chains, 'chain')}"

    @property
    def noun(self) -> str:
        """What one of these is called, with an s."""
        return self.what.rpartition(" ")[2]

    @property
    def is_posterior(self) -> bool:
        """Whether a sampler drew the networks; those of an optimiser, even several, have no temperature."""
        return self.temperature is not None

    @property
    def samples_weights(self) -> bool:
        """Whether this run averages several networks; a single network has no predictive of its own."""
        return self.samples > 1


@dataclass(frozen=True)
class ReportData:
    """One page: one or several runs, in the order they were named."""

    runs: tuple[RunFacts, ...]
    made_on: str
    version: str
    command: str = ""
