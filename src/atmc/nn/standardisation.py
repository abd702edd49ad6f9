"""Weight standardisation with a gain per filter (Qiao et al. 2019): θ = gain · (w − mean(w)) / ‖w − mean(w)‖.

Only the direction of a filter w and the gain matter to the loss. A prior (or weight decay) on w sets its equilibrium
length, and with it how fast its direction turns per step. See `atmc.priors.normalised`.

With inputs of unit variance a filter's output has variance gain². `gain_for` is the initial gain after an activation,
which gives outputs of unit variance (Brock et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atmc.nn.norm_functions import HAS_TRITON
from atmc.nn.weightnorm import CastConv2d, WeightLayer

enabled = True  # False: plain torch operations on CUDA, too, for comparison
EPS = 1e-10  # beside the squared length of a centred filter
# 1/√(variance of act(z)) for z of the standard normal law
GAINS = {"identity": 1.0, "relu": math.sqrt(2 / (1 - 1 / math.pi)), "silu": 1.7881}


def gain_for(activation: str) -> float:
    """Where the gains of a convolution start that reads this activation of unit-variance inputs."""
    return GAINS[activation]


def standardise(weight: Tensor, gain: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """gain · (w − mean)/‖w − mean‖ per filter in differentiable torch operations; without a gain only the cast."""
    if gain is not None:
        dims = tuple(range(1, weight.ndim))
        centred = weight - weight.mean(dims, keepdim=True)
        factor = gain.view(-1, *[1] * len(dims)) * torch.rsqrt(centred.square().sum(dims, keepdim=True) + EPS)
        weight = centred * factor
    return weight.to(dtype or weight.dtype)


class WSConv2d(CastConv2d):
    """A convolution whose filters are standardised and multiplied by a learned gain; starts He-normal."""

    gain: nn.Parameter

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        bias: bool = False,
        gain: float = 1.0,
        **options: Any,
    ) -> None:
        self.gain_init = gain
        super().__init__(inputs, outputs, kernel, stride, padding, bias=bias, **options)  # type: ignore[arg-type]
        self.gain = nn.Parameter(torch.full((outputs,), gain))
        if self.weight[0].numel() < 2:
            raise ValueError("weight standardisation needs filters of two numbers or more: this one would always be 0")

    def reset_parameters(self) -> None:
        """He-normal filters (only their direction matters to the function), gains at their constant, biases zero."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.weight[0].numel()))
        if "gain" in self._parameters:  # not yet where torch's own constructor calls this
            nn.init.constant_(self.gain, self.gain_init)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def parts(self) -> tuple[Tensor, None]:
        """Standardised already: with a scale `effective_weights` would take it for weight normalisation."""
        return standardise(self.weight, self.gain), None

    def effective(self, dtype: torch.dtype | None = None) -> Tensor:
        return standardise(self.weight, self.gain, dtype)


def standardised_weights(layers: Iterable[WeightLayer], dtype: torch.dtype) -> list[Tensor]:
    """The effective weight of every layer in `dtype`: in one launch each way on CUDA, else layer by layer."""
    parts = [_own_parts(layer) for layer in layers]
    if not parts:
        return []
    if _fused_applies(parts, dtype):
        return _together([weight for weight, _ in parts], [gain for _, gain in parts], dtype)
    return [standardise(weight, gain, dtype) for weight, gain in parts]


def flat_weights(layers: Iterable[WeightLayer], dtype: torch.dtype) -> Tensor | None:
    """The same in one allocation, which `layer_parts` takes apart; None where the kernel does not apply."""
    parts = [_own_parts(layer) for layer in layers]
    if not parts or not _fused_applies(parts, dtype):
        return None
    return _flat([weight for weight, _ in parts], [gain for _, gain in parts], dtype)


def _own_parts(layer: WeightLayer) -> tuple[Tensor, Tensor | None]:
    """(weight, gain) of a standardised layer; of any other its weight, which is then only cast."""
    if isinstance(layer, WSConv2d):
        return layer.weight, layer.gain
    return (layer.weight if isinstance(layer, CastConv2d) else layer.effective()), None


def _together(weights: Sequence[Tensor], gains: Sequence[Tensor | None], dtype: torch.dtype) -> list[Tensor]:
    parts = layer_parts(_flat(weights, gains, dtype), weights)
    return [as_filters(part, w.shape) for part, w in zip(parts, weights, strict=True)]


def _flat(weights: Sequence[Tensor], gains: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor:
    """Every weight from one launch; they share one allocation, each in the order (O, kh, kw, I)."""
    given, present = [gain for gain in gains if gain is not None], [gain is not None for gain in gains]
    if torch.compiler.is_compiling():
        flat: Tensor = torch.ops.atmc.standardise(list(weights), given, present, dtype)
        return flat
    from atmc.nn.kernels.standardise_op import Standardise

    return Standardise.apply(len(weights), present, dtype, *weights, *given)  # type: ignore[no-untyped-call, no-any-return]


def layer_parts(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Each layer's part of an allocation for all, without what pads it.

    By one split, whose gradient is one concatenation: a slice's would be a whole zero tensor for each layer.
    """
    sizes = [size for w in weights for size in (w.numel(), padded(w.shape) - w.numel())]
    return list(torch.split(flat, sizes)[::2])


def as_filters(part: Tensor, shape: Sequence[int]) -> Tensor:
    """A layer's part, which lies in memory as (O, kh, kw, I), as (O, I, kh, kw)."""
    outputs, inputs, *kernel = shape
    return part.view(outputs, *kernel, inputs).movedim(-1, 1)


def padded(shape: Sequence[int]) -> int:
    """Elements a layer takes in the allocation: a multiple of 64, so that every part begins aligned."""
    return -(-math.prod(shape) // 64) * 64


def _fused_applies(parts: list[tuple[Tensor, Tensor | None]], dtype: torch.dtype) -> bool:
    """Whether every tensor is a contiguous float32 CUDA tensor, outside function transforms."""
    if not enabled or not parts[0][0].is_cuda or not HAS_TRITON:
        return False
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return False
    return all(
        tensor is None or (tensor.dtype == torch.float32 and tensor.is_cuda and tensor.is_contiguous())
        for pair in parts
        for tensor in pair
    )
