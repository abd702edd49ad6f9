"""The fused step on a CPU: compiled code (`step.c`) over each parameter's memory, on all of PyTorch's threads.

The library is built at installation if there is a C compiler; otherwise the foreach backend runs. It is built for any
processor, for AVX2 and for AVX-512: the last two agree bit for bit, the first, without fused multiply-adds, to
rounding. Work is cut at fixed indices and sums are added in order, so results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atmc.samplers.flat_state import Shard, dense, memory_order
from atmc.samplers.kinetic_energy import inverse_momentum_scale, least_friction
from atmc.samplers.random_stream import BLOCK, normals

if TYPE_CHECKING:
    from atmc.samplers.sampler import Sampler

KINDS = {"ATMC": 0, "SGNHT": 1, "SGHMC": 2, "SGLD": 3}
TASK = 32 * BLOCK  # elements a thread takes at a time

_REALS = """lr last_lr temperature mass inverse_scale noise added_noise inverse_inertia reference_lr
reference_temperature decay epsilon"""
_INTEGERS = "kind stream corrected strang measure shared hyperbolic preconditioned"


class Settings(ctypes.Structure):
    """The `Settings` of `step.c`."""

    _fields_ = (
        *((name, ctypes.c_double) for name in _REALS.split()),
        ("key", ctypes.c_uint64),
        ("step", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in _INTEGERS.split()),
    )


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The best of the compiled code that this machine can run, or None where there is none."""
    able = torch.backends.cpu.get_cpu_capability()  # PyTorch asks for exactly the instructions that we build for
    names = ["_step"]
    if able in ("AVX2", "AVX512"):
        names.insert(0, "_step_avx2")
    if able == "AVX512":
        names.insert(0, "_step_avx512")
    return next((found for name in names if (found := _load(name)) is not None), None)


def _load(name: str) -> ctypes.CDLL | None:
    spec = importlib.util.find_spec(f"atmc.samplers.{name}")
    if spec is None or spec.origin is None:
        return None
    try:
        loaded = ctypes.CDLL(spec.origin)
    except OSError:
        return None
    loaded.atmc_settings_size.restype = ctypes.c_int64
    if loaded.atmc_settings_size() != ctypes.sizeof(Settings):  # built from an older source: not to be trusted
        return None
    address, count = ctypes.c_void_p, ctypes.c_int64
    for real in ("float", "double"):
        step = getattr(loaded, f"atmc_step_{real}")
        step.argtypes = [address] * 5 + [count] * 3 + [ctypes.POINTER(Settings), address]
        step.restype = None
        noise = getattr(loaded, f"atmc_noise_{real}")
        noise.argtypes = [address, count, count, ctypes.c_uint64, count, ctypes.c_int32]
        noise.restype = None
        finite = getattr(loaded, f"atmc_finite_{real}")
        finite.argtypes = [address, count]
        finite.restype = ctypes.c_int32
    return loaded


def usable(shard: Shard) -> bool:
    """Whether the compiled step can run on this shard."""
    return shard.device.type == "cpu" and shard.layouts[0][0] == shard.dtype and library() is not None


def fill_normal(out: Tensor, first_block: int, key: int, step: int, stream: int) -> None:
    """Fill a contiguous CPU tensor with the standard normals of its position in the stream."""
    compiled = library()
    if compiled is None:
        out.copy_(normals(out.numel(), first_block, key, step, stream, out.dtype))
        return
    fill = compiled.atmc_noise_double if out.dtype == torch.float64 else compiled.atmc_noise_float
    fill(out.data_ptr(), out.numel(), first_block, key, step, stream)


def all_finite(t: Tensor) -> bool:
    """Whether every element is finite, in one pass where the compiled code can make it."""
    compiled = library()
    if compiled is None or t.device.type != "cpu" or t.dtype not in (torch.float32, torch.float64) or not dense(t):
        return bool(t.isfinite().all())
    test = compiled.atmc_finite_double if t.dtype == torch.float64 else compiled.atmc_finite_float
    return bool(test(t.data_ptr(), t.numel()))


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="atmc-step")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork: the child makes its own
    os.register_at_fork(after_in_child=_pool.cache_clear)


