"""Nested state to named tensors plus plain JSON, and back: what makes any state dict a safetensors file.

Optimizers keep dicts with whole-number keys, lists, numbers and tensors. Tensors move into a flat mapping and leave
their name behind; a dict whose keys are not text becomes a list of pairs, which JSON can hold.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_TENSOR, _PAIRS = "$tensor", "$pairs"


def pack(value: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:
    """The JSON side of `value`; its tensors are put into `tensors` under names that begin with `prefix`."""
    if isinstance(value, Tensor):
        tensors[prefix] = value.detach()
        return {_TENSOR: prefix}
    if isinstance(value, Mapping):
        packed = [(key, pack(item, f"{prefix}/{key}", tensors)) for key, item in value.items()]
        if all(isinstance(key, str) for key in value):
            return dict(packed)
        return {_PAIRS: [list(pair) for pair in packed]}
    if isinstance(value, list | tuple):
        return [pack(item, f"{prefix}/{i}", tensors) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{prefix}: a {type(value).__name__} cannot be saved without pickle")


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The reverse of `pack`. Tuples have become lists."""
    if isinstance(value, Mapping):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        if _PAIRS in value:
            return {key: unpack(item, tensors) for key, item in value[_PAIRS]}
        return {key: unpack(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    return value


def cloned(value: Any) -> Any:
    """A deep copy of nested state, tensors included, on whatever device they are."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: cloned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cloned(item) for item in value]
    return value


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether no floating tensor has a NaN or an infinity; one small transfer for all of them."""
    floating = [t for t in tensors if t.is_floating_point() and t.numel()]
    if not floating:
        return True
    # The sum of squares would overflow; the largest magnitude cannot, and carries any NaN along.
    largest = torch._foreach_norm(floating, float("inf"))
    return bool(torch.stack([n.float() for n in largest]).isfinite().all())
