"""Save and restore a sampler's state; a state that does not fit changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atmc.samplers.checks import check_group, check_option, parameter_name, plain_number, whole
from atmc.samplers.random_stream import stream_key

if TYPE_CHECKING:
    from atmc.samplers.sampler import Sampler

#: What groups of older states do not have yet, and what they then mean.
LATER = {"momentum": None, "reference_lr": None, "reference_temperature": None}


@dataclass(frozen=True)
class Checked:
    """A state that fits its sampler, every value converted, so that restoring cannot fail half way."""

    groups: list[dict[str, Any]]
    slots: list[dict[str, Tensor]]  # of each parameter
    readings: Tensor | None  # [parameters, 2]; older states have none
    options: dict[str, Any]
    seed: int
    calls: int
    step: int
    last_lr: list[float]
    kronecker: list[Tensor]  # what is known of the noise within tensors


def pack(sampler: Sampler, packed: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's own packing with copies of the state, and what it does not know of."""
    packed["state"] = {i: {k: v.clone() for k, v in s.items()} for i, s in packed["state"].items()}
    packed["param_groups"] = [{k: _copy(v) for k, v in group.items()} for group in packed["param_groups"]]
    home = sampler._shards[0].device
    rows = {p: row.to(home) for shard in sampler._shards for p, row in zip(shard.params, shard.readings, strict=True)}
    packed["sampler"] = {
        "class": type(sampler).__name__,
        "seed": sampler.seed,
        "strang": sampler.strang,
        "slots": list(sampler.slots),
        "shared_thermostat": sampler.shared_thermostat,
        "options": {name: getattr(sampler, name) for name in sampler.saved},
        "calls": sampler._calls,
        "step": sampler._shards[0].step.clone(),
        "last_lr": [last.clone() for last in sampler._last_lr],
        "readings": torch.stack([rows[p] for p in _parameters(sampler)]),
        "kronecker": [t.clone() for t in _kronecker(sampler)],
    }
    return packed


def check(sampler: Sampler, state_dict: dict[str, Any]) -> Checked:
    """Refuse a state that does not fit this sampler, before anything has changed."""
    extra = state_dict.get("sampler") if isinstance(state_dict, dict) else None
    if not isinstance(extra, dict) or extra.get("class") != type(sampler).__name__:
        found = extra.get("class") if isinstance(extra, dict) else "something else"
        lost = (
            " (or has lost its 'sampler' part, which torch.distributed.checkpoint and others leave out: save "
            "sampler.state_dict() as it is)"
        )
        raise ValueError(f"this state is of {found}, not of {type(sampler).__name__}{lost * (extra is None)}")
    wanted = ("seed", "strang", "slots", "shared_thermostat", "options", "calls", "step", "last_lr")
    missing = [key for key in wanted if key not in extra]
    if missing or "param_groups" not in state_dict or "state" not in state_dict:
        raise ValueError(f"this state is incomplete: it has no {', '.join(missing) or 'state or param_groups'}")
    mine = {"strang": sampler.strang, "slots": list(sampler.slots), "shared_thermostat": sampler.shared_thermostat}
    for key, value in mine.items():
        if type(extra[key]) is not type(value) or extra[key] != value:
            raise ValueError(f"this state was taken with {key} {extra[key]!r}, the sampler has {value!r}")
    options = extra["options"]
    if not isinstance(options, dict):
        raise ValueError(f"options of this state must be a dict, not {options!r}")
    options = {name: check_option(name, options.get(name, getattr(sampler, name))) for name in sampler.saved}
    step = whole("step of this state", _scalar(extra["step"]), least=0)
    if step >= 2**62:
        raise ValueError(f"step of this state is {step}, which no chain can have reached")
    return Checked(
        groups=_check_groups(sampler, state_dict["param_groups"], options),
        slots=_check_slots(sampler, state_dict["state"]),
        readings=_check_readings(sampler, extra.get("readings")),
        options=options,
        seed=whole("seed of this state", extra["seed"]),
        calls=whole("calls of this state", extra["calls"], least=0),
        step=step,
        last_lr=_check_last_lr(sampler, extra["last_lr"]),
        kronecker=_check_kronecker(sampler, extra.get("kronecker", [])),
    )


