"""The kernels of `norm_act_triton` as operators of torch: differentiable, opaque to torch.compile, capturable.

`torch.ops.atmc.norm_act` returns (y, s, statistics); s is empty unless `h` is given. Parameter gradients are sums of
one row per image in a fixed order, so two runs give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from atmc.nn.kernels import norm_act_triton as kernels
from atmc.nn.kernels.norm_act_backward_triton import backward_kernel, sum_kernel
from atmc.nn.norm_functions import ACTS, KINDS, norm_act_reference

LAYOUT = torch.channels_last


def _plan(x: Tensor, kind: int, groups: int) -> tuple[int, dict[str, Any]]:
    """(programs per image, constants of the launch): how an image is cut into programs and a program into tiles."""
    channels, pixels = x.shape[1], x.shape[2] * x.shape[3]
    if kind == kernels.FRN:
        wide = triton.next_power_of_2(channels)
        group = block_c = min(wide, max(16, min(64, 4096 // max(1, triton.next_power_of_2(pixels)))))
        parts = triton.cdiv(channels, group)
    else:
        group, parts = channels // groups, groups
        block_c = triton.next_power_of_2(group)
    whole = triton.next_power_of_2(pixels)
    resident = whole * block_c <= kernels.RESIDENT_ELEMENTS
    block_p = whole if resident else max(1, min(whole, kernels.LOOP_ELEMENTS // block_c))
    exact = pixels % block_p == 0 and block_c == group and channels % group == 0
    warps = max(1, min(16, block_p * block_c // kernels.WARP_ELEMENTS))
    constants = {"PIXELS": pixels, "GROUP": group, "KIND": kind, "MASKED": not exact, "RESIDENT": resident}
    return parts, constants | {"BLOCK_P": block_p, "BLOCK_C": block_c, "num_warps": warps}


def _laid_out(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous(memory_format=LAYOUT)


@torch.library.custom_op(
    "atmc::norm_act",
    mutates_args=(),
    schema="(Tensor x, Tensor? h, Tensor? res, Tensor? pre_bias, Tensor gain, Tensor bias, Tensor? extra, int kind, "
    "int act, int groups, float eps) -> (Tensor, Tensor, Tensor)",
)
def norm_act(
    x: Tensor,
    h: Tensor | None,
    res: Tensor | None,
    pre_bias: Tensor | None,
    gain: Tensor,
    bias: Tensor,
    extra: Tensor | None,
    kind: int,
    act: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(act(norm(x + pre_bias + h) + res), x + pre_bias + h where h is given, the statistics)."""
    x = x.contiguous(memory_format=LAYOUT)
    h, res = _laid_out(h), _laid_out(res)
    y, s, stats = _outputs(x, h, kind, groups)
    parts, constants = _plan(x, kind, groups)
    with torch.cuda.device(x.device if x.is_cuda else -1):
        kernels.forward_kernel[(len(x) * parts,)](
            x, h, res, pre_bias, gain, bias, extra, y, s, stats,
            x.shape[1], parts, len(x), eps,
            ACT=act, HAS_H=h is not None, HAS_RES=res is not None, HAS_PRE=pre_bias is not None,
            THRESHOLD=kind == kernels.FRN and extra is not None, **constants,
        )  # fmt: skip
    return y, s, stats


def _outputs(x: Tensor, h: Tensor | None, kind: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=LAYOUT)
    s = torch.empty_like(x, memory_format=LAYOUT) if h is not None else x.new_empty(0)
    count = x.shape[1] if kind == kernels.FRN else 2 * groups
    return y, s, torch.empty(len(x) * count, dtype=torch.float32, device=x.device)


