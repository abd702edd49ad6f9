"""The fused step on CUDA: one launch for all parameters, preceded by another one if gradients are checked.

A table on the device holds the address of every parameter and gradient. It is uploaded without waiting, and only when
an address or a hyper-parameter has changed. The step number and tensor-valued settings are read on the device, so a
captured graph replays a different step each time. Sums go to one slot per block, so repeated runs agree bit for bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atmc.common.graph_table import GraphTable
from atmc.samplers import noise_triton
from atmc.samplers.flat_state import Shard, memory_order
from atmc.samplers.fused_native import KINDS
from atmc.samplers.kinetic_energy import inverse_momentum_scale, least_friction
from atmc.samplers.random_stream import BLOCK

if TYPE_CHECKING:
    from atmc.samplers.sampler import Sampler

try:
    import triton.language as tl

    from atmc.samplers import triton_kernels as kernels
except ImportError:  # no Triton on this machine: the other backends serve
    kernels = None  # type: ignore[assignment]

NEVER = 2**62  # "no step was bad": larger than any code of a bad step
SHARD, CODE = 2**16, 2**20  # a bad step is noted as step · CODE + shard · SHARD + tensor


def usable(shard: Shard) -> bool:
    """Whether the kernels can run on this shard."""
    return (
        kernels is not None
        and shard.device.type == "cuda"
        and shard.params[0].dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    )


class Alarm:
    """The step with a non-finite gradient on one device; its shards skip together."""

    def __init__(self, device: torch.device) -> None:
        self.step = torch.full((), -1, dtype=torch.int64, device=device)
        self.first = torch.full((), NEVER, dtype=torch.int64, device=device)

    def reset(self) -> None:
        self.step.fill_(-1)
        self.first.fill_(NEVER)


class Plan:
    """What the kernels need to know about a shard, on its device."""

    def __init__(self, shard: Shard, alarm: Alarm) -> None:
        device = shard.device
        chunks = [
            (index, start) for index, p in enumerate(shard.params) for start in range(0, max(p.numel(), 1), BLOCK)
        ]
        self.count = len(chunks)
        self.chunks = torch.tensor(chunks, dtype=torch.int64, device="cpu").to(device)
        # One row a parameter: seven integers (addresses, sizes), then nine float64 numbers (hyper-parameters).
        self.table = torch.zeros((len(shard.params), 16), dtype=torch.int64, device=device)
        self.partial = torch.zeros((self.count, 3), dtype=torch.float64, device=device)
        self.ticket = torch.zeros(2, dtype=torch.int32, device=device)  # blocks done; whether anything was measured
        self.bad = alarm
        self.uploaded = b""  # what is in the table of steps outside graphs
        # A graph has a table of its own for good.
        self.own = self.table
        self.spare = [GraphTable(self.own.shape, device) for _ in range(8)]
        self.kept: dict[bytes, Tensor] = {}
        self.mass: Tensor | None = None
        self.aligned = False  # whether blocks may load whole vectors

    def forget(self) -> None:
        self.ticket.zero_()
        self.bad.reset()

    def upload(self, values: np.ndarray[Any, Any]) -> None:
        """Set `table` to these values on the device, without waiting; a captured graph has a table of its own."""
        raw = values.tobytes()
        if torch.cuda.is_current_stream_capturing():
            if raw not in self.kept:
                if not self.spare:
                    raise RuntimeError("this sampler's step was captured in too many CUDA graphs: make a new sampler")
                slot = self.spare.pop()
                slot.fill(torch.from_numpy(values))
                self.kept[raw] = slot.words
            self.table = self.kept[raw]
            return
        self.table = self.own
        if self.uploaded != raw:
            self.table.copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)
            self.uploaded = raw


def plan_of(sampler: Sampler, shard: Shard) -> Plan:
    plan = shard.scratch.get("plan")
    if plan is None:
        others = [other.scratch["plan"].bad for other in sampler._shards if "plan" in other.scratch]
        alarm = next((bad for bad in others if bad.step.device == shard.device), None) or Alarm(shard.device)
        plan = shard.scratch["plan"] = Plan(shard, alarm)
    assert isinstance(plan, Plan)
    return plan


def prepare(sampler: Sampler, work: list[tuple[Shard, list[Tensor | None], Any]]) -> None:
    """Upload the tables of all shards, and check their gradients, before any of them moves."""
    for shard, grads, backend in work:
        if backend is not fused:
            continue
        plan = plan_of(sampler, shard)
        plan.aligned = _upload(sampler, shard, plan, _in_memory_order(shard, grads))
        if sampler._policy(shard) == "skip":
            kernels.check_kernel[(plan.count,)](
                plan.chunks,
                plan.table,
                shard.step,
                plan.bad.step,
                plan.bad.first,
                shard.number * SHARD,
                CODE=CODE,
                DTYPE=_dtype(shard),
                BLOCK=BLOCK,
            )


def _in_memory_order(shard: Shard, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Gradients as vectors in the parameters' memory order; copies, where there are any, stay where they are."""
    kept = shard.scratch.setdefault("gradients", {})
    out: list[Tensor | None] = []
    for index, (g, p) in enumerate(zip(grads, shard.params, strict=True)):
        if g is not None and g.stride() != p.stride():
            copy = kept.setdefault(index, torch.empty_like(p))
            copy.copy_(g)
            g = copy
        out.append(None if g is None else memory_order(g, p))
    return out


