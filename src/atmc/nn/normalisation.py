"""Normalisation layers without batch statistics, each joined with its activation.

Their statistics are over the pixels, and for GroupNorm and EvoNorm-S0 over a group of channels, of one example.

    gn           GroupNorm over groups of 16 channels, then the activation
    evonorm-s0   EvoNorm-S0 over the same groups; it contains its activation, x · σ(v x)
    frn          filter response normalisation, with a learned threshold (TLU) or without, then the activation
    bn           BatchNorm, then the activation: the baseline, for comparison with SGD

On CUDA with Triton each is one kernel forward and one backward (`norm_functions`).
"""

from __future__ import annotations

import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn.norm_functions import Act, Kind, load_kernels, norm_act
from atmc.nn.resnet import BatchNorm2d

Norm = Literal["gn", "evonorm-s0", "frn", "bn"]
Activation = Literal["silu", "relu", "tlu", "identity"]
NORMS = ("gn", "evonorm-s0", "frn", "bn")
ACTIVATIONS = ("silu", "relu", "tlu", "identity")
GROUP = 16  # channels a group


def groups_for(channels: int, size: int = GROUP) -> int:
    """How many groups: of `size` channels where that divides, else of the nearest divisor, with a warning."""
    if channels % size == 0:
        return channels // size
    near = min((d for d in range(1, channels + 1) if channels % d == 0), key=lambda d: (abs(d - size), d))
    warnings.warn(
        f"{channels} channels cannot be normalised in groups of {size}: groups of {near} are used", stacklevel=2
    )
    return channels // near


class NormAct(nn.Module):
    """act(norm(x)): statistics of one example, a gain and a bias per channel, an activation.

    threshold: FRN's learned lower limit before the activation; activation "tlu" is that limit and nothing else.
    """

    gain: nn.Parameter
    bias: nn.Parameter

    def __init__(
        self,
        channels: int,
        norm: Norm = "gn",
        activation: Activation = "silu",
        threshold: bool = False,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        check_norm(norm, activation, threshold)
        if norm == "bn":
            raise ValueError("NormAct has no batch statistics: use norm_act_layer for norm 'bn'")
        load_kernels()
        self.norm: Norm = norm
        self.activation: Activation = activation
        self.eps = (1e-6 if norm == "frn" else 1e-5) if eps is None else eps
        self.groups = 1 if norm == "frn" else groups_for(channels)
        self.gain = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.threshold = nn.Parameter(torch.zeros(channels)) if threshold or activation == "tlu" else None
        self.swish = nn.Parameter(torch.ones(channels)) if norm == "evonorm-s0" else None

    def reset_parameters(self) -> None:
        """Gains and EvoNorm's v one, biases and thresholds zero."""
        for parameter, value in ((self.gain, 1.0), (self.bias, 0.0), (self.threshold, 0.0), (self.swish, 1.0)):
            if parameter is not None:
                nn.init.constant_(parameter, value)

    def forward(self, x: Tensor, pre_bias: Tensor | None = None, res: Tensor | None = None) -> Tensor:
        """act(norm(x + pre_bias) + res); `pre_bias` per channel."""
        return self._run(x, pre_bias, None, res)[0]

    def add(self, x: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
        """(act(norm(x + h)), x + h): where a pre-activation block joins a stream and a branch."""
        return self._run(x, None, h, None)

    def _run(self, x: Tensor, pre_bias: Tensor | None, h: Tensor | None, res: Tensor | None) -> tuple[Tensor, Tensor]:
        kinds: dict[Norm, Kind] = {"gn": "gn", "evonorm-s0": "evonorm", "frn": "frn"}
        contained = self.activation == "tlu" or self.norm == "evonorm-s0"
        act: Act = "identity" if contained else self.activation  # type: ignore[assignment]
        extra = self.swish if self.norm == "evonorm-s0" else self.threshold
        return norm_act(x, self.gain, self.bias, extra, kinds[self.norm], act, self.groups, self.eps, pre_bias, h, res)

    def extra_repr(self) -> str:
        what = f"{len(self.gain)}, norm={self.norm!r}, activation={self.activation!r}"
        return what + (f", groups={self.groups}" if self.norm != "frn" else f", threshold={self.threshold is not None}")


class BatchNormAct(BatchNorm2d):
    """BatchNorm and activation with the calls of `NormAct`; not a function of one example."""

    def __init__(self, channels: int, activation: Activation = "relu") -> None:
        check_norm("bn", activation, False)
        super().__init__(channels)
        self.activation = activation

    def forward(self, x: Tensor, pre_bias: Tensor | None = None, res: Tensor | None = None) -> Tensor:
        z = super().forward(x if pre_bias is None else x + pre_bias.to(x.dtype).view(1, -1, 1, 1))
        z = z if res is None else z + res
        return F.relu(z) if self.activation == "relu" else F.silu(z) if self.activation == "silu" else z

    def add(self, x: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x if h is None else x + h
        return self(x), x


def norm_act_layer(
    channels: int, norm: Norm, activation: Activation, threshold: bool = False
) -> NormAct | BatchNormAct:
    """The layer of that name, BatchNorm included."""
    if norm == "bn":
        return BatchNormAct(channels, activation)
    return NormAct(channels, norm, activation, threshold)


def check_norm(norm: str, activation: str, threshold: bool) -> None:
    """Refuse an unknown normaliser or activation, or a pair that cannot be combined."""
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    if norm != "frn" and (threshold or activation == "tlu"):
        raise ValueError("a threshold (activation 'tlu') belongs to norm 'frn' alone")
    if norm == "evonorm-s0" and activation not in ("silu", "identity"):
        raise ValueError(f"norm 'evonorm-s0' contains its own activation: leave {activation!r} out")
