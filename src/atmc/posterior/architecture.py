"""Describe a network in JSON, so that a saved posterior can be opened without pickles.

A network is described by its recipe or its call of `atmc.nn.build` (both kept in its attribute `made_by`), or, for
torch's layers and `Sequential`, by class and constructor arguments. A description is used only if the rebuilt network
has the same tensors. A custom class has none and must be given when loading. Names are looked up in `torch.nn` and
`atmc.nn` only.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import torch
from torch import nn

from atmc.nn.with_noise import WithNoise

_SKIP = {"self", "device", "dtype"}
_FLAGS = {"bias", "affine", "track_running_stats", "elementwise_affine"}


def describe(model: nn.Module) -> dict[str, Any] | None:
    """A JSON-able description from which `rebuild` makes a network like `model`, or None where there is none."""
    found = _describe(model)
    if found is None:
        return None
    try:
        json.dumps(found)
        twin = rebuild(found)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return None
    return found if shapes(twin) == shapes(model) else None


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a network: equal for two networks that can hold the same samples."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def rebuild(description: dict[str, Any]) -> nn.Module:
    """The network that a description describes, with fresh weights; a ValueError names what cannot be made."""
    if "build" in description:
        from atmc.nn import build

        return build(str(description["build"]), **_tuples(description.get("args", {})))
    if "recipe" in description:
        from atmc.recipe.build import build_model
        from atmc.recipe.settings import recipe_from_dict

        shape = tuple(int(n) for n in description["shape"])
        return build_model(recipe_from_dict({"model": description["recipe"]}), shape, int(description["classes"]))
    name = str(description.get("class", ""))
    if "network" in description:
        if name != WithNoise.__name__:
            raise ValueError(f"a network description wraps a network in {name!r}; only WithNoise does that")
        return WithNoise(rebuild(description["network"]), int(description["outputs"]))
    if "layers" in description:
        if name != "Sequential":
            raise ValueError(f"a network description lists layers of {name!r}; only Sequential has any")
        sequence = nn.Sequential()
        for key, child in description["layers"]:
            sequence.add_module(str(key), rebuild(child))
        return sequence
    return _layer(name)(**_tuples(description.get("args", {})))


def _layer(name: str) -> type[nn.Module]:
    import atmc.nn

    for home in (nn, atmc.nn):
        kind = getattr(home, name, None)
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            return kind
    raise ValueError(f"a network description names the layer {name!r}, which is neither torch's nor atmc's")


def _describe(model: nn.Module) -> dict[str, Any] | None:
    made = getattr(model, "made_by", None)
    if isinstance(made, dict) and ("build" in made or "recipe" in made):
        return made
    kind = type(model)
    if isinstance(model, WithNoise):
        inside = _describe(model.network)
        return inside and {"class": kind.__name__, "network": inside, "outputs": len(model.log_scale)}
    if kind is nn.Sequential:
        layers = [(name, _describe(child)) for name, child in model.named_children()]
        known = all(d is not None for _, d in layers)
        return {"class": "Sequential", "layers": [list(p) for p in layers]} if known else None
    if not kind.__module__.startswith(("torch.nn.modules.", "atmc.nn.")) or next(model.children(), None) is not None:
        return None
    args: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name in _SKIP or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if not hasattr(model, name):
            return None
        value = getattr(model, name)
        if name in _FLAGS and (value is None or isinstance(value, torch.Tensor)):
            value = value is not None
        args[name] = value
    return {"class": kind.__name__, "args": args}


def _tuples(args: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; layers compare their sizes with tuples."""
    return {str(k): tuple(v) if isinstance(v, list) else v for k, v in args.items()}
