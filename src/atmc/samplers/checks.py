"""Bad input, noticed before anything has moved, and named."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from . import fused_native
from .layout import Shard

#: Smallest allowed value of a hyper-parameter, whether it itself is allowed, and whether infinity is.
BOUNDS: dict[str, tuple[float, bool, bool]] = {
    "lr": (0.0, True, False),
    "temperature": (0.0, True, False),
    "mass": (0.0, False, False),
    "noise": (0.0, True, False),
    "speed_limit": (0.0, False, True),
    "inertia": (0.0, False, True),
}


def choose(key: str, value: Any, allowed: Iterable[Any]) -> None:
    """Refuse a value that is not one of those allowed."""
    if value not in tuple(allowed):
        raise ValueError(f"{key} must be one of {', '.join(repr(a) for a in allowed)}, not {value!r}")


def parameter_name(group: dict[str, Any], number: int, index: int) -> str:
    """What to call a parameter: its own name if the sampler was given one, else its place and shape."""
    names = group.get("param_names")
    return str(names[index]) if names else f"{index} of group {number} (shape {list(group['params'][index].shape)})"


def check_group(group: dict[str, Any], number: int) -> None:
    """Refuse a parameter group that cannot be sampled."""
    if not group["params"]:
        raise ValueError(f"parameter group {number} is empty: give it at least one parameter")
    for i, p in enumerate(group["params"]):
        if not p.is_floating_point():
            raise ValueError(
                f"parameter {parameter_name(group, number, i)} is {p.dtype}: only real floating-point parameters can "
                "be sampled (split a complex one with torch.view_as_real)"
            )
    check_hyperparameters(group, number)
    mass = group.get("mass")
    if isinstance(mass, (list, tuple)):
        if len(mass) != len(group["params"]):
            raise ValueError(f"group {number}: {len(mass)} masses for {len(group['params'])} parameters")
        for i, (m, p) in enumerate(zip(mass, group["params"], strict=True)):
            if isinstance(m, Tensor) and m.shape != p.shape:
                name = parameter_name(group, number, i)
                raise ValueError(f"mass of parameter {name} has shape {list(m.shape)}, not {list(p.shape)}")


def check_hyperparameters(group: dict[str, Any], number: int) -> None:
    """Refuse numbers out of range. Tensors are trusted: they may live on a device, and looking would synchronise."""
    for key, (low, closed, infinite) in BOUNDS.items():
        if key not in group:
            continue
        for value in group[key] if isinstance(group[key], (list, tuple)) else [group[key]]:
            if isinstance(value, Tensor):
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value):
                raise ValueError(f"{key} of group {number} must be a number, not {value!r}")
            if value < low or (value == low and not closed) or (math.isinf(value) and not infinite):
                range_ = f"{'' if infinite else 'finite and '}{'>=' if closed else '>'} {low:g}"
                raise ValueError(f"{key} of group {number} is {value}: it must be {range_}")


def check_finite(shard: Shard, grads: list[Tensor | None]) -> None:
    """Refuse a NaN or infinite gradient."""
    for grad, name in zip(grads, shard.names, strict=True):
        if grad is not None and not fused_native.all_finite(grad):
            raise RuntimeError(f"the gradient of parameter {name} is not finite; the step was not taken")
