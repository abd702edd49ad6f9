"""Tensors that are views of the rows of one matrix, so that work on all of them can be one launch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def matrix_of(views: Sequence[Tensor]) -> Tensor | None:
    """The matrix [rows, columns] of which each is a view [rows, ...] within its rows; None where there is none."""
    first = views[0]
    rows, pitch, storage = len(first), first.stride(0), first.untyped_storage()
    for view in views:
        last = view.storage_offset() + sum((n - 1) * s for n, s in zip(view.shape[1:], view.stride()[1:], strict=True))
        same = view.untyped_storage().data_ptr() == storage.data_ptr() and view.dtype == first.dtype
        if not same or len(view) != rows or view.stride(0) != pitch or last >= pitch:
            return None
    if storage.nbytes() != rows * pitch * first.element_size():
        return None
    return first.as_strided((rows, pitch), (pitch, 1), 0)


def columns_of(view: Tensor, columns: Tensor) -> Tensor:
    """What a vector of one number for each column has for the elements of a view's rows, as a view of it."""
    return columns.as_strided(view.shape[1:], view.stride()[1:], columns.storage_offset() + view.storage_offset())
