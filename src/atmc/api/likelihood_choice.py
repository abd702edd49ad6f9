"""The likelihood that `atmc.sample` uses: as it was named or given, or what the labels ask for."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.data import ImageData
from atmc.engine.run_data import first_outputs
from atmc.nn.scale_output import ValueAndScale, with_scale_output
from atmc.recipe.settings import TargetSection
from atmc.target.likelihoods import LIKELIHOODS, Likelihood, LocationScale, OwnLikelihood, build

STANDARDISED = tuple(name for name, kind in LIKELIHOODS.items() if issubclass(kind, LocationScale))
DIGITS = 7  # of center and spread: enough, and the same on every machine


def default_noise(model: nn.Module, train: ImageData) -> str:
    """The likelihood of a regression that nobody names: with noise that depends on the input where that has a place.

    That is so where the network ends in a linear layer whose outputs are the network's own.
    """
    numbers = max(1, math.prod(train.labels.shape[1:]))
    wide = with_scale_output(model, numbers)
    if wide is None:
        return "learned-noise"
    for module in wide.modules():
        if isinstance(module, ValueAndScale):
            nn.init.constant_(module.log_scale, -1.0)  # what comes after the layer, as a ReLU, would change it
    try:
        plain, outputs = first_outputs(model, train)[0], first_outputs(wide, train)[0]
    except InputError:
        return "learned-noise"
    if outputs.shape != (len(plain), 2 * numbers) or plain.numel() != len(plain) * numbers:
        return "learned-noise"
    wanted = torch.cat([plain.reshape(len(plain), numbers), torch.full((len(plain), numbers), -1.0)], dim=1)
    return "input-noise" if torch.allclose(outputs, wanted, rtol=1e-3, atol=1e-5) else "learned-noise"


def with_likelihood(section: TargetSection, given: Any, labels: Tensor, usual: str = "learned-noise") -> TargetSection:
    """The target's section with the likelihood that was `given`, or with the one for such `labels`.

    Whole numbers are classes; other labels a regression with unknown noise, the `usual` one. Its targets are
    standardised by the likelihood itself, by their mean and standard deviation, unless it says otherwise.
    """
    if isinstance(given, OwnLikelihood):
        about = {"task": given.task, "name": given.name}
        return dataclasses.replace(section, likelihood="custom", likelihood_options=about)
    if isinstance(given, str):
        given = build(given)
    if given is None:
        if not (labels.is_floating_point() and section.likelihood == "categorical"):
            return section
        given = build(usual)
    name = next((name for name, kind in LIKELIHOODS.items() if type(given) is kind), None)
    if name is None:
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        cure = f": pass {kind}()" if isinstance(given, type) and issubclass(given, Likelihood) else ""
        raise InputError(
            f"likelihood must be one of atmc.likelihoods, or an object with nll(outputs, y), not a {kind}{cure}"
        )
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
