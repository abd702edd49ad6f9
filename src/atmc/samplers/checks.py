"""Bad input, noticed before anything has moved, and named."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import torch
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
    for key in ("lr", "temperature"):
        value = group[key]
        if isinstance(value, Tensor):
            if value.ndim != 0 or (value.is_cuda and value.dtype != torch.float32):
                raise ValueError(f"{key} of group {number} must be a 0-dim tensor, in float32 on a GPU")
            check_hyperparameters({key: float(value)}, number)
    start = group.get("thermostat_init", 0.0)
    if not isinstance(start, numbers.Real) or not math.isfinite(start):
        raise ValueError(f"thermostat_init of group {number} must be a finite number, not {start!r}")
    choose(f"momentum_init of group {number}", group.get("momentum_init", "zero"), ("zero", "law"))
    masses = group.get("mass", 1.0)
    for i, m in enumerate(masses if isinstance(masses, (list, tuple)) else ()):
        if isinstance(m, Tensor) and not bool(((m > 0) & m.isfinite()).all()):
            raise ValueError(f"mass of parameter {parameter_name(group, number, i)} must be finite and > 0 everywhere")


def check_masses(group: dict[str, Any], number: int) -> None:
    """Refuse masses that do not fit their parameters: the compiled bodies walk through both side by side."""
    mass = group.get("mass", 1.0)
    if isinstance(mass, Tensor):
        raise ValueError(
            f"mass of group {number} is a tensor: give a number, or a sequence with one for each parameter"
        )
    if isinstance(mass, (list, tuple)):
        if len(mass) != len(group["params"]):
            raise ValueError(f"mass of group {number}: {len(mass)} of them for {len(group['params'])} parameters")
        for i, (m, p) in enumerate(zip(mass, group["params"], strict=True)):
            if isinstance(m, Tensor) and m.shape != p.shape:
                name = parameter_name(group, number, i)
                raise ValueError(f"mass of parameter {name} has shape {list(m.shape)}, not {list(p.shape)}")


def check_hyperparameters(group: dict[str, Any], number: int) -> None:
    """Refuse values out of range; numbers of other libraries become plain ones.

    A tensor on a device, and the masses of elements, are looked at only where a group is added: later the one would
    synchronise and the other cost a pass.
    """
    if "params" in group:
        check_masses(group, number)
    for key, (low, closed, infinite) in BOUNDS.items():
        if key not in group:
            continue
        several = key == "mass" and isinstance(group[key], (list, tuple))
        for value in group[key] if several else [group[key]]:
            if isinstance(value, Tensor) and several:
                continue
            if isinstance(value, Tensor) and value.ndim != 0:
                raise ValueError(f"{key} of group {number} must be a 0-dim tensor, not of shape {list(value.shape)}")
            if isinstance(value, Tensor) and value.device.type != "cpu":
                continue
            if not isinstance(value, (numbers.Real, Tensor)) or isinstance(value, bool) or math.isnan(float(value)):
                raise ValueError(f"{key} of group {number} must be a number, not {value!r}")
            plain = float(value)
            if plain < low or (plain == low and not closed) or (math.isinf(plain) and not infinite):
                range_ = f"{'' if infinite else 'finite and '}{'>=' if closed else '>'} {low:g}"
                raise ValueError(f"{key} of group {number} is {plain:g}: it must be {range_}")
        if isinstance(group[key], numbers.Real) and type(group[key]) not in (int, float):
            group[key] = float(group[key])


def first_nonfinite(shard: Shard, grads: list[Tensor | None]) -> str | None:
    """The name of the first parameter with a NaN or infinite gradient."""
    for grad, name in zip(grads, shard.names, strict=True):
        if grad is not None and not fused_native.all_finite(grad):
            return name
    return None


def whole(key: str, value: Any, least: int | None = None) -> int:
    """A whole number, of whatever library."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or (least is not None and value < least):
        raise ValueError(f"{key} must be a whole number{'' if least is None else f', at least {least}'}, not {value!r}")
    return int(value)
