"""IDX, the format of MNIST and its kin: a magic number that says type and rank, the sizes, then the bytes."""

from __future__ import annotations

import gzip
import io
import struct
import zlib

import numpy as np
import numpy.typing as npt

from atmc.common.errors import InputError

LARGEST = 256 << 20


def gunzip(data: bytes, name: str) -> bytes:
    """`data` unpacked if it is gzip, as it is otherwise."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            plain = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name} is half-finished or damaged: {error}") from error
    if len(plain) > LARGEST:
        raise InputError(f"{name} unpacks to more than {LARGEST:,} bytes")
    return plain


def parse(data: bytes, name: str) -> npt.NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes; an InputError names the file and what is wrong with it."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise InputError(f"{name} is no IDX file of unsigned bytes")
    rank = data[3]
    head = 4 + 4 * rank
    if rank == 0 or len(data) < head:
        raise InputError(f"{name} is half-finished: its IDX header is cut off")
    shape = struct.unpack(f">{rank}I", data[4:head])
    size = 1
    for n in shape:
        size *= n
    if len(data) != head + size:
        raise InputError(f"{name} is half-finished or altered: {len(data):,} bytes, its header says {head + size:,}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def dump(array: npt.NDArray[np.uint8]) -> bytes:
    """The IDX file of an array of unsigned bytes."""
    head = b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()