@norm_act.register_fake
def _(
    x: Tensor, h: Any, res: Any, pre_bias: Any, gain: Any, bias: Any, extra: Any, kind: int, act: int, groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _outputs(x, h, kind, groups)


@torch.library.custom_op(
    "atmc::norm_act_backward",
    mutates_args=(),
    schema="(Tensor x, Tensor? res, Tensor dy, Tensor? ds, Tensor? pre_bias, Tensor gain, Tensor bias, Tensor? extra, "
    "Tensor stats, bool pre_grad, int kind, int act, int groups) -> (Tensor, Tensor, Tensor)",
)
def norm_act_backward(
    x: Tensor,
    res: Tensor | None,
    dy: Tensor,
    ds: Tensor | None,
    pre_bias: Tensor | None,
    gain: Tensor,
    bias: Tensor,
    extra: Tensor | None,
    stats: Tensor,
    pre_grad: bool,
    kind: int,
    act: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(gradient of x, of res, [gain, bias, extra?, pre_bias?] × channels)."""
    x, dy = x.contiguous(memory_format=LAYOUT), dy.to(x.dtype).contiguous(memory_format=LAYOUT)
    res, ds = _laid_out(res), _laid_out(ds)
    dx, dres, sums = _gradients(x, res, extra, pre_grad)
    rows, channels = sums.shape
    partial = torch.empty(rows, len(x), channels, dtype=torch.float32, device=x.device)
    parts, constants = _plan(x, kind, groups)
    with torch.cuda.device(x.device if x.is_cuda else -1):
        backward_kernel[(len(x) * parts,)](
            x, res, dy, ds, pre_bias, gain, bias, extra, stats, dx, dres, partial,
            x.shape[1], parts, len(x),
            ACT=act, HAS_DS=ds is not None, HAS_RES=res is not None, HAS_PRE=pre_bias is not None, PRE_GRAD=pre_grad,
            THRESHOLD=kind == kernels.FRN and extra is not None, **constants,
        )  # fmt: skip
        sum_kernel[(rows, triton.cdiv(channels, 16))](partial, sums, channels, len(x), BLOCK_I=128, BLOCK_C=16)
    return dx, dres, sums


def _gradients(x: Tensor, res: Tensor | None, extra: Tensor | None, pre_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=LAYOUT)
    dres = torch.empty_like(x, memory_format=LAYOUT) if res is not None else x.new_empty(0)
    rows = 2 + (extra is not None) + pre_grad
    return dx, dres, torch.empty(rows, x.shape[1], dtype=torch.float32, device=x.device)


@norm_act_backward.register_fake
def _(
    x: Tensor, res: Any, dy: Any, ds: Any, pre_bias: Any, gain: Any, bias: Any, extra: Any, stats: Any,
    pre_grad: bool, kind: int, act: int, groups: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _gradients(x, res, extra, pre_grad)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, h, res, pre_bias, gain, bias, extra, *ctx.constants = inputs
    _, s, stats = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(stats)
    ctx.added, ctx.shifted = h is not None, pre_bias is not None
    source, shift = (s, None) if h is not None else (x, pre_bias)  # the sum already holds the shift
    ctx.save_for_backward(source, res, shift, gain, bias, extra, stats)


def _backward(ctx: Any, dy: Tensor | None, ds: Tensor | None, _: Any) -> tuple[Any, ...]:
    x, res, shift, gain, bias, extra, stats = ctx.saved_tensors
    kind, act, groups, _ = ctx.constants
    ds = ds if ctx.added else None
    dy = torch.zeros_like(x) if dy is None else dy
    if torch.is_grad_enabled():  # create_graph=True: somebody wants second derivatives
        return (*_differentiable(ctx, dy, ds), None, None, None, None)
    pre_grad = ctx.shifted and ctx.needs_input_grad[3]
    dx, dres, sums = torch.ops.atmc.norm_act_backward(
        x, res, dy, ds, shift, gain, bias, extra, stats, pre_grad, kind, act, groups
    )
    return (
        dx,
        dx if ctx.added else None,
        None if res is None else dres,
        sums[-1].to(gain.dtype) if pre_grad else None,
        sums[0].to(gain.dtype),
        sums[1].to(gain.dtype),
        None if extra is None else sums[2].to(gain.dtype),
        None,
        None,
        None,
        None,
    )


def _differentiable(ctx: Any, dy: Tensor, ds: Tensor | None) -> tuple[Any, ...]:
    """The same gradients from differentiable operations."""
    x, res, shift, gain, bias, extra, _ = ctx.saved_tensors
    kind, act, groups, eps = ctx.constants
    inputs = [x, res, shift, gain, bias, extra]
    given = [t.detach().requires_grad_() if t is not None and not t.requires_grad else t for t in inputs]
    source, res, shift, gain, bias, extra = given
    y = norm_act_reference(source, gain, bias, extra, KINDS[kind], ACTS[act], groups, eps, shift, None, res)[0]
    wanted = [t for t in given if t is not None]
    found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    dx, dres, dshift, dgain, dbias, dextra = (None if t is None else next(found) for t in given)
    assert dx is not None
    dx = dx if ds is None else dx + ds
    if ctx.added and ctx.shifted:
        dshift = dx.sum((0, 2, 3)).to(gain.dtype)
    return dx, dx if ctx.added else None, dres, dshift, dgain, dbias, dextra


norm_act.register_autograd(_backward, setup_context=_remember)
