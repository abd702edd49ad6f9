"""Normalisation over one example and activation as one function: in plain torch operations, or in one kernel.

With s = x [+ pre_bias] [+ h] the functions are
    gn       z = gain · (s − mean)/√(variance + eps) + bias, statistics over a group of channels and all pixels
    evonorm  z = gain · s · σ(extra · s)/√(variance + eps) + bias, likewise (EvoNorm-S0, Liu et al. 2020)
    frn      z = gain · s/√(mean square + eps) + bias, per channel; max(z, extra) where a threshold is given
    y = act(z [+ res])
`h` and `res` are where a residual network adds: before the normalisation (pre-activation blocks, which also need the
sum s itself) or before the activation (post-activation blocks). `pre_bias` is the bias of the convolution before.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["gn", "evonorm", "frn"]
Act = Literal["identity", "relu", "silu"]
KINDS: tuple[Kind, ...] = ("gn", "evonorm", "frn")
ACTS: tuple[Act, ...] = ("identity", "relu", "silu")
HAS_TRITON = importlib.util.find_spec("triton") is not None
enabled = True  # False: plain torch operations on CUDA, too, for comparison


def norm_act(
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    extra: Tensor | None = None,
    kind: Kind = "gn",
    act: Act = "identity",
    groups: int = 1,
    eps: float = 1e-5,
    pre_bias: Tensor | None = None,
    h: Tensor | None = None,
    res: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, s): fused on CUDA where Triton is installed, otherwise `norm_act_reference`. s is x if nothing is added."""
    if not _fused_applies(x):
        return norm_act_reference(x, gain, bias, extra, kind, act, groups, eps, pre_bias, h, res)
    if not torch.compiler.is_compiling():
        load_kernels()  # a network that was read from a file was never made
    y, s, _ = torch.ops.atmc.norm_act(
        x, h, res, pre_bias, gain, bias, extra, KINDS.index(kind), ACTS.index(act), groups, eps
    )
    return y, (x if h is None else s)


def norm_act_reference(
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    extra: Tensor | None = None,
    kind: Kind = "gn",
    act: Act = "identity",
    groups: int = 1,
    eps: float = 1e-5,
    pre_bias: Tensor | None = None,
    h: Tensor | None = None,
    res: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same in torch operations, statistics in float32 at least; differentiable any number of times."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    s = x.to(wide)
    if pre_bias is not None:
        s = s + _per_channel(pre_bias, s)
    stream = x
    if h is not None:
        stream = (s + h.to(wide)).to(x.dtype)  # what later layers see, so what is normalised
        s = stream.to(wide)
    if kind == "frn":
        unit = s * torch.rsqrt(s.square().mean((2, 3), keepdim=True) + eps)
    else:
        grouped = s.reshape(len(s), groups, -1)
        variance, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
        rstd = torch.rsqrt(variance + eps)
        if kind == "gn":
            unit = ((grouped - mean) * rstd).reshape(s.shape)
        else:
            assert extra is not None
            unit = ((s * torch.sigmoid(_per_channel(extra, s) * s)).reshape_as(grouped) * rstd).reshape(s.shape)
    z = unit * _per_channel(gain, s) + _per_channel(bias, s)
    if kind == "frn" and extra is not None:
        threshold = _per_channel(extra, s)
        z = torch.where(z > threshold, z, threshold)
    if res is not None:
        z = z + res.to(wide)
    y = F.relu(z) if act == "relu" else F.silu(z) if act == "silu" else z
    return _like(y.to(x.dtype), x), stream


def _like(y: Tensor, x: Tensor) -> Tensor:
    """Grouping makes NCHW of a channels-last tensor; what follows wants the input's layout."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return y
    return y.contiguous(memory_format=torch.channels_last) if _is_channels_last(x) else y


def _is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _per_channel(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.dtype).view(1, -1, 1, 1)


def activations(x: Tensor) -> Tensor:
    """A network's input as its layers take it: in autocast's precision where autocast is on, channels-last on CUDA.

    The layers follow their input, so inside another network under autocast they would otherwise start in float32.
    """
    if x.is_floating_point() and torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return channels_last_on_cuda(x)


def channels_last_on_cuda(x: Tensor) -> Tensor:
    """Images as convolutions on CUDA want them; as they are under torch.func, which knows no such layout."""
    if not x.is_cuda or (not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()):
        return x
    return x.contiguous(memory_format=torch.channels_last)


def load_kernels() -> None:
    """Register the operators where they can be used. Layers call it when they are made: compiled code cannot import."""
    if HAS_TRITON and torch.cuda.is_available():
        import atmc.nn.kernels.frn_op
        import atmc.nn.kernels.norm_act_op
        import atmc.nn.kernels.standardise_op  # noqa: F401


def _fused_applies(x: Tensor) -> bool:
    if not enabled or not x.is_cuda or x.ndim != 4 or x.numel() == 0 or not HAS_TRITON:
        return False
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    return torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active()
