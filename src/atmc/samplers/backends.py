"""Two backends in PyTorch operations: tensor by tensor ("single"), and by lists of tensors ("foreach").

Both pass their arrays to the sampler's `advance` and write the result back. The third backend is compiled code:
`fused_native.py` on a CPU, `fused_triton.py` on CUDA. All draw the same noise, so they agree to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from atmc.samplers import fused_native, fused_triton
from atmc.samplers.flat_state import Shard, view_like
from atmc.samplers.integrator import drift_step, momentum_step, synchronised_virial
from atmc.samplers.tensor_list import TensorList

if TYPE_CHECKING:
    from atmc.samplers.sampler import Sampler

Backend = Callable[["Sampler", Shard, list[Tensor | None], bool], None]


@dataclass(frozen=True)
class Hyper:
    """The hyper-parameters of a step: numbers, or tensors that vary by element or are on a device."""

    lr: Any
    mass: Any = 1.0
    inverse_scale: Any = 0.0
    friction: float = 0.0
    temperature: Any = 1.0
    inverse_inertia: float = 0.0
    last_lr: Tensor | None = None  # the step size whose second half is still to come; None with "leapfrog"
    measure: bool = False
    shared_thermostat: bool = False
    thermostat_weight: Any = 1.0  # what step size and temperature make of the thermostat


class Move(NamedTuple):
    """The result of a step: the new state, the increment of the parameter, p K'(p) if measured, and the increments
    whose mean moves a shared thermostat."""

    state: dict[str, Any]
    theta: Any
    virial: Any = None
    shared_heat: Any = None


def kinetic_advance(
    coefficients: Callable[[Any, float], tuple[Any, Any]],
    corrected: bool,
    state: dict[str, Any],
    grad: Any,
    eta: list[Any],
    hyper: Hyper,
) -> Move:
    """One step of a sampler with momentum: B(h) A(h), or the two half-B's of the Strang scheme around the same θ.

    The Strang scheme B(h/2) A(h) B(h/2) with one gradient per θ: a call ends the step before (its second half-B, with
    the step size it began with), is then at a synchronised time, and begins the next.
    """
    p, kept, weight = state["momentum"], state.get("thermostat"), hyper.thermostat_weight
    plain = isinstance(weight, float) and weight == 1.0
    xi = kept if kept is None or plain else kept * weight
    alpha, beta = coefficients(xi, hyper.friction)
    shared = {"mass": hyper.mass, "inverse_scale": hyper.inverse_scale, "temperature": hyper.temperature}
    reading = None
    if hyper.measure:
        whole = hyper.lr if hyper.last_lr is None else hyper.last_lr
        reading = synchronised_virial(p, grad, beta, lr=whole, mass=hyper.mass, inverse_scale=hyper.inverse_scale)
    if hyper.last_lr is None:
        p = momentum_step(p, grad, eta[0], alpha, beta, lr=hyper.lr, corrected=corrected, **shared)
    else:
        p = momentum_step(p, grad, eta[0], alpha, beta, lr=hyper.last_lr * 0.5, corrected=corrected, **shared)
        p = momentum_step(p, grad, eta[1], alpha, beta, lr=hyper.lr * 0.5, corrected=corrected, **shared)
    step, warming = drift_step(p, lr=hyper.lr, inverse_inertia=hyper.inverse_inertia, **shared)
    if kept is None:
        return Move({"momentum": p}, step, reading)
    warming = warming if plain else warming * weight
    if hyper.shared_thermostat:
        return Move({"momentum": p}, step, reading, warming)
    return Move({"momentum": p, "thermostat": kept + warming}, step, reading)


def draws(sampler: Sampler) -> int:
    """How many normals per element and step the integrator needs."""
    return 2 if sampler.strang else 1


def full_noise(sampler: Sampler, shard: Shard) -> list[Tensor]:
    """The whole shard's noise for this step, the same numbers the fused backends see."""
    if shard.device.type == "cuda" and fused_triton.usable(shard):
        return fused_triton.noise(sampler, shard)
    step, flats = int(shard.step), []
    for draw in range(draws(sampler)):
        flat = torch.zeros(shard.total, dtype=shard.dtype, device="cpu")
        for p, offset, block in zip(shard.params, shard.offsets, shard.first_blocks, strict=True):
            fused_native.fill_normal(
                flat[offset : offset + p.numel()], block, sampler._key, step, 2 * shard.number + draw
            )
        flats.append(flat.to(shard.device))
    return flats


