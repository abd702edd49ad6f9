"""Check the input of samplers before anything changes."""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from atmc.common.errors import outside
from atmc.common.suggest import close_matches, did_you_mean
from atmc.samplers import fused_native
from atmc.samplers.flat_state import Shard

#: Smallest allowed value of a hyper-parameter, whether it itself is allowed, and whether infinity is.
BOUNDS: dict[str, tuple[float, bool, bool]] = {
    "lr": (0.0, True, False),
    "temperature": (0.0, True, False),
    "mass": (0.0, False, False),
    "friction": (0.0, True, False),
    "speed_limit": (0.0, False, True),
    "inertia": (0.0, False, True),
    "reference_lr": (0.0, False, False),
    "reference_temperature": (0.0, False, False),
}

#: Where the momentum step is split, and whether its friction is corrected to second order.
INTEGRATORS = ("leapfrog", "strang", "leapfrog-frozen", "strang-frozen")

COARSE = (torch.bfloat16, torch.float16)

#: Arguments of optimizers that a sampler does not have, and what to use instead.
FOREIGN = {
    "momentum": "say friction = −log(momentum)/lr; {name}.from_speeds(params, lr, speed, momentum=…) sets it",
    "weight_decay": "decay is a Gaussian prior, atmc.Potential(model, num_data, prior=atmc.priors.gaussian(scale))",
    "maximize": "it samples exp(−U/T), so it takes the gradient of U: that of the negative of what is to be large",
    "foreach": "say backend='foreach'",
    "fused": "say backend='fused' (the default where it can run)",
}


def refuse_unknown(kind: type, unknown: Iterable[str], shared: Iterable[str]) -> None:
    """Raise a TypeError for arguments that a sampler does not have, with what to use instead."""
    for key in unknown:
        own = [name for name in inspect.signature(kind).parameters if name not in ("params", "options")]
        hint = _instead(kind, key, own) if key in FOREIGN else did_you_mean(key, [*own, *shared])
        raise TypeError(f"{kind.__name__} takes no {key}: {hint}")


def refuse_idle(kind: type, group: dict[str, Any], number: int, own: Iterable[str], shared: Iterable[str]) -> None:
    """Refuse a key of a group that looks like a setting and has no effect; other keys are the caller's notes."""
    whole = {*inspect.signature(kind).parameters, *shared} - {"params", "options", *own}
    for key in group:
        if key in own or key in ("params", "param_names"):
            continue
        if key in whole:
            hint = f"it is of the whole sampler: {kind.__name__}(groups, {key}=…)"
        elif key in ("speed", "max_speed"):
            hint = (
                f"{kind.__name__}.from_speeds(groups, …) takes it; for a group that is added later "
                "**atmc.samplers.speed_settings(lr, speed) gives what counts, its mass, friction and speed_limit"
                if "mass" in own
                else "it has none; its steps are set by lr alone"
            )
        elif key in FOREIGN and group[key]:
            hint = _instead(kind, key, own)
        elif near := close_matches(key, own, cutoff=0.85):
            hint = f"did you mean {near[0]}?"
        else:
            continue
        raise ValueError(f"{key} of group {number} would do nothing: {hint}")


def _instead(kind: type, key: str, own: Iterable[str]) -> str:
    without = key == "momentum" and "friction" not in own
    return "it has none; atmc.SGHMC has" if without else FOREIGN[key].format(name=kind.__name__)


def choose(key: str, value: Any, allowed: tuple[str | None, ...]) -> None:
    """Refuse a value that is not one of those allowed."""
    if not isinstance(value, str | None) or value not in allowed:
        raise ValueError(f"{key} must be one of {', '.join(repr(a) for a in allowed)}, not {value!r}")


