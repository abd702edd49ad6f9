"""A list of tensors with the arithmetic of one tensor, by PyTorch's `foreach` kernels.

The integrator's formulas thus run on one tensor or on a whole parameter group. Where an expression mixes the two, keep
the `TensorList` on the left: PyTorch's own operators do not know it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class TensorList:
    """Elementwise arithmetic over a list of tensors.

    The other operand may be a `TensorList` or a sequence with one value per tensor, a number, or a 0-dim tensor.
    """

    __slots__ = ("tensors",)

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def _apply(self, op: Any, other: Any) -> TensorList:
        return TensorList(op(self.tensors, other.tensors if isinstance(other, TensorList) else other))

    def __add__(self, other: Any) -> TensorList:
        if isinstance(other, Tensor):  # `torch._foreach_add` would read its value back, and wait for the device
            return self._apply(torch.ops.aten._foreach_add.Tensor, other)
        return self._apply(torch._foreach_add, other)

    def __mul__(self, other: Any) -> TensorList:
        return self._apply(torch._foreach_mul, other)

    def __truediv__(self, other: Any) -> TensorList:
        return self._apply(torch._foreach_div, other)

    def __sub__(self, other: Any) -> TensorList:
        if isinstance(other, Tensor):  # there is no foreach kernel for "minus one tensor"
            return self.__add__(-other)
        return self._apply(torch._foreach_sub, other)

    def __neg__(self) -> TensorList:
        return TensorList(torch._foreach_neg(self.tensors))

    def __radd__(self, other: Any) -> TensorList:
        return self.__add__(other)

    def __rmul__(self, other: Any) -> TensorList:
        return self.__mul__(other)

    def __rsub__(self, other: Any) -> TensorList:
        return (-self).__add__(other)

    def __rtruediv__(self, other: Any) -> TensorList:
        return TensorList(torch._foreach_reciprocal(self.tensors)).__mul__(other)

    def copy_(self, other: TensorList) -> None:
        torch._foreach_copy_(self.tensors, other.tensors)


def expm1(x: Any) -> Any:
    """e^x − 1 of a number, a tensor or a list of tensors."""
    if isinstance(x, TensorList):
        return TensorList(torch._foreach_expm1(x.tensors))
    return torch.expm1(x) if isinstance(x, Tensor) else math.expm1(x)


def sqrt(x: Any) -> Any:
    """√x of a number, a tensor or a list of tensors."""
    if isinstance(x, TensorList):
        return TensorList(torch._foreach_sqrt(x.tensors))
    return torch.sqrt(x) if isinstance(x, Tensor) else math.sqrt(x)


def rsqrt(x: Any) -> Any:
    """1/√x of a number, a tensor or a list of tensors."""
    if isinstance(x, TensorList):
        return TensorList(torch._foreach_rsqrt(x.tensors))
    return torch.rsqrt(x) if isinstance(x, Tensor) else 1.0 / math.sqrt(x)


def absolute(x: Any) -> Any:
    """|x| of a number, a tensor or a list of tensors."""
    return TensorList(torch._foreach_abs(x.tensors)) if isinstance(x, TensorList) else abs(x)


def clamp_min(x: Any, floor: Any) -> Any:
    """max(x, floor) of a number, a tensor or a list of tensors."""
    if isinstance(x, TensorList) and isinstance(floor, Tensor):  # foreach would read its value back
        return TensorList([torch.clamp_min(each, floor) for each in x])
    if isinstance(x, TensorList):
        return TensorList(torch._foreach_clamp_min(x.tensors, floor))
    return torch.clamp_min(x, floor) if isinstance(x, Tensor) else max(x, floor)