def fused(sampler: Sampler, shard: Shard, grads: list[Tensor | None], measure: bool) -> None:
    """Run the step of a whole shard, after `prepare`. Whether it is measured, the device decides by its number."""
    plan = plan_of(sampler, shard)
    flat = shard.flat
    checked = sampler._policy(shard) == "skip"
    empty = plan.ticket
    state = (
        plan.chunks,
        plan.table,
        plan.table.view(torch.float64),
        flat.get("momentum", flat.get("square_avg", empty)),
        flat.get("thermostat", empty),
        plan.mass if plan.mass is not None else empty,
        shard.step,
    )
    options = {
        "KIND": KINDS[type(sampler).__name__],
        "HYPERBOLIC": bool(any(g.get("speed_limit", float("inf")) != float("inf") for g in shard.groups)),
        "SHARED": sampler.shared_thermostat,
        "HAS_MASS": plan.mass is not None,
        "RANK": sampler.noise_rank,
        "CHECKED": checked,
        "DTYPE": _dtype(shard),
        "STATE": tl.float64 if shard.dtype == torch.float64 else tl.float32,
        "ALIGN": 16 if plan.aligned else 1,
        "BLOCK": BLOCK,
        "num_warps": 8,
    }
    factor, along = empty, empty
    if sampler.noise_rank:
        noise, before = (sampler._key, shard.number, plan.count), (*state, plan.bad.step)
        kronecker, group = sampler._kronecker, shard.groups[0]
        factor, along, options["RANK"] = (
            noise_triton.along(shard, before, noise, **options)
            if kronecker is None
            else noise_triton.friction(kronecker, group, shard, before, noise, **options)
        )
    kernels.step_kernel[(plan.count,)](
        *state,
        plan.ticket,
        plan.bad.step,
        plan.partial,
        sampler._key,
        shard.number,
        plan.count,
        sampler.measure_every,
        factor,
        along,
        shard.total,
        CORRECTED=sampler.corrected,
        STRANG=sampler.strang,
        PRECONDITIONED="square_avg" in flat,
        **options,
    )
    shard.scratch["fused"] = True
    shard.scratch.pop("own readings", None)
    if sampler.shared_thermostat:
        shard.scratch["heat"] = [plan.partial[:, 2].sum().to(shard.dtype)]


