"""Regression whose noise is not known: learned for all inputs together, or for each input by itself.

Outputs are [batch, 2D], D locations f and then D log scales s, both for targets standardised as
t = (y − center)/spread. The density is that of y itself, so that an NLL is in nats of the user's units:

    Gaussian    −log p(y | f, s) = Σ_d [ z_d²/2 + s_d + log spread_d + log(2π)/2 ],             z = (t − f) e^(−s)
    Student-t   −log p(y | f, s) = Σ_d [ (ν+1)/2 · log(1 + z_d²/ν) + s_d + log spread_d + log Z_ν ]

`atmc.sample` sets center and spread to the mean and the standard deviation of the training targets. A number each
stands for targets [batch], which predictions then have, too; a list for targets [batch, D].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.nn.scale_output import with_scale_output
from atmc.nn.with_noise import WithNoise
from atmc.target.likelihoods.likelihood import RegressionLikelihood, wide

NO_PLACE = (
    "the network does not end in a linear layer with one output for each number of a target, so noise that depends on "
    'the input has no place: pass likelihood="learned-noise"'
)
MOST = 12.0  # of |s|: e^12 standard deviations of the targets; a network's outputs far from its data may be anything


@dataclass(frozen=True)
class LocationScale(RegressionLikelihood):
    """Shared by the three: standardised targets, outputs in two halves."""

    center: float | tuple[float, ...] | None = None
    spread: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("center", "spread"):
            object.__setattr__(self, name, _numbers(getattr(self, name), f"{name} of {type(self).__name__}"))
        if type(self.center) is not type(self.spread) or _width(self.center) != _width(self.spread):
            raise InputError(
                f"center and spread of {type(self).__name__} must both be a number, or lists of one length"
            )
        if any(not s > 0 for s in _listed(self.spread)):
            raise InputError(f"spread of {type(self).__name__} must be positive, not {self.spread!r}")

    @property
    def per_input(self) -> bool:
        """Whether the network itself has an output for the noise."""
        return False

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        f, s = halves(outputs)
        center, spread = self._units(targets)
        t = ((targets.reshape(f.shape) - center) / spread).to(f.dtype)  # in the targets' own precision
        shift = sum(map(math.log, _listed(self.spread)))
        return (self._energy((t - f) * torch.exp(-s)) + s).sum(1) + shift

    def _energy(self, z: Tensor) -> Tensor:
        return 0.5 * z.square() + 0.5 * math.log(2 * math.pi)

    def predict(self, outputs: Tensor) -> Tensor:
        f, _ = halves(outputs)
        center, spread = self._units(f)
        return self._shaped(f * spread + center)

    def noise(self, outputs: Tensor) -> Tensor:
        f, s = halves(outputs)
        return self._shaped(torch.exp(s) * self._units(f)[1])

    def guess(self, targets: Tensor) -> Tensor:
        return torch.zeros(len(targets), 2 * max(1, math.prod(targets.shape[1:])))

    def network(self, model: nn.Module) -> nn.Module:
        if self.per_input or isinstance(model, WithNoise):
            return model
        return WithNoise(model, _width(self.center) or 1)

    def check_shapes(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.ndim != 2 or outputs.shape[1] % 2:
            raise InputError(
                f"{type(self).__name__} takes outputs [batch, 2D], D values and D logarithms of their noise, not "
                f"{list(outputs.shape)}"
            )
        count, width = outputs.shape[0], outputs.shape[1] // 2
        if tuple(targets.shape) != (count, width) and not (width == 1 and tuple(targets.shape) == (count,)):
            raise InputError(
                f"{width} values for each example and targets of shape {list(targets.shape)}: they must be "
                f"[{count}, {width}]"
            )

    def _units(self, like: Tensor) -> tuple[Any, Any]:
        """Center and spread: numbers, or tensors that were made once, since a recorded step cannot copy from a list."""
        if self.center is None:
            return 0.0, 1.0
        if _width(self.center) == 1:
            return _listed(self.center)[0], _listed(self.spread)[0]
        dtype = like.dtype if like.is_floating_point() else torch.float32
        return _constant(_listed(self.center), like.device, dtype), _constant(_listed(self.spread), like.device, dtype)

    def _shaped(self, values: Tensor) -> Tensor:
        """[…, D] as the targets are: a number each where center is one."""
        return values.squeeze(-1) if isinstance(self.center, float) else values


@dataclass(frozen=True)
class LearnedNoise(LocationScale):
    """Gaussian noise of one unknown standard deviation, sampled with the weights (`atmc.nn.WithNoise`).

    The network has D outputs, one for each number of a target.
    """


@dataclass(frozen=True)
class Heteroscedastic(LocationScale):
    """Gaussian noise that depends on the input: the network has 2D outputs, D values and then D logarithms of σ."""

    @property
    def per_input(self) -> bool:
        return True


@dataclass(frozen=True)
class StudentT(LocationScale):
    """Noise with heavy tails, Student's t with `df` degrees of freedom: outliers pull the fit less.

    The scale is sampled as in `LearnedNoise`, or with `heteroscedastic=True` an output of the network.
    """

    df: float = 4.0
    heteroscedastic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "df", _degrees(self.df, type(self).__name__))

    @property
    def per_input(self) -> bool:
        return self.heteroscedastic

    def degrees(self) -> float | None:
        return self.df

    def _energy(self, z: Tensor) -> Tensor:
        return student_energy(z, self.df)


@dataclass(frozen=True)
class InputNoise(StudentT):
    """Student's t noise whose scale depends on the input and is learned with the weights.

    The default of a regression. The network has D outputs; its last linear layer gets D more, `atmc.nn.ValueAndScale`.
    Heavy tails make it safe: with Gaussian noise a target far from its value costs z²/2 nats, and log σ goes on falling
    outside of the data, so that single targets cost a hundred (wine, validation). `df=30` is nearly Gaussian.
    """

    def network(self, model: nn.Module) -> nn.Module:
        found = with_scale_output(model, _width(self.center) or 1)
        if found is None:
            raise InputError(NO_PLACE)
        return found


def _degrees(df: float, kind: str) -> float:
    if not 2 < float(df) < math.inf:
        raise InputError(f"df of {kind} must be above 2, where its variance is finite, not {df!r}")
    return float(df)


def student_energy(z: Tensor, df: float) -> Tensor:
    """−log of the density of Student's t with scale 1."""
    return 0.5 * (df + 1) * torch.log1p(z.square() / df) + log_normaliser(df)


def log_normaliser(df: float) -> float:
    """log Z of Student's t with scale 1."""
    return math.lgamma(df / 2) - math.lgamma((df + 1) / 2) + 0.5 * math.log(df * math.pi)


def halves(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Values and log scales of outputs […, 2D], in float32 at least."""
    f, s = wide(outputs).chunk(2, dim=-1)
    return f, s.clamp(-MOST, MOST)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, device=device, dtype=dtype)


def _numbers(value: Any, what: str) -> Any:
    """A number as a float, a list as a tuple of them; None as it is."""
    if value is None:
        return None
    try:
        found = tuple(map(float, value)) if isinstance(value, list | tuple) else float(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be a number or a list of numbers, not {value!r}") from None
    if found == () or not all(map(math.isfinite, _listed(found))):
        raise InputError(f"{what} must be finite numbers, not {value!r}")
    return found


def _listed(value: float | tuple[float, ...] | None) -> tuple[float, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def _width(value: float | tuple[float, ...] | None) -> int:
    """D; 0 where it is not known."""
    return len(_listed(value))