def fused(sampler: Sampler, shard: Shard, grads: list[Tensor | None], measure: bool) -> None:
    """Run the step of a whole shard."""
    compiled = library()
    assert compiled is not None
    run = compiled.atmc_step_double if shard.dtype == torch.float64 else compiled.atmc_step_float
    held: list[Any] = []  # what the addresses below point to must outlive the calls
    tasks: list[tuple[int, tuple[Any, ...], Any]] = []
    for index, (p, grad) in enumerate(zip(shard.params, grads, strict=True)):
        if grad is None or p.numel() == 0:
            continue
        g = memory_order(grad.to(shard.dtype), p)
        settings = _settings(sampler, shard, index, measure)
        mass = shard.mass(index)
        each = memory_order(mass.to(shard.dtype), p) if isinstance(mass, Tensor) else None
        held += [g, each, settings]
        width = p.element_size() * shard.offsets[index]
        state = shard.flat.get("momentum", shard.flat.get("square_avg"))
        thermostat = shard.flat.get("thermostat")
        addresses = (
            p.data_ptr(),
            g.data_ptr(),
            0 if state is None else state.data_ptr() + width,
            0 if thermostat is None else thermostat.data_ptr() + (0 if sampler.shared_thermostat else width),
            0 if each is None else each.data_ptr(),
        )
        for start in range(0, p.numel(), TASK):
            stop = min(start + TASK, p.numel())
            sums = (ctypes.c_double * 3)()
            arguments = (*addresses, start, stop, shard.first_blocks[index], ctypes.byref(settings), sums)
            tasks.append((index, arguments, sums))

    def call(task: tuple[int, tuple[Any, ...], Any]) -> None:
        run(*task[1])

    threads = torch.get_num_threads()
    if threads > 1 and len(tasks) > 1:
        list(_pool(threads).map(call, tasks))  # the calls release the interpreter's lock
    else:
        for task in tasks:
            call(task)
    if measure:
        found = torch.full_like(shard.readings, float("nan"))
        for index in {index for index, _, _ in tasks}:
            found[index] = 0.0
        for index, _, sums in tasks:
            found[index] += torch.tensor(sums[:2], dtype=torch.float64, device="cpu")
        if "momentum" not in shard.flat:
            found[:, 0] = float("nan")
        shard.readings.copy_(found)
    if sampler.shared_thermostat:
        shard.scratch["heat"] = [torch.tensor(sum(sums[2] for _, _, sums in tasks), dtype=shard.dtype, device="cpu")]
    shard.step.add_(1)


def _settings(sampler: Sampler, shard: Shard, index: int, measure: bool) -> Settings:
    group = shard.groups[index]
    mass = shard.mass(index)
    number = next(i for i, g in enumerate(sampler.param_groups) if g is group)
    friction = least_friction(group) if "friction" in group else 0.0
    limit = group.get("speed_limit", float("inf"))
    single = 1.0 if isinstance(mass, Tensor) else float(mass)
    return Settings(
        lr=float(group["lr"]),
        last_lr=float(sampler._last_lr[number]) if sampler.strang else 0.0,
        temperature=float(group["temperature"]),
        mass=single,
        inverse_scale=inverse_momentum_scale(single, limit),
        noise=friction,
        added_noise=max(friction - getattr(sampler, "noise_estimate", 0.0), 0.0),
        inverse_inertia=1.0 / group["inertia"] if "inertia" in group else 0.0,
        reference_lr=group.get("reference_lr") or 0.0,
        reference_temperature=group.get("reference_temperature") or 0.0,
        decay=getattr(sampler, "decay", 0.0),
        epsilon=getattr(sampler, "epsilon", 0.0),
        key=sampler._key,
        step=int(shard.step),
        kind=KINDS[type(sampler).__name__],
        stream=2 * shard.number,
        corrected=sampler.corrected,
        strang=sampler.strang,
        measure=measure,
        shared=sampler.shared_thermostat,
        hyperbolic=limit != float("inf"),
        preconditioned="square_avg" in shard.flat,
    )