def single(sampler: Sampler, shard: Shard, grads: list[Tensor | None], measure: bool) -> None:
    """One parameter after the other."""
    noise = full_noise(sampler, shard)
    if measure:
        shard.readings.fill_(math.nan)  # a parameter without a gradient has none
    for index, (p, grad) in enumerate(zip(shard.params, grads, strict=True)):
        if grad is None:
            continue
        state = sampler.state[p]
        grad = grad.to(shard.dtype)
        eta = [view_like(flat, shard.offsets[index], p) for flat in noise]
        hyper = sampler.hyper(shard, index, shard.mass(index), measure)
        move = sampler.advance(state, grad, eta, hyper)
        if measure:
            _note(shard, index, move.virial, p, grad)
        for slot, value in move.state.items():
            state[slot].copy_(value)
        if move.shared_heat is not None:
            shard.scratch.setdefault("heat", []).append(move.shared_heat.sum())
        p.add_(move.theta)
    shard.step.add_(1)


def foreach(sampler: Sampler, shard: Shard, grads: list[Tensor | None], measure: bool) -> None:
    """By lists of all parameters that share their hyper-parameters."""
    noise = full_noise(sampler, shard)
    if measure:
        shard.readings.fill_(math.nan)  # a parameter without a gradient has none
    together: dict[Any, list[int]] = {}
    for index, grad in enumerate(grads):
        if grad is not None:
            mass = shard.mass(index)
            together.setdefault(
                (id(shard.groups[index]), mass if not isinstance(mass, Tensor) else "tensor"), []
            ).append(index)
    for indices in together.values():
        params = [shard.params[i] for i in indices]
        masses = [shard.mass(i) for i in indices]
        mass = TensorList(masses) if isinstance(masses[0], Tensor) else masses[0]
        state = {slot: TensorList([sampler.state[p][slot] for p in params]) for slot in sampler.slots}
        grad_list = TensorList([g.to(shard.dtype) for i in indices if (g := grads[i]) is not None])
        eta = [
            TensorList([view_like(flat, shard.offsets[i], p) for i, p in zip(indices, params, strict=True)])
            for flat in noise
        ]
        hyper = sampler.hyper(shard, indices[0], mass, measure)
        move = sampler.advance(state, grad_list, eta, hyper)
        if measure:
            for position, index in enumerate(indices):
                v = None if move.virial is None else move.virial.tensors[position]
                _note(shard, index, v, shard.params[index], grad_list.tensors[position])
        for slot, value in move.state.items():
            state[slot].copy_(value)
        if move.shared_heat is not None:
            shard.scratch.setdefault("heat", []).extend(h.sum() for h in move.shared_heat)
        if params[0].dtype == shard.dtype:
            torch._foreach_add_(params, list(move.theta))
        else:  # one rounding, of the sum, as when the tensors are added one by one
            torch._foreach_copy_(params, [p.to(shard.dtype) + t for p, t in zip(params, move.theta, strict=True)])
    shard.step.add_(1)


def _note(shard: Shard, index: int, v: Tensor | None, p: Tensor, grad: Tensor) -> None:
    if v is not None:
        shard.readings[index, 0] = v.sum(dtype=torch.float64)
    shard.readings[index, 1] = (p.to(grad.dtype) * grad).sum(dtype=torch.float64)
