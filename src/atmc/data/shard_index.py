"""The index of a set of tar shards: made by one pass over the headers and cached.

The layout is WebDataset's: files of an example follow each other and share their name up to the first dot, `00017.jpg`
and `00017.cls` (the class as a number) or `00017.json` (with a "label"). A posterior needs the number of examples, and
resuming needs access to any position.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from atmc.common.atomic_files import write_file
from atmc.common.errors import InputError
from atmc.data.image_decoding import SUFFIXES

VERSION = 1
LARGEST_IMAGE, LARGEST_LABEL = 256 << 20, 1 << 20  # bytes of an entry; what is larger is a mistake, or malice
MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class ShardIndex:
    """For each example its shard, the offset and size of its image, and its label."""

    paths: tuple[Path, ...]
    shard: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def digest(self) -> str:
        """SHA-256 of the shards' names and layout, without reading the images."""
        seal = hashlib.sha256("\n".join(path.name for path in self.paths).encode())
        for column in (self.shard, self.offset, self.size, self.label):
            seal.update(column.astype("<i8").tobytes())
        return seal.hexdigest()


def open_index(paths: tuple[Path, ...], cache: Path | None) -> ShardIndex:
    """The index of the shards, from `cache` if they have not changed since it was made."""
    kept = None
    if cache is not None:
        stamp = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
        kept = cache / f"{hashlib.sha256(repr((VERSION, stamp)).encode()).hexdigest()[:32]}.npz"
        try:
            with np.load(kept, allow_pickle=False) as found:
                return ShardIndex(paths, *(found[name] for name in ("shard", "offset", "size", "label")))
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            pass  # absent or damaged: it is made again
    rows = [(i, *entry) for i, path in enumerate(paths) for entry in scan(path)]
    if not rows:
        raise InputError(f"{paths[0]} and {len(paths) - 1} more shards hold no examples")
    shard, offset, size, label = np.array(rows, dtype=np.int64).T
    index = ShardIndex(paths, shard, offset, size, label)
    if kept is not None:
        buffer = io.BytesIO()
        np.savez(buffer, shard=shard, offset=offset, size=size, label=label)
        with contextlib.suppress(OSError):  # the index is only kept to save time
            write_file(kept, buffer.getvalue())
    return index


def scan(path: Path) -> Iterator[tuple[int, int, int]]:
    """(offset, size, label) of every example of one shard, in order; what is wrong with it is named."""
    key, image, label = "", None, None
    try:
        with path.open("rb") as raw:
            # tarfile takes a shard cut off between two files for a whole one; the end mark tells them apart.
            raw.seek(-min(1024, path.stat().st_size), io.SEEK_END)
            if raw.read() != bytes(1024):
                raise InputError(f"{path} is half-finished or compressed: a plain tar ends with two blocks of zeros")
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                stem, _, suffix = name.name.partition(".")
                if not member.isfile() or not suffix or stem.startswith("__"):
                    continue
                if str(name.with_name(stem)) != key:
                    if key:
                        yield _entry(path, key, image, label)
                    key, image, label = str(name.with_name(stem)), None, None
                if member.size > (LARGEST_IMAGE if f".{suffix.lower()}" in SUFFIXES else LARGEST_LABEL) and (
                    f".{suffix.lower()}" in SUFFIXES or suffix.lower() in ("cls", "json")
                ):
                    raise InputError(f"{path}: {name} claims {member.size:,} bytes, more than an entry may have")
                if f".{suffix.lower()}" in SUFFIXES:
                    image = (member.offset_data, member.size)
                elif suffix.lower() in ("cls", "json"):
                    content = archive.extractfile(member)
                    found = _label(content.read() if content else b"", suffix.lower(), f"{path}: {name}")
                    label = found if found is not None else label
            if key:
                yield _entry(path, key, image, label)
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{path} is half-finished, damaged or no tar archive: {error}") from error


def _entry(path: Path, key: str, image: tuple[int, int] | None, label: int | None) -> tuple[int, int, int]:
    if image is None:
        raise InputError(f"{path}: {key} has no image")
    if label is None:
        raise InputError(f'{path}: {key} has no label (a .cls file, or a .json file with a "label")')
    return (*image, label)


def _label(content: bytes, kind: str, where: str) -> int | None:
    try:
        if kind == "cls":
            value: object = int(content)
        else:
            document = json.loads(content)
            value = document.get("label", document.get("cls")) if isinstance(document, dict) else None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} holds no label: {error}") from error
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise InputError(f"{where} holds no label: {value!r}")
    if value >= MOST_CLASSES:
        raise InputError(f"{where} holds the label {value}, and classes are numbered from 0: at most {MOST_CLASSES:,}")
    return value