def _check_groups(sampler: Sampler, groups: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups of a state with every number in range, numbered as PyTorch wants them."""
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(g, dict) and isinstance(g.get("params"), (list, tuple)) for g in groups
    ):
        raise ValueError("param_groups of this state must be a list of groups, each with its params")
    sizes, found = [len(g["params"]) for g in sampler.param_groups], [len(g["params"]) for g in groups]
    if sizes != found:
        raise ValueError(f"this state has groups of {found} parameters, the sampler has groups of {sizes}")
    checked, first = [], 0
    for number, (own, given) in enumerate(zip(sampler.param_groups, groups, strict=True)):
        new = {key: value for key, value in LATER.items() if key in sampler.defaults} | given
        absent = [key for key in sampler.defaults if key not in new and key != "differentiable"]
        if absent:
            raise ValueError(f"group {number} of this state has no {', '.join(absent)}")
        names = new.get("param_names")
        if names is not None and not (isinstance(names, (list, tuple)) and len(names) == sizes[number]):
            raise ValueError(f"param_names of group {number} of this state do not name its {sizes[number]} parameters")
        new["params"] = own["params"]
        check_group(new, number)
        sampler.check_together(new, number, options)
        checked.append(new | {"params": list(range(first, first + sizes[number]))})
        first += sizes[number]
    return checked


def _check_slots(sampler: Sampler, states: Any) -> list[dict[str, Tensor]]:
    """The state of each parameter: present, of its shape, real and finite."""
    if not isinstance(states, dict) or not all(str(key).isdecimal() for key in states):
        raise ValueError("state of this state must have the number of a parameter for every key")
    by_number = {int(str(key)): value for key, value in states.items()}  # a trip through JSON makes them text
    named = [
        (p, parameter_name(g, n, i)) for n, g in enumerate(sampler.param_groups) for i, p in enumerate(g["params"])
    ]
    slots: list[dict[str, Tensor]] = []
    for number, (p, name) in enumerate(named):
        state = by_number.get(number)
        slots.append({})
        for slot in sampler.slots:
            shared = slot == "thermostat" and sampler.shared_thermostat
            shape, value = torch.Size() if shared else p.shape, state.get(slot) if isinstance(state, dict) else None
            if not isinstance(value, Tensor):
                raise ValueError(f"the state has no {slot} for parameter {name}")
            if value.shape != shape:
                raise ValueError(f"{slot} of parameter {name} has shape {list(value.shape)}, not {list(shape)}")
            if not value.is_floating_point() or value.layout is not torch.strided:
                raise ValueError(f"{slot} of parameter {name} must be of real, dense numbers, not {value.dtype}")
            slots[-1][slot] = value
    for slot in sampler.slots:
        values = [state[slot] for state in slots]
        # A mean of squares must not be negative, either.
        right = _together([(v.isfinite() & (v >= 0) if slot == "square_avg" else v.isfinite()).all() for v in values])
        if False in right:
            bad = named[right.index(False)][1]
            raise ValueError(f"{slot} of parameter {bad} is not finite{' and >= 0' * (slot == 'square_avg')}")
    if sampler.shared_thermostat:
        # Older states of several precisions have a sum in each of them, apart by roundings.
        one = _together([state["thermostat"].double() for state in slots])
        if max(one) - min(one) > 1e-3 * (1.0 + abs(one[0])):
            raise ValueError(f"thermostat is to be one for all, but this state has {min(one):g} and {max(one):g}")
    return slots


def _check_readings(sampler: Sampler, readings: Any) -> Tensor | None:
    """The sums of the last measured step, NaN where there are none."""
    shape = (len(_parameters(sampler)), 2)
    if readings is None:
        return None
    if not isinstance(readings, Tensor) or readings.shape != shape or not readings.is_floating_point():
        raise ValueError(f"readings of this state must be real numbers of shape {list(shape)}")
    return readings


def _check_last_lr(sampler: Sampler, last_lr: Any) -> list[float]:
    if not isinstance(last_lr, (list, tuple)) or len(last_lr) != len(sampler.param_groups):
        raise ValueError("last_lr of this state must have a number for each group")
    wanted = "finite and >= 0"
    return [plain_number("last_lr of this state", _scalar(v), wanted, lambda x: 0.0 <= x < math.inf) for v in last_lr]


def _kronecker(sampler: Sampler) -> list[Tensor]:
    return [] if sampler._kronecker is None else list(sampler._kronecker.tensors())


def _check_kronecker(sampler: Sampler, given: Any) -> list[Tensor]:
    """What `noise_kronecker` has learned; older states, and those of other samplers, have none."""
    named = "noise_kronecker of this state"
    if not isinstance(given, (list, tuple)) or not all(isinstance(t, Tensor) for t in given):
        raise ValueError(f"{named} must be a list of tensors")
    own = _kronecker(sampler)
    if [_kind(t) for t in given] != [_kind(t) for t in own]:
        with_it = "with" if len(given) else "without"
        raise ValueError(
            f"{named} does not fit the sampler: it was taken {with_it} noise_kronecker, or of other parameters"
        )
    if False in _together([t.isfinite().all() for t in given] or [torch.tensor(True)]):
        raise ValueError(f"{named} is not finite")
    if given and int(given[0]) < 0:
        raise ValueError(f"{named} must have taken in at least 0 updates")
    return list(given)


def _kind(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.layout, t.is_floating_point(), t.is_complex()


def tensor_settings(sampler: Sampler) -> list[dict[str, Tensor]]:
    """The learning rates and temperatures that are tensors: a captured graph reads them where they are."""
    keys = ("lr", "temperature")
    return [{k: group[k] for k in keys if isinstance(group[k], Tensor)} for group in sampler.param_groups]


def restore(sampler: Sampler, checked: Checked, held: list[dict[str, Tensor]]) -> None:
    """Restore a checked state; the groups have been loaded already.

    PyTorch would round states to the parameters' precision, so they are copied from the source here.
    """
    for group, tensors in zip(sampler.param_groups, held, strict=True):
        for key, tensor in tensors.items():
            tensor.copy_(torch.as_tensor(group[key]))
            group[key] = tensor
    owner = {p: group for group in sampler.param_groups for p in group["params"]}
    number = {p: i for i, p in enumerate(_parameters(sampler))}
    for shard in sampler._shards:
        shard.groups = [owner[p] for p in shard.params]
        shard.step.fill_(checked.step)
        shard.forget_readings()
        if checked.readings is not None:
            shard.readings.copy_(checked.readings[[number[p] for p in shard.params]])
        sampler._link(shard)
    for p, slots in zip(number, checked.slots, strict=True):
        for slot, value in slots.items():
            shared = slot == "thermostat" and sampler.shared_thermostat
            sampler.state[p][slot].copy_(checked.slots[0][slot] if shared else value)
    for last, lr in zip(sampler._last_lr, checked.last_lr, strict=True):
        last.fill_(lr)
    for mine, kept in zip(_kronecker(sampler), checked.kronecker, strict=True):
        mine.copy_(kept)
    for name, option in checked.options.items():
        setattr(sampler, name, option)
    sampler.seed = checked.seed
    sampler._key = stream_key(sampler.seed)
    sampler._calls = max(checked.calls, checked.step)  # a replayed graph does not count its calls


def _together(scalars: list[Tensor]) -> list[Any]:
    """0-dim tensors of whatever devices as plain values, with one wait for all of them."""
    return torch.stack([s.to(scalars[0].device) for s in scalars]).tolist()


def _scalar(value: Any) -> Any:
    """A tensor of one number as that number; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value


def _copy(value: Any) -> Any:
    """A group's value, its tensors copied."""
    if isinstance(value, Tensor):
        return value.clone()
    return [_copy(v) for v in value] if isinstance(value, list) else value


def _parameters(sampler: Sampler) -> list[Tensor]:
    return [p for group in sampler.param_groups for p in group["params"]]
