"""Decoded images in host memory, shared by the workers of a stream: filled in the first epoch, read in all others."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atmc.common.errors import InputError

SHARE = 0.8  # of the memory that is free now


class DecodedCache:
    """Bytes [examples, H, W, C] in anonymous shared memory, which costs nothing until it is written.

    Workers that are forked see the same memory. Two that decode one image write the same bytes, so no lock is needed;
    a mark is set after the pixels, and an image is read again only an epoch later.
    """

    def __init__(self, name: str, examples: int, shape: tuple[int, int, int]) -> None:
        size = examples * int(np.prod(shape))
        free = _free_memory()
        if free is not None and size > SHARE * free:
            raise InputError(
                f"{name}: the decoded cache takes {size / 1e9:.1f} GB, more than {SHARE:.0%} of the {free / 1e9:.1f} "
                "GB that are free: leave cache out, or choose a smaller one"
            )
        self._pixels = np.frombuffer(mmap.mmap(-1, size), np.uint8).reshape(examples, *shape)
        self._marks = np.frombuffer(mmap.mmap(-1, examples), np.uint8)

    def get(self, index: int) -> npt.NDArray[np.uint8] | None:
        """The decoded image, or None where nobody has decoded it yet."""
        return self._pixels[index] if self._marks[index] else None

    def put(self, index: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Keep a decoded image."""
        self._pixels[index] = pixels
        self._marks[index] = 1

    @property
    def filled(self) -> int:
        """How many images are decoded."""
        return int(self._marks.sum())


def _free_memory() -> int | None:
    """Bytes of memory that programs can have without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
