"""The likelihood that `atmc.sample` uses: as it was named or given, or what the labels ask for."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.recipe.settings import TargetSection
from atmc.target.likelihoods import LIKELIHOODS, Likelihood, LocationScale, build

STANDARDISED = tuple(name for name, kind in LIKELIHOODS.items() if issubclass(kind, LocationScale))
DIGITS = 7  # of center and spread: enough, and the same on every machine


def with_likelihood(section: TargetSection, given: Any, labels: Tensor) -> TargetSection:
    """The target's section with the likelihood that was `given`, or with the one for such `labels`.

    Whole numbers are classes; other labels a regression with unknown noise. Its targets are standardised by the
    likelihood itself, by their mean and standard deviation, unless it says otherwise.
    """
    if isinstance(given, str):
        given = build(given)
    if given is None:
        if not (labels.is_floating_point() and section.likelihood == "categorical"):
            return section
        given = build("learned-noise")
    name = next((name for name, kind in LIKELIHOODS.items() if type(given) is kind), None)
    if name is None:
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        cure = f": pass {kind}()" if isinstance(given, type) and issubclass(given, Likelihood) else ""
        raise InputError(f"likelihood must be one of atmc.likelihoods, not a {kind}{cure}")
    if isinstance(given, LocationScale) and given.center is None:
        given = standardising(given, labels)
    options = {key: value for key, value in dataclasses.asdict(given).items() if value is not None}
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    return dataclasses.replace(section, likelihood=name, likelihood_options=options)


def standardising(likelihood: LocationScale, targets: Tensor) -> LocationScale:
    """The likelihood with center and spread from the training targets."""
    if targets.ndim not in (1, 2) or targets.is_complex():
        raise InputError(
            f"the targets of a regression must be [examples] or [examples, numbers], not {list(targets.shape)}: "
            "flatten those of one example, or say how noisy they are with likelihood=atmc.likelihoods.Gaussian(scale)"
        )
    wide = targets.double()
    if not bool(torch.isfinite(wide).all()):
        row = int((~torch.isfinite(wide).reshape(len(wide), -1).all(1)).int().argmax())
        raise InputError(f"the regression targets hold NaN or infinite values, first in example {row}")
    center = _short(wide.mean(0).tolist())
    spread = _short(wide.std(0, unbiased=False).tolist())
    if isinstance(spread, list):
        spread = [s if s > 0 else 1.0 for s in spread]
    return dataclasses.replace(likelihood, center=center, spread=spread or 1.0)


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
