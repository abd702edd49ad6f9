"""Saving and restoring an optimizer in place, so that a captured graph keeps reading and writing the same memory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from atmc.samplers import Sampler
from atmc.storage.state_packing import cloned


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """A copy of everything exact continuation needs."""
    if not isinstance(optimizer, Sampler):
        plain: dict[str, Any] = cloned(optimizer.state_dict())
        return plain
    # Readings are taken every few steps only: without them the first log row after a resume would have none.
    return {**optimizer.state_dict(), "readings": [shard.readings.clone() for shard in optimizer._shards]}


@torch.no_grad()
def restore_optimizer_(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Put a state back without moving a single tensor."""
    if isinstance(optimizer, Sampler):
        optimizer.load_state_dict(state)
        for shard, readings in zip(optimizer._shards, state["readings"], strict=True):
            shard.readings.copy_(readings)
        return
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for index, p in enumerate(params):
        own = optimizer.state[p]
        for key, value in state["state"].get(index, {}).items():
            if isinstance(value, Tensor) and isinstance(own.get(key), Tensor):
                own[key].copy_(value)
            else:
                own[key] = value


def new_sgd(
    named: list[tuple[str, Tensor]], lr: Tensor, momentum: float, weight_decay: float, nesterov: bool
) -> torch.optim.SGD:
    """torch's SGD, fused, with the step size as a device tensor and its momenta made at once.

    Zero momenta give the same first step as torch's lazily made ones, and have an address from the start.
    """
    optimizer = torch.optim.SGD(
        named, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, fused=True
    )
    if momentum:
        for _, p in named:
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer


def new_adam(
    named: list[tuple[str, Tensor]], lr: Tensor, momentum: float, late: Sequence[tuple[str, Tensor]] = ()
) -> torch.optim.Adam:
    """torch's Adam, fused, with the step size as a device tensor and its moments made at once, as `new_sgd`.

    Parameters that come `late` are a second group, with a step size of its own that is 0 at first.
    """
    groups: list[dict[str, Any]] = [{"params": named}]
    if late:
        groups.append({"params": [*late], "lr": torch.zeros_like(lr)})
    optimizer = torch.optim.Adam(groups, lr=lr, betas=(momentum, 0.999), fused=True, capturable=lr.is_cuda)
    for _, p in [*named, *late]:
        first = {"step": torch.zeros((), dtype=torch.float32, device=p.device)}
        optimizer.state[p] = first | {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
    return optimizer
