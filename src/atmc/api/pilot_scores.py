"""What a pilot of `temperature="auto"` found: its score on held-out examples, which one is chosen, and the table.

An average over few samples is the worse the hotter their chain, and pilots are short. So classes are scored as the
average over twice as many samples would be: its NLL falls as 1/samples, and the two halves of a pilot's samples tell by
how much (`of_twice`). Of two chains each is a half. To go further is to overshoot: for T = 1 and 1,000 images of
Fashion-MNIST the two chains of a pilot promise .47 for many and .50 for twice as many, and ten have .53.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from atmc.data import ImageData
from atmc.engine.guessing import SMALLEST
from atmc.posterior.regression import nll_each
from atmc.target.priors.rules import LIMIT

if TYPE_CHECKING:
    from atmc.posterior import Posterior


@dataclass(frozen=True)
class Pilot:
    """One row of the table: what was tried, its held-out NLL (None where the chain diverged), and what it took."""

    likelihood: str
    temperature: float
    nll: float | None = None
    behind: float | None = None  # standard errors of the paired difference by which it is behind the best
    samples: int = 0
    seconds: float = 0.0
    prior: str | None = None  # where it is not the usual one
    prior_scale: float | None = None  # and its scale

    @property
    def key(self) -> tuple[str, float, str | None, float | None]:
        """What makes it differ from other pilots."""
        return self.likelihood, self.temperature, self.prior, self.prior_scale

    @property
    def wide(self) -> bool:
        """Whether its prior was widened, as T narrows it."""
        return self.prior_scale is not None and self.prior_scale > LIMIT

    @property
    def rank(self) -> float:
        return math.inf if self.nll is None else self.nll

    def to_dict(self) -> dict[str, Any]:
        """As a run's manifest keeps it."""
        return asdict(self)


def nll_of_each(posterior: "Posterior", held: ImageData) -> Tensor:
    """−log of the predictive probability (or density) of each example's label."""
    if posterior.is_regression:
        mixture = posterior.regress(held.images).mixture
        assert mixture is not None
        known = held.labels.double().reshape(mixture.outputs.shape[1:])
        return nll_each(mixture._replace(targets=known))
    probs = posterior.predict(held.images).probs.double()
    return -probs.gather(1, held.labels[:, None].long()).clamp_min(SMALLEST).log()[:, 0]


def of_twice(posterior: "Posterior", held: ImageData) -> Tensor:
    """The NLL of each example for twice as many samples, where there are classes: a + b/samples, by the two halves."""
    whole = nll_of_each(posterior, held)
    half = len(posterior) // 2
    if posterior.is_regression or half < 2:
        return whole
    chains = sorted(set(posterior.chains))
    parts = [posterior.chain(k) for k in chains] if len(chains) == 2 else [posterior[:half], posterior[half:]]
    halves = sum(nll_of_each(part, held) for part in parts)
    return whole - (halves / 2 - whole) / 2


def behind(pilot: Pilot, best: Pilot, costs: dict[Any, Tensor]) -> Pilot:
    """The pilot with how clearly it is behind the best."""
    mine, theirs = costs.get(pilot.key), costs.get(best.key)
    if mine is None or theirs is None or pilot == best:
        return replace(pilot, behind=0.0 if pilot == best else None)
    error = float((mine - theirs).std()) / math.sqrt(len(mine))
    return replace(pilot, behind=float((mine - theirs).mean()) / max(error, 1e-12))


def middle_first(pilots: list[Pilot], usual: str | None = None) -> list[Pilot]:
    """Of those as good as the best, with its likelihood and prior, the one with the middle T comes first.

    The best is one with the `usual` likelihood where that is as good: another has to be clearly ahead.
    """
    level = [p for p in pilots if p.behind is not None and p.behind <= 1]
    best = next((p for p in level if p.likelihood == usual), pilots[0])
    kind = best.likelihood, best.prior, best.wide
    alike = [p for p in level if (p.likelihood, p.prior, p.wide) == kind]
    alike.sort(key=lambda p: p.temperature)
    chosen = alike[(len(alike) - 1) // 2]
    return [chosen, *(p for p in pilots if p is not chosen)]


def table(pilots: list[Pilot], known: float | None) -> str:
    """The pilots as people see them, the best first."""
    names = {p.key: p.likelihood + (f" ({p.prior} {p.prior_scale:g})" if p.prior else "") for p in pilots}
    wide = max(len("likelihood"), *map(len, names.values()))
    lines = [f"{'likelihood':{wide}s}       T  held-out NLL  behind [s.e.]  samples  seconds"]
    for p in sorted(pilots, key=lambda p: p.rank):
        nll = "diverged" if p.nll is None else f"{p.nll:.3f}"
        behind = "" if p.behind is None else f"{p.behind:.1f}"
        start = f"{names[p.key]:{wide}s}  {p.temperature:6g}  {nll:>12s}  {behind:>13s}"
        lines.append(f"{start}  {p.samples:7d}  {p.seconds:7.1f}")
    best = pilots[0]
    more = f", with the {best.prior} prior of scale {best.prior_scale:g}" if best.prior else ""
    lines.append(f"The run uses T = {best.temperature:g} and the {best.likelihood} likelihood{more}.")
    if known is not None:
        lines[-1] += f" Guessing has an NLL of {known:.3f}."
    return "\n".join(lines)
