"""Read CIFAR-10's Python batches without executing code of the pickle.

These files need four names only, which are answered by stand-ins that accept bytes and nothing else. Any other name, a
persistent reference, or an array that is not plain uint8 is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from atmc.common.errors import InputError


class _Dtype:
    """Stands in for numpy.dtype: unsigned bytes or nothing."""

    def __init__(self, code: object = None, *_: object) -> None:
        if code not in ("u1", b"u1", "uint8", b"uint8"):
            raise pickle.UnpicklingError(f"an array of type {code!r}")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, of which a byte has none."""


class _Array:
    """Stands in for numpy.ndarray: keeps what it is told until `array` has checked it."""

    value: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("an array with an unknown state")
        _, shape, dtype, fortran, raw = state
        whole = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not (whole and isinstance(dtype, _Dtype) and isinstance(raw, bytes)):
            raise pickle.UnpicklingError("an array that is not plain bytes")
        flat = np.frombuffer(raw, np.uint8)
        size = 1
        for n in shape:
            size *= n
        if size != len(flat):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(flat)} bytes")
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _reconstruct(kind: object, *_: object) -> _Array:
    """Stands in for numpy's function of that name, which makes an empty array for `__setstate__` to fill."""
    if kind is not _Array:
        raise pickle.UnpicklingError(f"an array of class {kind!r}")
    return _Array()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Stands in for _codecs.encode, by which protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an unknown encoding")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}") from None


def read_batch(data: bytes, name: str) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """The pixels [rows, 3072] and labels of one Python batch; anything else is refused with an InputError."""
    try:
        batch = _Reader(io.BytesIO(data), fix_imports=False, encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise InputError(f"{name} is refused: a CIFAR-10 batch has no use for {error}") from error
    except Exception as error:  # a malformed pickle may raise anything at all
        raise InputError(f"{name} is refused: no readable pickle ({type(error).__name__}: {error})") from error
    if not isinstance(batch, dict):
        raise InputError(f"{name} is refused: a CIFAR-10 batch is a dictionary")
    pixels = batch.get(b"data", batch.get("data"))
    labels = batch.get(b"labels", batch.get("labels"))
    if not isinstance(pixels, _Array) or pixels.value is None or pixels.value.ndim != 2:
        raise InputError(f"{name} is refused: no array of pixels under 'data'")
    if not isinstance(labels, list) or not all(type(n) is int and 0 <= n < 256 for n in labels):
        raise InputError(f"{name} is refused: no list of small numbers under 'labels'")
    if len(labels) != len(pixels.value):
        raise InputError(f"{name} is refused: {len(pixels.value)} images but {len(labels)} labels")
    return pixels.value, labels
