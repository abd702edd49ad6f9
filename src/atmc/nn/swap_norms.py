"""Replace BatchNorm by GroupNorm and weight standardisation, keeping the weights.

This changes the function: the network must be fine-tuned before it is sampled. A convolution before a BatchNorm takes
over its running mean and deviation, by its gain and bias, so that GroupNorm sees normalised channels. With an `example`
batch, mean and deviation are measured on it instead, which also accounts for the removed means of the filters.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from atmc.nn.batchnorm_folding import check_functional, folds_from_graph, folds_from_order, trace
from atmc.nn.normalisation import BatchNormAct, NormAct
from atmc.nn.resnet import BatchNorm2d
from atmc.nn.standardisation import EPS, WSConv2d
from atmc.nn.weightnorm import CastConv2d

SWAPPED = (nn.BatchNorm2d, nn.SyncBatchNorm, BatchNorm2d, BatchNormAct)


def swap_norms(model: nn.Module, example: Tensor | None = None) -> nn.Module:
    """A copy of `model` with GroupNorm for BatchNorm and standardised convolutions; fine-tune it before sampling."""
    swapped = copy.deepcopy(model).eval()
    swapped.__dict__.pop("made_by", None)  # It is no longer what that call would build.
    names = dict(swapped.named_modules(remove_duplicate=False))  # a shared layer has several names
    norms = {name: module for name, module in names.items() if isinstance(module, _BatchNorm)}
    for name, norm in norms.items():
        if type(norm) not in SWAPPED:
            raise ValueError(f"convert: layer {name!r} ({type(norm).__name__}) cannot become GroupNorm: 2-d ones can")
    if not norms:
        raise ValueError("convert: this network has no BatchNorm to exchange for GroupNorm")
    graph = trace(swapped)
    if graph is None:
        pairs = folds_from_order(swapped)
    else:
        check_functional(graph)
        pairs = folds_from_graph(swapped, graph)
    before = {pair.layer: pair.norm for pair in pairs if pair.where == "after"}
    convs: dict[str, WSConv2d] = {}
    made: dict[nn.Module, WSConv2d] = {}  # a shared layer stays shared
    for name, module in names.items():
        ours = isinstance(module, CastConv2d) and not isinstance(module, WSConv2d)
        known = isinstance(module, nn.Conv2d) and (ours or type(module) is nn.Conv2d)
        if known and module.weight[0].numel() > 1:  # a filter of one number has nothing to standardise
            if module not in made:
                made[module] = _standardised(module, norms.get(before.get(name, "")))
            convs[name] = made[module]
    for name, new in convs.items():
        swapped = _put(swapped, name, new)
    groups = {norm: _group_norm(norm) for norm in norms.values()}
    for name, norm in norms.items():
        swapped = _put(swapped, name, groups[norm])
    if example is not None:
        _measure(swapped, [name for name in before if name in convs], example)
    _without_dropout(swapped)
    return swapped.train(model.training)


def _standardised(conv: nn.Conv2d, norm: nn.Module | None) -> WSConv2d:
    """The same filters, less their means, divided by the running deviation of the BatchNorm that follows."""
    new = WSConv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        conv.stride,
        conv.padding,
        bias=conv.bias is not None or norm is not None,
        dilation=conv.dilation,
        groups=conv.groups,
        padding_mode=conv.padding_mode,
    ).to(conv.weight.device, conv.weight.dtype)
    with torch.no_grad():
        new.weight.copy_(conv.weight)
        centred = conv.weight - conv.weight.mean((1, 2, 3), keepdim=True)
        new.gain.copy_((centred.square().sum((1, 2, 3)) + EPS).sqrt())
        if new.bias is not None:
            new.bias.copy_(torch.zeros_like(new.bias) if conv.bias is None else conv.bias)
        if isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.running_var is not None:
            _take_over(new, norm.running_mean, norm.running_var, norm.eps)
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(getattr(conv, name, None) is None or bool(getattr(conv, name).requires_grad))
    return new


@torch.no_grad()
def _take_over(conv: WSConv2d, mean: Tensor, variance: Tensor, eps: float) -> None:
    """Have a convolution's outputs, of this mean and variance, come out with mean 0 and variance 1."""
    factor = torch.rsqrt(variance + eps)
    conv.gain.mul_(factor)
    assert conv.bias is not None
    conv.bias.copy_((conv.bias - mean) * factor)


def _group_norm(norm: nn.Module) -> NormAct:
    assert isinstance(norm, _BatchNorm)
    new = NormAct(norm.num_features, "gn", getattr(norm, "activation", "identity"))
    if norm.weight is not None and norm.bias is not None:
        new.to(norm.weight.device, norm.weight.dtype)
        with torch.no_grad():
            new.gain.copy_(norm.weight)
            new.bias.copy_(norm.bias)
    return new


def _put(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    if not name:
        return new
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, new)
    return model


def _measure(model: nn.Module, names: list[str], example: Tensor) -> None:
    """Let the outputs of these convolutions have mean 0 and variance 1 on the example, each after those before it."""

    def adjust(conv: WSConv2d) -> Any:
        def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            variance, mean = torch.var_mean(output.float(), (0, 2, 3), correction=0)
            _take_over(conv, mean.to(conv.gain), variance.to(conv.gain), 1e-5)
            shape = (1, -1, 1, 1)
            return (output - mean.to(output).view(shape)) * torch.rsqrt(variance + 1e-5).to(output).view(shape)

        return conv.register_forward_hook(hook)

    modules = dict(model.named_modules())
    hooks = [adjust(conv) for name in names if isinstance(conv := modules[name], WSConv2d)]
    try:
        with torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()


def _without_dropout(model: nn.Module) -> None:
    found = False
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            module.p, found = 0.0, True
    if found:
        warnings.warn("convert: dropout was switched off, which a sampled network cannot have", stacklevel=3)
