"""A sampler's state as plain data, and back, without touching anything if it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .noise import stream_key

if TYPE_CHECKING:
    from .sampler import Sampler


def pack(sampler: Sampler, packed: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's own packing with copies of the state, and what it does not know of."""
    packed["state"] = {i: {k: v.clone() for k, v in s.items()} for i, s in packed["state"].items()}
    packed["sampler"] = {
        "class": type(sampler).__name__,
        "seed": sampler.seed,
        "scheme": sampler.scheme,
        "calls": sampler._calls,
        "step": sampler._shards[0].step.clone(),
        "last_lr": [last.clone() for last in sampler._last_lr],
    }
    return packed


def check(sampler: Sampler, state_dict: dict[str, Any]) -> None:
    """Refuse a state that is not one of this sampler's."""
    extra = state_dict.get("sampler")
    if not isinstance(extra, dict) or extra.get("class") != type(sampler).__name__:
        found = extra.get("class") if isinstance(extra, dict) else "something else"
        raise ValueError(f"this state is of {found}, not of {type(sampler).__name__}")
    sizes = [len(group["params"]) for group in sampler.param_groups]
    found_sizes = [len(group["params"]) for group in state_dict["param_groups"]]
    if sizes != found_sizes:
        raise ValueError(f"this state has groups of {found_sizes} parameters, the sampler has groups of {sizes}")
    states = _by_number(state_dict)
    for i, p in enumerate(_parameters(sampler)):
        for slot in sampler.slots:
            mine = sampler.state[p][slot].shape
            if slot not in states.get(i, {}):
                raise ValueError(f"the state has no {slot} for parameter {i}")
            if states[i][slot].shape != mine:
                raise ValueError(
                    f"{slot} of parameter {i} has shape {list(states[i][slot].shape)}, the parameter {list(mine)}"
                )


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
    sampler.seed = int(extra["seed"])
    sampler._key = stream_key(sampler.seed)
    sampler._calls = int(extra["calls"])


def _parameters(sampler: Sampler) -> list[Tensor]:
    return [p for group in sampler.param_groups for p in group["params"]]


def _by_number(state_dict: dict[str, Any]) -> dict[int, dict[str, Tensor]]:
    """The states by parameter number, which a trip through JSON turns into text."""
    return {int(k): v for k, v in state_dict["state"].items()}
