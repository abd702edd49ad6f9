"""Fold BatchNorm in evaluation mode, an affine map of each channel, into the layer before or after it.

After a layer, y = a(Wx + b) + c becomes (aW)x + (ab + c), always exactly. Before a layer, W(ax + c) + b becomes
(Wa)x + (Wc + b), exactly unless the layer pads its input with zeros, which would have to be padded with −c/a.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from atmc.nn.weightnorm import CastConv2d, WeightNormLayer, WNConv2d

Where = Literal["after", "before"]
PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, CastConv2d)


@dataclass(frozen=True)
class Fold:
    """BatchNorm `norm` goes into `layer`, which comes before it ("after" that layer) or follows it ("before")."""

    norm: str
    layer: str
    where: Where


def foldable(module: nn.Module) -> bool:
    """Whether a norm can be folded into a layer; exact types only, since a subclass may use its weight differently."""
    return type(module) in PLAIN or isinstance(module, WeightNormLayer)


def affine_of(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """The (a, c) of a BatchNorm in evaluation mode, in float64."""
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("BatchNorm without running statistics is no fixed function")
    a = torch.rsqrt(norm.running_var.double() + norm.eps)
    a = a if norm.weight is None else a * norm.weight.detach().double()
    c = -a * norm.running_mean.double()
    return a, c if norm.bias is None else c + norm.bias.detach().double()


def fold(weight: Tensor, bias: Tensor, affine: tuple[Tensor, Tensor], where: Where) -> tuple[Tensor, Tensor]:
    """The weight and bias with the affine map folded in; grouped convolutions see their own channels only."""
    a, c = affine
    if where == "after":
        return weight * a.view(-1, *[1] * (weight.ndim - 1)), bias * a + c
    outputs, inputs = weight.shape[:2]
    groups = len(a) // inputs
    spread = [each.view(groups, inputs).repeat_interleave(outputs // groups, 0) for each in (a, c)]
    a, c = (each.view(outputs, inputs, *[1] * (weight.ndim - 2)) for each in spread)
    return weight * a, bias + (weight * c).flatten(1).sum(1)


class _Tracer(torch.fx.Tracer):
    """Does not trace into layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return foldable(m) or isinstance(m, _BatchNorm) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> torch.fx.Graph | None:
    """The model's graph, or None where its forward depends on values."""
    try:
        return _Tracer().trace(model)
    except Exception:  # Tracing runs the user's code with stand-ins: it can raise anything.
        return None


def folds_from_graph(model: nn.Module, graph: torch.fx.Graph) -> list[Fold]:
    """Pairs whose layer and norm are each called once, with no other use of the value between them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = Counter(id(modules[str(node.target)]) for node in graph.nodes if node.op == "call_module")
    # A layer whose weight the forward also reads as a number must keep it.
    read = {id(modules.get(str(node.target).rpartition(".")[0])) for node in graph.nodes if node.op == "get_attr"}
    found = []

    def usable(node: object, width: int, out: bool) -> bool:
        if not isinstance(node, torch.fx.Node) or node.op != "call_module":
            return False
        layer = modules[str(node.target)]
        return foldable(layer) and calls[id(layer)] == 1 and id(layer) not in read and _width(layer, out) == width

    for node in graph.nodes:
        if node.op != "call_module" or not isinstance(modules[str(node.target)], _BatchNorm):
            continue
        norm = modules[str(node.target)]
        if calls[id(norm)] != 1 or not node.args:
            continue
        source, users = node.args[0], list(node.users)
        if isinstance(source, torch.fx.Node) and len(source.users) == 1 and usable(source, norm.num_features, True):
            found.append(Fold(str(node.target), str(source.target), "after"))
            continue
        follows = len(users) == 1 and users[0].args[:1] == (node,) and usable(users[0], norm.num_features, False)
        if follows and not _pads(modules[str(users[0].target)]):
            found.append(Fold(str(node.target), str(users[0].target), "before"))
    return found


def folds_from_order(model: nn.Module) -> list[Fold]:
    """Without a graph: a norm registered right after a layer of its width, in the same parent, is taken to follow."""
    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    found = []
    for (name, layer), (norm_name, norm) in pairwise(leaves):
        siblings = name.rpartition(".")[0] == norm_name.rpartition(".")[0]
        if isinstance(norm, _BatchNorm) and siblings and foldable(layer) and _width(layer, True) == norm.num_features:
            found.append(Fold(norm_name, name, "after"))
    return found


def check_functional(graph: torch.fx.Graph) -> None:
    """Refuse BatchNorm and warn of dropout that the forward calls as functions: no change of layers reaches these."""
    drop = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
    called = {node.target for node in graph.nodes if node.op == "call_function"}
    if called & {F.batch_norm, torch.batch_norm}:
        raise ValueError("convert: the forward calls F.batch_norm itself; use an nn.BatchNorm layer instead")
    if called & set(drop):
        warnings.warn("convert: the forward calls dropout as a function; switch it off there", stacklevel=3)


def _width(layer: nn.Module, out: bool) -> int:
    """Output features of a layer, or its input features."""
    if isinstance(layer, WeightNormLayer):
        shape = layer.direction.shape
        groups = layer.groups if isinstance(layer, WNConv2d) else 1
        return shape[0] if out else shape[1] * groups
    if isinstance(layer, _ConvNd):
        return layer.out_channels if out else layer.in_channels
    if isinstance(layer, nn.Linear):
        return layer.out_features if out else layer.in_features
    raise TypeError(f"{type(layer).__name__} has no width")


def _pads(layer: nn.Module) -> bool:
    """Whether a layer pads with zeros; the other modes repeat real values, which fold like the rest."""
    if not isinstance(layer, WNConv2d | _ConvNd) or layer.padding_mode != "zeros":
        return False
    return layer.padding == "same" if isinstance(layer.padding, str) else any(layer.padding)
