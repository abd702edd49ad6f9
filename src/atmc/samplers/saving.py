"""A sampler's state as plain data, and back, without touching anything if it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .checks import check_group
from .noise import stream_key

if TYPE_CHECKING:
    from .sampler import Sampler


def pack(sampler: Sampler, packed: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's own packing with copies of the state, and what it does not know of."""
    packed["state"] = {i: {k: v.clone() for k, v in s.items()} for i, s in packed["state"].items()}
    packed["param_groups"] = [{k: _copy(v) for k, v in group.items()} for group in packed["param_groups"]]
    packed["sampler"] = {
        "class": type(sampler).__name__,
        "seed": sampler.seed,
        "scheme": sampler.scheme,
        "slots": list(sampler.slots),
        "shared_thermostat": sampler.shared_thermostat,
        "options": {name: getattr(sampler, name) for name in sampler.saved},
        "calls": sampler._calls,
        "step": sampler._shards[0].step.clone(),
        "last_lr": [last.clone() for last in sampler._last_lr],
    }
    return packed


def check(sampler: Sampler, state_dict: dict[str, Any]) -> None:
    """Refuse a state that is not one of this sampler's, before anything has changed."""
    extra = state_dict.get("sampler")
    if not isinstance(extra, dict) or extra.get("class") != type(sampler).__name__:
        found = extra.get("class") if isinstance(extra, dict) else "something else"
        raise ValueError(f"this state is of {found}, not of {type(sampler).__name__}")
    wanted = ("seed", "scheme", "slots", "shared_thermostat", "options", "calls", "step", "last_lr")
    missing = [key for key in wanted if key not in extra]
    if missing or "param_groups" not in state_dict or "state" not in state_dict:
        raise ValueError(f"this state is incomplete: it has no {', '.join(missing) or 'state or param_groups'}")
    mine = {"scheme": sampler.scheme, "slots": list(sampler.slots), "shared_thermostat": sampler.shared_thermostat}
    for key, value in mine.items():
        if extra[key] != value:
            raise ValueError(f"this state was taken with {key} {extra[key]!r}, the sampler has {value!r}")
    sizes = [len(group["params"]) for group in sampler.param_groups]
    found_sizes = [len(group["params"]) for group in state_dict["param_groups"]]
    if sizes != found_sizes or len(extra["last_lr"]) != len(sizes):
        raise ValueError(f"this state has groups of {found_sizes} parameters, the sampler has groups of {sizes}")
    for number, (own, new) in enumerate(zip(sampler.param_groups, state_dict["param_groups"], strict=True)):
        absent = [key for key in sampler.defaults if key not in new and key != "differentiable"]
        if absent:
            raise ValueError(f"group {number} of this state has no {', '.join(absent)}")
        check_group({**new, "params": own["params"]}, number)
    states = _by_number(state_dict)
    for i, p in enumerate(_parameters(sampler)):
        for slot in sampler.slots:
            shape, value = sampler.state[p][slot].shape, states.get(i, {}).get(slot)
            if not isinstance(value, Tensor):
                raise ValueError(f"the state has no {slot} for parameter {i}")
            if value.shape != shape:
                raise ValueError(f"{slot} of parameter {i} has shape {list(value.shape)}, the parameter {list(shape)}")


def tensor_settings(sampler: Sampler) -> list[dict[str, Tensor]]:
    """The learning rates and temperatures that are tensors: a captured graph reads them where they are."""
    keys = ("lr", "temperature")
    return [{k: group[k] for k in keys if isinstance(group[k], Tensor)} for group in sampler.param_groups]


def restore(sampler: Sampler, state_dict: dict[str, Any], held: list[dict[str, Tensor]]) -> None:
    """Put a checked state in place; the groups' numbers have been loaded already.

    PyTorch would round states to the parameters' precision, so they are copied from the source here.
    """
    for group, tensors in zip(sampler.param_groups, held, strict=True):
        for key, tensor in tensors.items():
            tensor.copy_(torch.as_tensor(group[key]))
            group[key] = tensor
    extra, states = state_dict["sampler"], _by_number(state_dict)
    owner = {p: group for group in sampler.param_groups for p in group["params"]}
    for shard in sampler._shards:
        shard.groups = [owner[p] for p in shard.params]
        shard.step.copy_(torch.as_tensor(extra["step"]))
        shard.forget_readings()
        sampler._link(shard)
    for i, p in enumerate(_parameters(sampler)):
        for slot in sampler.slots:
            sampler.state[p][slot].copy_(states[i][slot])
    for last, value in zip(sampler._last_lr, extra["last_lr"], strict=True):
        last.copy_(torch.as_tensor(value))
    for name in sampler.saved:
        setattr(sampler, name, extra["options"].get(name, getattr(sampler, name)))
    sampler.seed = int(extra["seed"])
    sampler._key = stream_key(sampler.seed)
    sampler._calls = int(extra["calls"])


def _copy(value: Any) -> Any:
    """A group's value, its tensors copied."""
    if isinstance(value, Tensor):
        return value.clone()
    return [_copy(v) for v in value] if isinstance(value, list) else value


def _parameters(sampler: Sampler) -> list[Tensor]:
    return [p for group in sampler.param_groups for p in group["params"]]


def _by_number(state_dict: dict[str, Any]) -> dict[int, dict[str, Tensor]]:
    """The states by parameter number, which a trip through JSON turns into text."""
    return {int(k): v for k, v in state_dict["state"].items()}
