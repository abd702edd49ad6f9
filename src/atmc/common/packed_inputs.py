"""Several inputs of a network packed into one tensor, 32 bits for each number, and taken apart again.

Data sets, batches and predictions hold one tensor of inputs. `atmc.nn.several_inputs` lets a network take packed ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError


@dataclass(frozen=True)
class Layout:
    """What a packed row holds: the shape and dtype of each input, and its name where inputs have names."""

    names: tuple[str, ...]  # empty where inputs come by position
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def __str__(self) -> str:
        names = self.names or tuple(str(i) for i in range(len(self.shapes)))
        return ", ".join(f"{name} {list(shape)}" for name, shape in zip(names, self.shapes, strict=True))

    def unpack(self, packed: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Arguments and keyword arguments of the network."""
        parts = []
        for part, shape, name in zip(torch.split(packed, self.sizes, dim=1), self.shapes, self.dtypes, strict=True):
            dtype = getattr(torch, name)
            part = part.contiguous()
            found = part.view(torch.float32) if dtype.is_floating_point else part.to(dtype)
            parts.append(found.reshape(len(packed), *shape))
        return ((), dict(zip(self.names, parts, strict=True))) if self.names else (tuple(parts), {})


def are_several(inputs: Any) -> bool:
    """Whether these are several inputs of a network: a dict of tensors, or a tuple (of a batch also a list) of them."""
    if isinstance(inputs, Mapping):
        return len(inputs) > 1
    several = isinstance(inputs, tuple | list) and len(inputs) > 1
    return several and all(isinstance(part, Tensor | np.ndarray) and part.ndim > 0 for part in inputs)


def pack(inputs: Any, what: str = "inputs") -> tuple[Tensor, Layout]:
    """Several inputs [N, …] as one int32 tensor [N, numbers of an example], and what it holds. Names are sorted."""
    named = isinstance(inputs, Mapping)
    items = sorted(inputs.items()) if named else [(str(i), part) for i, part in enumerate(inputs)]
    parts, shapes, dtypes = [], [], []
    for name, part in items:
        try:
            found = torch.as_tensor(part).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{what}: {name} holds {type(part).__name__}, not a tensor") from error
        if found.ndim < 1 or len(found) != len(items[0][1]):
            raise InputError(f"{what}: {name} has the shape {list(found.shape)}, and the first {len(items[0][1])} rows")
        if found.is_complex():
            raise InputError(f"{what}: {name} holds complex numbers")
        if found.is_floating_point():
            flat, dtype = found.float().contiguous().view(torch.int32), "float32"
        else:
            if found.numel() and not -(2**31) <= int(found.min()) <= int(found.max()) < 2**31:
                raise InputError(f"{what}: {name} holds whole numbers beyond 32 bits")
            flat, dtype = found.to(torch.int32), str(found.dtype).removeprefix("torch.")
        parts.append(flat.reshape(len(found), -1))
        shapes.append(tuple(found.shape[1:]))
        dtypes.append(dtype)
    names = tuple(str(name) for name, _ in items) if named else ()
    return torch.cat(parts, dim=1), Layout(names, tuple(shapes), tuple(dtypes))