def check_option(key: str, value: Any) -> Any:
    """An option of a sampler, given or from a state, as a plain value."""
    if key == "integrator":
        choose(key, value, INTEGRATORS)
    elif key == "nonfinite":
        choose(key, value, (None, "raise", "skip", "ignore"))
    elif key == "measure_every":
        return whole(key, value, least=1)
    elif key == "noise_estimate":
        return plain_number(key, value, "a finite number, at least 0", lambda v: 0.0 <= v < math.inf)
    elif key == "decay":
        return plain_number(key, value, "a number in [0, 1)", lambda v: 0.0 <= v < 1.0)
    elif key == "epsilon":
        return plain_number(key, value, "a finite and positive number", lambda v: 0.0 < v < math.inf)
    return value  # an option of a custom subclass


def parameter_name(group: dict[str, Any], number: int, index: int) -> str:
    """The name of a parameter in messages: its own, else its index and shape."""
    names = group.get("param_names")
    return str(names[index]) if names else f"{index} of group {number} (shape {list(group['params'][index].shape)})"


def check_group(group: dict[str, Any], number: int) -> None:
    """Refuse a parameter group that cannot be sampled."""
    if not group["params"]:
        raise ValueError(f"parameter group {number} is empty: give it at least one parameter")
    seen: set[int] = set()
    for i, p in enumerate(group["params"]):
        if id(p) in seen:
            name = parameter_name(group, number, i)
            raise ValueError(f"parameter {name} is there twice: it would be moved twice in a step, by two momenta")
        seen.add(id(p))
        if not p.is_floating_point():
            raise ValueError(
                f"parameter {parameter_name(group, number, i)} is {p.dtype}: only real floating-point parameters can "
                "be sampled (split a complex one with torch.view_as_real)"
            )
    check_hyperparameters(group, number)
    for key in ("lr", "temperature"):
        value = group[key]
        if isinstance(value, Tensor):
            if value.ndim != 0 or value.is_complex() or (value.is_cuda and value.dtype != torch.float32):
                raise ValueError(f"{key} of group {number} must be a 0-dim tensor, in float32 on a GPU")
            check_hyperparameters({key: float(value)}, number)
    start = group.get("thermostat_init", 0.0)
    if not isinstance(start, numbers.Real) or not math.isfinite(start):
        raise ValueError(f"thermostat_init of group {number} must be a finite number, not {start!r}")
    choose(f"momentum_init of group {number}", group.get("momentum_init", "zero"), ("zero", "law"))
    masses = group.get("mass", 1.0)
    for i, m in enumerate(masses if isinstance(masses, (list, tuple)) else ()):
        if isinstance(m, Tensor):
            check_element_masses(m, parameter_name(group, number, i))


def warn_coarse(groups: list[dict[str, Any]]) -> None:
    """Warn of parameters whose precision is too low for small steps, which no reading would show.

    At the paper's speed, 3e-4, most weights of standard deviation 1 in bfloat16 never move, and the kinetic temperature
    is right all the same. Only the first such group warns.
    """
    coarse = [(n, i) for n, g in enumerate(groups) for i, p in enumerate(g["params"]) if p.dtype in COARSE]
    if coarse and coarse[0][0] == len(groups) - 1:  # the group that is being added
        number, index = coarse[0]
        dtype = groups[number]["params"][index].dtype
        warnings.warn(
            f"parameter {parameter_name(groups[number], number, index)} is {dtype}: steps below about "
            f"1/{2 / torch.finfo(dtype).eps:.0f} of a weight are rounded away, and the chain stands still; keep "
            "parameters in float32 and compute in low precision with torch.autocast",
            stacklevel=outside("torch"),  # the constructor of torch.optim lies between ours
        )


def check_element_masses(mass: Tensor, name: str) -> None:
    """Refuse per-element masses that are not all finite and positive."""
    if mass.is_complex() or not bool(((mass > 0) & mass.isfinite()).all()):
        raise ValueError(f"mass of parameter {name} must be finite and > 0 everywhere")


