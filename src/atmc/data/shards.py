"""Tar shards in the WebDataset layout: a few shards at a time, shuffled, from any position.

`shards:PATH/{split}-*.tar` names them: `{split}` stands for train or test (or val, validation), the rest is a glob or
WebDataset's `{000..146}`. Memory does not grow with the set; reading ahead is left to the page cache.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from atmc.common.errors import InputError
from atmc.data.image_decoding import View
from atmc.data.shard_index import open_index
from atmc.data.streamed_source import Encoded

OPEN_FILES = 32
_RANGE = re.compile(r"\{(\d{1,12})\.\.(\d{1,12})\}")
_MANY = 1_000_000  # shards that a pattern may name


class ShardSource(Encoded):
    """The examples of one split of a set of shards."""

    def __init__(
        self,
        name: str,
        pattern: str,
        split: str,
        size: tuple[int, int] = (224, 224),
        channels: int = 3,
        crop: float = 1.0,
        classes: int | None = None,
        window: int = 8,
        cache: Path | None = None,
        keep: int = 0,
    ) -> None:
        paths = expand(pattern, split)
        if not paths:
            raise InputError(f"{name}: no shards for the {split} split")
        if window < 1:
            raise InputError(f"{name}: window = {window} must be at least 1")
        self.name, self.split, self.window = name, split, window
        self._index = open_index(paths, cache)
        self.labels = torch.from_numpy(self._index.label.copy())
        self.groups = self._index.shard
        top = int(self.labels.max()) + 1
        if split != "train" and classes is None and (train := expand(pattern, "train")):
            top = max(top, int(open_index(train, cache).label.max()) + 1)
        if classes is not None and top > classes:
            raise InputError(f"{name}: label {top - 1} does not fit classes = {classes}")
        self.classes = tuple(str(c) for c in range(classes or top))
        self._dress(View(*size, channels, crop), keep)
        self.digest = self._index.digest
        self._open: OrderedDict[int, int] = OrderedDict()

    def raw(self, index: int) -> tuple[bytes, str]:
        shard = int(self._index.shard[index])
        offset, size = int(self._index.offset[index]), int(self._index.size[index])
        path = self._index.paths[shard]
        try:
            data = os.pread(self._file(shard), size, offset)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise InputError(f"{path} has been cut off since it was indexed")
        return data, f"{path}, the image at byte {offset:,}"

    def _file(self, shard: int) -> int:
        """An open shard; the ones used longest ago are closed."""
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        handle = os.open(self._index.paths[shard], os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_WILLNEED)
        self._open[shard] = handle
        if len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return handle

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_open": OrderedDict()}  # an open file belongs to its process

    def __del__(self) -> None:
        for handle in getattr(self, "_open", {}).values():
            os.close(handle)


def expand(pattern: str, split: str) -> tuple[Path, ...]:
    """The shards of a split, sorted by name. A pattern without `{split}` names training shards only."""
    if "{split}" not in pattern:
        return _match(pattern) if split == "train" else ()
    names = ("train",) if split == "train" else ("test", "val", "validation")
    found = (_match(pattern.replace("{split}", name)) for name in names)
    return next((paths for paths in found if paths), ())


def _match(pattern: str) -> tuple[Path, ...]:
    named = math.prod(max(0, int(last) - int(first) + 1) for first, last in _RANGE.findall(pattern))
    if named > _MANY:
        raise InputError(f"shards:{pattern} names {named:,} files, more than the {_MANY:,} that are looked for")
    numbers = _RANGE.search(pattern)
    if numbers is None:
        return tuple(Path(name) for name in sorted(glob.glob(os.path.expanduser(pattern))))
    first, last = numbers[1], numbers[2]
    parts = [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    return tuple(
        path for part in parts for path in _match(pattern[: numbers.start()] + part + pattern[numbers.end() :])
    )
