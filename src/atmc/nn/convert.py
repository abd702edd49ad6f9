"""Convert a BatchNorm network, perhaps pre-trained, to one that can be sampled and computes the same function.

BatchNorm is folded into the layers beside it where that is exact, and else becomes a fixed affine map; convolutions and
linear layers become weight-normalised; dropout is removed.
"""

from __future__ import annotations

import copy
import warnings

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from atmc.nn.batchnorm_folding import affine_of, check_functional, fold, folds_from_graph, folds_from_order, trace
from atmc.nn.check import NOISY_NAMES, uninitialised
from atmc.nn.resnet import BatchNorm2d
from atmc.nn.weightnorm import CastConv2d, WeightNormLayer, WNConv2d, WNLinear

KNOWN_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNorm2d)


class FrozenAffine(nn.Module):
    """gain · x + shift per channel, without parameters: a BatchNorm that could not be folded exactly."""

    gain: Tensor
    shift: Tensor

    def __init__(self, gain: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("gain", gain)
        self.register_buffer("shift", shift)

    def forward(self, input: Tensor) -> Tensor:
        shape = (1, -1, *[1] * (input.ndim - 2))
        return input * self.gain.to(input.dtype).view(shape) + self.shift.to(input.dtype).view(shape)


class FoldedFlat(nn.Identity):
    """The identity in place of a BatchNorm that was folded into a linear layer, for inputs [batch, features] only."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 2:
            raise ValueError(
                f"a BatchNorm beside a linear layer was folded for inputs [batch, features], not {list(input.shape)}: "
                "give convert an example batch"
            )
        return input


def convert(
    model: nn.Module, example: Tensor | None = None, tolerance: float = 1e-3, to: str = "weight-norm"
) -> nn.Module:
    """A copy of `model` without BatchNorm and dropout, weight-normalised, equal to `model.eval()` up to rounding.

    to="gn-ws": instead with GroupNorm for BatchNorm and weight standardisation, which keeps the weights but not the
    function, and trains better: fine-tune it for some epochs before sampling (`swap_norms`).

    Pairs of layer and norm are found by tracing the forward, or else by the order of registration: then give an
    `example` batch. With one, a difference of the outputs above `tolerance` (relative to the largest output) is an
    error. Unknown layers with batch statistics are an error.
    """
    if to == "gn-ws":
        from atmc.nn.swap_norms import swap_norms

        return swap_norms(model, example)
    if to != "weight-norm":
        raise ValueError(f"convert: to must be 'weight-norm' or 'gn-ws', not {to!r}")
    converted = copy.deepcopy(model).eval()
    _refuse(converted)
    converted.__dict__.pop("made_by", None)  # It is no longer what that call would build.
    graph = trace(converted)
    if graph is None:
        folds = folds_from_order(converted)
        if example is None and any(isinstance(module, _BatchNorm) for module in converted.modules()):
            warnings.warn(
                "convert: the forward cannot be traced, so layers were paired by their order; "
                "pass an example batch to have the result verified",
                stacklevel=2,
            )
    else:
        folds = folds_from_graph(converted, graph)
        check_functional(graph)
    deep = set() if example is None else _deep_norms(model, example)
    modules = dict(converted.named_modules(remove_duplicate=False))
    converted = _apply(
        converted,
        {
            item.norm: (item.layer, item.where)
            for item in folds
            if not (item.norm in deep and isinstance(modules[item.layer], nn.Linear | WNLinear))
        },
    )
    if example is not None:
        _verify(model, converted, example, tolerance)
    return converted.train(model.training)


def _refuse(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = type(module).__name__
        if uninitialised(module):
            raise ValueError(f"convert: layer {name!r} ({kind}) has no parameters yet; run one batch through it first")
        if isinstance(module, _BatchNorm) and type(module) in KNOWN_NORMS:
            if module.running_mean is None or module.running_var is None:
                raise ValueError(f"convert: layer {name!r} ({kind}) has no running statistics to fold")
        elif isinstance(module, _BatchNorm) or ("BatchNorm" in kind and "Frozen" not in kind):
            raise ValueError(
                f"convert: layer {name!r} has batch statistics of an unknown kind ({kind}); replace it first"
            )
        elif isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ValueError(f"convert: layer {name!r} ({kind}) tracks batch statistics; set track_running_stats=False")


def _deep_norms(model: nn.Module, example: Tensor) -> set[str]:
    """The norms that see an input of more than two dimensions."""
    probe = copy.deepcopy(model).eval()
    found: set[str] = set()

    def watch(name: str, norm: nn.Module) -> None:
        def note(_: nn.Module, __: object, output: Tensor) -> None:
            if output.ndim > 2:
                found.add(name)

        norm.register_forward_hook(note)

    for name, module in probe.named_modules(remove_duplicate=False):
        if isinstance(module, _BatchNorm):
            watch(name, module)
    with torch.no_grad():
        probe(example)
    return found


def _apply(model: nn.Module, folds: dict[str, tuple[str, str]]) -> nn.Module:
    """Replace layers in place, wherever (and however often) each is registered; the model, or what replaces it."""
    modules = dict(model.named_modules(remove_duplicate=False))
    values: dict[int, tuple[Tensor, Tensor]] = {}
    replacements: dict[int, nn.Module] = {}
    learnt: set[int] = set()  # layers into which something that is trained was folded
    for name, module in modules.items():
        if not isinstance(module, _BatchNorm) or id(module) in replacements:
            continue
        affine = affine_of(module)
        if name in folds:
            layer_name, where = folds[name]
            layer = modules[layer_name]
            weight, bias = values.get(id(layer)) or _values(layer)
            values[id(layer)] = fold(weight, bias, affine, "after" if where == "after" else "before")
            replacements[id(module)] = FoldedFlat() if isinstance(layer, nn.Linear | WNLinear) else nn.Identity()
            if any(parameter.requires_grad for parameter in module.parameters()):
                learnt.add(id(layer))
        else:
            like = module.running_mean
            replacements[id(module)] = FrozenAffine(*(part.to(like) for part in affine))
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for module in model.modules():
        if id(module) in values or type(module) in (nn.Conv2d, nn.Linear, CastConv2d):
            shared = any(uses[id(parameter)] > 1 for parameter in module.parameters(recurse=False))
            _write(module, values.get(id(module)), replacements, shared, id(module) in learnt)
        elif isinstance(module, _DropoutNd) or type(module).__name__ in NOISY_NAMES:
            replacements[id(module)] = nn.Identity()
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            module.dropout = 0.0
    for name, module in modules.items():
        if id(module) in replacements and name:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent) if parent else model, leaf, replacements[id(module)])
    return replacements.get(id(model), model)


def _values(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """A layer's weight and bias (zero where it has none) in float64."""
    weight = layer.effective() if isinstance(layer, WeightNormLayer) else layer.weight
    assert isinstance(weight, Tensor)
    weight = weight.detach().double()
    bias = layer.bias
    if isinstance(bias, Tensor):
        return weight, bias.detach().double().expand(weight.shape[0]).clone()
    return weight, torch.zeros(weight.shape[0], dtype=torch.float64, device=weight.device)


def _write(
    module: nn.Module,
    folded: tuple[Tensor, Tensor] | None,
    replacements: dict[int, nn.Module],
    shared: bool,
    learnt: bool,
) -> None:
    """Give a layer its new values, as a weight-normalised layer where there is one and the weight is not tied.

    Frozen parameters stay frozen, unless a trained norm was folded into them.
    """
    trained = {name: learnt or parameter.requires_grad for name, parameter in module.named_parameters(recurse=False)}
    weight, bias = folded or _values(module)
    with_bias = folded is not None or module.bias is not None
    if shared and folded is None:
        return
    new: WeightNormLayer
    if isinstance(module, WNConv2d) or type(module) in (nn.Conv2d, CastConv2d):
        assert isinstance(module, nn.Conv2d | WNConv2d)
        new = WNConv2d(
            module.in_channels,
            module.out_channels,
            module.kernel_size,
            module.stride,
            module.padding,
            module.dilation,
            module.groups,
            with_bias,
            module.padding_mode,
        )
    elif isinstance(module, WNLinear) or type(module) is nn.Linear:
        new = WNLinear(weight.shape[1], weight.shape[0], with_bias)
    else:  # 1- and 3-dimensional convolutions keep their kind, with the norm folded in
        assert isinstance(module, nn.Conv1d | nn.Conv3d)
        module.weight.data.copy_(weight)
        module.weight.requires_grad_(trained["weight"])
        module.bias = nn.Parameter(bias.to(module.weight), requires_grad=trained.get("bias", trained["weight"]))
        return
    like = next(module.parameters())
    new.to(like.device, like.dtype)
    new.set_weight_(weight, bias if with_bias else None)
    whole = learnt or any(trained.get(name, False) for name in ("weight", "direction", "scale"))
    for name, parameter in new.named_parameters(recurse=False):
        parameter.requires_grad_(trained.get(name, whole))
    replacements[id(module)] = new


def _verify(model: nn.Module, converted: nn.Module, example: Tensor, tolerance: float) -> None:
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(example)
        error = float((converted.eval()(example) - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
    if not error <= tolerance:
        raise RuntimeError(
            f"convert: the converted network's outputs differ by {error:.2g} of their size (allowed {tolerance:g}); "
            "its forward probably uses a norm elsewhere than where it is registered"
        )