def check_changed_masses(groups: list[dict[str, Any]], seen: dict[tuple[int, int], tuple[Tensor, int]]) -> None:
    """Check per-element masses that were replaced or written to since they were last `seen`.

    On the host only; on a device, which would have to be waited for, they are checked when a group is added or loaded.
    """
    for number, group in enumerate(groups):
        masses = group.get("mass")
        for i, mass in enumerate(masses if isinstance(masses, (list, tuple)) else ()):
            if not isinstance(mass, Tensor) or mass.device.type != "cpu":
                continue
            version = -1 if mass.is_inference() else mass._version  # an inference tensor does not count its versions
            before, last = seen.get((number, i), (None, -1))
            if before is not mass or version != last or version == -1:
                check_element_masses(mass, parameter_name(group, number, i))
                seen[number, i] = (mass, version)


def check_masses(group: dict[str, Any], number: int) -> None:
    """Refuse masses that do not fit their parameters."""
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

    A tensor on a device is checked only when a group is added: later that would synchronise.
    """
    if "params" in group:
        check_masses(group, number)
    for key, (low, closed, infinite) in BOUNDS.items():
        if key not in group or (key.startswith("reference") and group[key] is None):
            continue
        several = key == "mass" and isinstance(group[key], (list, tuple))
        for value in group[key] if several else [group[key]]:
            if isinstance(value, Tensor) and several:
                continue
            if isinstance(value, Tensor) and value.ndim != 0:
                raise ValueError(f"{key} of group {number} must be a 0-dim tensor, not of shape {list(value.shape)}")
            if isinstance(value, Tensor) and value.device.type != "cpu":
                continue
            real = isinstance(value, numbers.Real) or (isinstance(value, Tensor) and not value.is_complex())
            if not real or isinstance(value, bool) or math.isnan(float(value)):
                raise ValueError(f"{key} of group {number} must be a number, not {value!r}")
            plain = float(value)
            if plain < low or (plain == low and not closed) or (math.isinf(plain) and not infinite):
                range_ = f"{'' if infinite else 'finite and '}{'>=' if closed else '>'} {low:g}"
                raise ValueError(f"{key} of group {number} is {plain:g}: it must be {range_}")
        if isinstance(group[key], numbers.Real) and type(group[key]) is not float:
            group[key] = float(group[key])


def check_members(shards: Iterable[Shard], groups: Iterable[dict[str, Any]]) -> None:
    """Refuse groups whose parameters are not those laid out: new ones would not move."""
    laid = {id(p): id(g) for shard in shards for p, g in zip(shard.params, shard.groups, strict=True)}
    if laid != {id(p): id(g) for g in groups for p in g["params"]}:
        raise ValueError(
            "parameters or groups of param_groups have been replaced, added or removed by hand: change settings of a "
            "group in place, add parameters with add_param_group, or make a new sampler"
        )


def dense_gradients(shard: Shard) -> list[Tensor | None]:
    """The gradients of a shard in its precision; sparse and complex ones are refused."""
    grads: list[Tensor | None] = []
    for p, name in zip(shard.params, shard.names, strict=True):
        grad = p.grad
        if grad is not None and grad.layout is not torch.strided:
            raise RuntimeError(f"the gradient of parameter {name} is sparse: samplers need dense gradients")
        if grad is not None and grad.dtype != p.dtype:
            if grad.is_complex():
                raise RuntimeError(f"the gradient of parameter {name} is complex: samplers need real gradients")
            grad = grad.to(p.dtype)
        grads.append(grad)
    return grads


def first_nonfinite(shard: Shard, grads: list[Tensor | None]) -> str | None:
    """The name of the first parameter with a NaN or infinite gradient."""
    for grad, name in zip(grads, shard.names, strict=True):
        if grad is not None and not fused_native.all_finite(grad):
            return name
    return None


def plain_number(key: str, value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """`value` as a float, if it fits."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not fits(float(value)):
        raise ValueError(f"{key} must be {wanted}, not {value!r}")
    return float(value)


def whole(key: str, value: Any, least: int | None = None) -> int:
    """`value` as an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or (least is not None and value < least):
        raise ValueError(f"{key} must be a whole number{'' if least is None else f', at least {least}'}, not {value!r}")
    return int(value)
