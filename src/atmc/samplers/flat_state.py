"""The state of a sampler: flat buffers, one set per device and precision.

Momentum and thermostat of all parameters lie end to end in two buffers; `sampler.state[p]["momentum"]` is a view shaped
(and strided) like the parameter. Fused backends walk through parameters, gradients and state in memory order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atmc.samplers.random_stream import blocks


class Slots(dict[str, Any]):
    """The state of one parameter: views of the flat buffers. A tensor assigned to a slot is copied into its view."""

    def __setitem__(self, slot: str, value: Any) -> None:
        view = self.get(slot)
        if view is None or value is view:
            super().__setitem__(slot, value)
            return
        if not isinstance(value, Tensor) or value.shape != view.shape:
            given = f"one of {list(value.shape)}" if isinstance(value, Tensor) else f"{value!r}"
            raise ValueError(f"{slot} is a tensor of shape {list(view.shape)}, not {given}")
        with torch.no_grad():
            view.copy_(value)


@dataclass
class Shard:
    """All parameters of one device and precision, with their flat state."""

    number: int
    params: list[Tensor]
    names: list[str]
    groups: list[dict[str, Any]]  # the group of each parameter
    layouts: list[tuple[Any, ...]]  # dtype, device and strides of each parameter when the state was laid out
    offsets: list[int]
    first_blocks: list[int]  # of each parameter, in the noise stream
    flat: dict[str, Tensor]
    dense: bool  # whether the flat backends can run over the parameters' memory
    total: int  # length of the flat buffers
    sizes: Tensor  # elements of each parameter, float64 on the device
    step: Tensor  # steps taken: int64, on the shard's device, so that a captured graph advances it
    readings: Tensor  # [parameters, 2]: sums of p K'(p) and of θ·G at the last measured step
    scratch: dict[str, Any] = field(default_factory=dict)  # what a backend keeps between steps

    @property
    def device(self) -> torch.device:
        return self.step.device

    @property
    def dtype(self) -> torch.dtype:
        return self.flat_dtype(self.layouts[0][0])

    def moved(self) -> bool:
        """Whether a parameter was converted, moved or laid out differently since the state was made."""
        return [layout_of(p) for p in self.params] != self.layouts

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "scratch": {}}  # what a backend keeps belongs to this process

    @staticmethod
    def flat_dtype(param_dtype: torch.dtype) -> torch.dtype:
        """States are float32 for every parameter of lower precision."""
        return torch.float64 if param_dtype == torch.float64 else torch.float32

    def forget_readings(self) -> None:
        """Clear the readings: they are those of another state."""
        self.readings.fill_(float("nan"))
        if "plan" in self.scratch:  # what the CUDA kernels have left on the device; a captured graph writes there again
            self.scratch["plan"].forget()

    def mass(self, index: int) -> Any:
        """The mass of one parameter: a number, or a tensor shaped like it."""
        group = self.groups[index]
        mass = group.get("mass", 1.0)
        if isinstance(mass, (list, tuple)):
            return mass[next(i for i, p in enumerate(group["params"]) if p is self.params[index])]
        return mass


def layout_of(p: Tensor) -> tuple[Any, ...]:
    """What the state of a parameter depends on."""
    return p.dtype, p.device, p.shape, p.stride()


def dense(p: Tensor) -> bool:
    """Whether the elements fill one block of memory without gaps or overlap, in any order."""
    expected = 1
    for stride, size in sorted(zip(p.stride(), p.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def view_like(flat: Tensor, offset: int, p: Tensor) -> Tensor:
    """The stretch of a flat buffer that belongs to `p`, shaped and, if it is dense, strided like it."""
    stride = p.stride() if dense(p) else torch.empty(p.shape, device="meta").stride()
    return flat.as_strided(p.shape, stride, flat.storage_offset() + offset)  # the flat buffer may be a row of a matrix


def memory_order(t: Tensor, like: Tensor) -> Tensor:
    """The elements of `t` as a vector in the memory order of `like`: a view where the layouts agree, else a copy."""
    if t.stride() != like.stride():
        t = torch.empty_like(like, dtype=t.dtype).copy_(t)
    return t.as_strided((t.numel(),), (1,), t.storage_offset())


def build_shard(
    number: int,
    params: list[Tensor],
    names: list[str],
    groups: list[dict[str, Any]],
    slots: tuple[str, ...],
    shared_thermostat: bool,
) -> Shard:
    """Allocate the flat state of one device and precision, all zero."""
    device, dtype = params[0].device, Shard.flat_dtype(params[0].dtype)
    # On a GPU parameters start at multiples of 32 elements, so that blocks load whole vectors.
    align = 1 if device.type == "cpu" else 32
    offsets, total = [], 0
    first_blocks, block = [], 0
    for p in params:
        offsets.append(total)
        first_blocks.append(block)
        total += -(-p.numel() // align) * align
        block += blocks(p.numel())
    return Shard(
        number=number,
        params=params,
        names=names,
        groups=groups,
        layouts=[layout_of(p) for p in params],
        offsets=offsets,
        first_blocks=first_blocks,
        dense=all(map(dense, params)),
        total=total,
        flat={
            slot: torch.zeros(1 if slot == "thermostat" and shared_thermostat else total, device=device, dtype=dtype)
            for slot in slots
        },
        sizes=torch.tensor([float(p.numel()) for p in params], dtype=torch.float64).to(device),
        step=torch.zeros((), device=device, dtype=torch.int64),
        readings=torch.full((len(params), 2), float("nan"), device=device, dtype=torch.float64),
    )