def _upload(sampler: Sampler, shard: Shard, plan: Plan, grads: list[Tensor | None]) -> bool:
    board = np.zeros(tuple(plan.table.shape), dtype=np.int64)
    table, hyper = board[:, :8], board.view(np.float64)[:, 8:]
    numbers = {id(g): i for i, g in enumerate(sampler.param_groups)}
    for i, (p, grad, group) in enumerate(zip(shard.params, grads, shard.groups, strict=True)):
        mass = shard.mass(i)
        if isinstance(mass, Tensor):
            _place_mass(shard, plan, i, mass)
            mass = 1.0
        lr, temperature = _host_value(group["lr"]), _host_value(group["temperature"])
        limit = group.get("speed_limit", float("inf"))
        table[i] = (
            p.data_ptr(),
            0 if grad is None else grad.data_ptr(),
            p.numel(),
            shard.offsets[i],
            lr.data_ptr() if isinstance(lr, Tensor) else 0,
            temperature.data_ptr() if isinstance(temperature, Tensor) else 0,
            sampler._last_lr[numbers[id(group)]].data_ptr(),
            0,
        )
        board.view(np.float64)[i, 7] = group.get("reference_temperature") or 0.0
        if isinstance(lr, Tensor) and group.get("momentum") is not None:
            friction = added = math.log(group["momentum"])  # below 0: the kernel divides it by the step size
        else:
            friction = least_friction(group) if "friction" in group else getattr(sampler, "decay", 0.0)
            added = max(friction - getattr(sampler, "noise_estimate", 0.0), 0.0)
        hyper[i] = (
            0.0 if isinstance(lr, Tensor) else lr,
            0.0 if isinstance(temperature, Tensor) else temperature,
            mass,
            inverse_momentum_scale(float(mass), limit),
            friction,
            added,
            1.0 / group["inertia"] if "inertia" in group else getattr(sampler, "epsilon", 0.0),
            group.get("reference_lr") or 0.0,
        )
    plan.upload(board)
    return bool((table[:, :2] % 16 == 0).all()) and all(o % 4 == 0 for o in shard.offsets)


def _host_value(value: Any) -> Any:
    """A tensor on the host is read here, one on the device by the kernel."""
    return float(value) if isinstance(value, Tensor) and not value.is_cuda else value


def _place_mass(shard: Shard, plan: Plan, index: int, mass: Tensor) -> None:
    """Keep a flat copy of per-element masses beside the momenta, 1 where a parameter has a single mass of its own."""
    if plan.mass is None:
        plan.mass = torch.ones_like(shard.flat["momentum"])
    known = shard.scratch.setdefault("mass", {})  # holds the tensors themselves, so that no address is used twice
    source, version = known.get(index, (None, -1))
    if source is not mass or version != mass._version:
        vector = memory_order(mass.to(shard.device, shard.dtype), shard.params[index])
        plan.mass[shard.offsets[index] : shard.offsets[index] + vector.numel()].copy_(vector)
        known[index] = (mass, mass._version)


def noise(sampler: Sampler, shard: Shard) -> list[Tensor]:
    """The noise of this step as the fused kernel draws it, for the other backends; advances nothing."""
    plan = plan_of(sampler, shard)
    _upload(sampler, shard, plan, [None] * len(shard.params))
    out = []
    for draw in range(2 if sampler.strang else 1):
        flat = torch.zeros(shard.total, dtype=shard.dtype, device=shard.device)  # also between parameters
        kernels.noise_kernel[(plan.count,)](
            plan.chunks, plan.table, flat, shard.step, sampler._key, shard.number, draw, BLOCK=BLOCK
        )
        out.append(flat)
    return out


def collect(shard: Shard) -> None:
    """Sum the blocks' readings up by parameter, where the fused kernel has left any."""
    plan = shard.scratch.get("plan")
    if plan is None or "fused" not in shard.scratch or "own readings" in shard.scratch:
        return
    sums = torch.zeros_like(shard.readings).index_add_(0, plan.chunks[:, 0], plan.partial[:, :2])
    shard.readings.copy_(torch.where(plan.ticket[1] > 0, sums, shard.readings))


def taken(sampler: Sampler, device: torch.device) -> Tensor | None:
    """Whether the step that has just run was taken on a device; None where nothing could have skipped it there."""
    for shard in sampler._shards:
        if shard.device == device and "fused" in shard.scratch and sampler._policy(shard) == "skip":
            alarm: Alarm = shard.scratch["plan"].bad
            return alarm.step != shard.step - 1  # the kernel has moved the step on
    return None


def skipped(shards: list[Shard]) -> str | None:
    """Which parameter made which step be skipped first, since this was last asked."""
    told = None
    for shard in shards:
        if "plan" not in shard.scratch:
            continue
        alarm: Alarm = shard.scratch["plan"].bad
        code = int(alarm.first)
        if code < NEVER:
            alarm.first.fill_(NEVER)
            step, rest = divmod(code, CODE)
            number, index = divmod(rest, SHARD)
            told = told or f"{shards[number].names[index]} was not finite at step {step}"
    return told


def _dtype(shard: Shard) -> Any:
    return {
        torch.float64: tl.float64,
        torch.float32: tl.float32,
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
    }[shard.params[0].dtype]
