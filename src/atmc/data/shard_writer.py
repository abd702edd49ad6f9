"""Write tar shards in the WebDataset layout, with checksums, resumable after any stop.

Images are shuffled once by a fixed rule and cut into shards of a chosen size before anything is written, so the plan
needs names and sizes alone. A shard is whole or not there, and `shards.json` lists what is finished. The same command
again checks finished shards by their SHA-256, keeps those that are right and writes the rest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from atmc.common.atomic_files import sweep, write_all, write_file, writing
from atmc.common.errors import InputError
from atmc.data import epoch_order
from atmc.data.checked_files import Progress, silent

RECORD = "shards.json"
BLOCK = 512
_MODULUS = 1 << 256
_ODD = re.compile(r"[^\w-]+")


@dataclass(frozen=True)
class Item:
    """One image to be written: its name, number of its class, size in bytes, and how to read it."""

    name: str
    label: int
    size: int
    read: Callable[[], bytes]


def write_shards(
    out: Path,
    splits: Mapping[str, Sequence[Item]],
    classes: Sequence[str],
    megabytes: float = 256.0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write `{split}-00000.tar`, … of at most `megabytes` each, `classes.txt` and `shards.json`, which is returned.

    The record has for each split its images, its shards and a digest of its content: the sum, modulo 2²⁵⁶, of the
    SHA-256 of each label with its image, which depends neither on names nor on the order.
    """
    plans = {split: _plan(split, items, megabytes * 1e6) for split, items in splits.items()}
    seal = hashlib.sha256(repr((list(classes), [(k, _about(v)) for k, v in plans.items()])).encode()).hexdigest()
    known = _finished(out, seal)
    record: dict[str, Any] = {"plan": seal, "complete": False, "classes": list(classes), "splits": {}}
    total = sum(item.size for items in splits.values() for item in items)
    done = 0
    out.mkdir(parents=True, exist_ok=True)
    sweep(out)
    for split, shards in plans.items():
        part: dict[str, Any] = {"images": len(splits[split]), "shards": []}
        record["splits"][split] = part
        for name, items in shards:
            entry = known.get(name)
            if entry is None or not _is_right(out / name, entry):
                entry = {"name": name, **_write(out / name, items)}
            part["shards"].append(entry)
            done += sum(item.size for item in items)
            progress(f"write {split} shards", done, total)
            _keep(out, record)
        part["digest"] = f"{sum(int(entry['content'], 16) for entry in part['shards']) % _MODULUS:064x}"
    for name in known.keys() - {name for shards in plans.values() for name, _ in shards}:
        (out / name).unlink(missing_ok=True)
    write_file(out / "classes.txt", ("\n".join(classes) + "\n").encode())
    record["complete"] = True
    _keep(out, record)
    return record


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of finished shards, or None where there is none or it is unfinished."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        return record if isinstance(record, dict) and record.get("complete") is True else None
    except (OSError, ValueError):
        return None


def faults_of(folder: Path, record: dict[str, Any], deep: bool = False) -> list[str]:
    """What is wrong with the shards: missing, of another size, or (`deep`) with another SHA-256."""
    found = []
    for part in record["splits"].values():
        for entry in part["shards"]:
            path = folder / entry["name"]
            if not path.is_file():
                found.append(f"{path} is missing")
            elif path.stat().st_size != entry["bytes"]:
                found.append(f"{path} is incomplete or altered: {path.stat().st_size:,} of {entry['bytes']:,} bytes")
            elif deep and not _is_right(path, entry):
                found.append(f"{path} is altered: its SHA-256 is not {entry['sha256']}")
    return found


def _plan(split: str, items: Sequence[Item], most: float) -> list[tuple[str, list[Item]]]:
    """Images by shard, in an order that is shuffled once and for all."""
    if most < 1e4:
        raise InputError("a shard of less than 0.01 MB holds no images: choose a larger size")
    ordered = sorted(items, key=lambda item: (item.label, item.name))
    order = epoch_order.permutation(epoch_order.words(0, 0, epoch_order.ORDER, len(ordered)))
    shards: list[list[Item]] = []
    size = most
    for position in order:
        item = ordered[position]
        takes = 4 * BLOCK + item.size  # two headers, a label, and half a block of filling on average
        if size + takes > most and (not shards or shards[-1]):
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += takes
    return [(f"{split}-{number:05d}.tar", shard) for number, shard in enumerate(shards)]


def _about(shards: Iterable[tuple[str, list[Item]]]) -> list[tuple[str, str]]:
    texts = ((name, "\n".join(f"{i.name}\0{i.label}\0{i.size}" for i in items)) for name, items in shards)
    return [(name, hashlib.sha256(text.encode()).hexdigest()) for name, text in texts]


class _Tee(io.RawIOBase):
    """Writes to a descriptor and hashes what it writes."""

    def __init__(self, handle: int) -> None:
        self.handle, self.seal, self.count = handle, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        payload = bytes(data)
        self.seal.update(payload)
        write_all(self.handle, payload)
        self.count += len(payload)
        return len(payload)


def _write(path: Path, items: Sequence[Item]) -> dict[str, Any]:
    content = 0
    with writing(path) as handle:
        tee = _Tee(handle)
        with tarfile.open(fileobj=tee, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for number, item in enumerate(items):
                data = item.read()
                if not data:
                    raise InputError(f"{item.name} is empty: fix or remove the file")
                name = PurePosixPath(item.name)
                key = f"{number:06d}-{_ODD.sub('_', name.stem)[:80]}"
                for suffix, payload in ((name.suffix.lower(), data), (".cls", str(item.label).encode())):
                    member = tarfile.TarInfo(key + suffix)
                    member.size = len(payload)
                    tar.addfile(member, io.BytesIO(payload))
                content += int(hashlib.sha256(f"{item.label} ".encode() + data).hexdigest(), 16)
    seal = tee.seal.hexdigest()
    return {"images": len(items), "bytes": tee.count, "sha256": seal, "content": f"{content % _MODULUS:064x}"}


def _finished(out: Path, seal: str) -> dict[str, dict[str, Any]]:
    """Shards that an earlier call has finished, by name; those of another plan are none."""
    try:
        record = json.loads((out / RECORD).read_bytes())
        found = {entry["name"]: entry for part in record["splits"].values() for entry in part["shards"]}
        same = record["plan"] == seal
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    if not same:
        raise InputError(f"{out} holds shards of other images or of another size: choose an empty folder")
    return found


def _is_right(path: Path, entry: dict[str, Any]) -> bool:
    try:
        if path.stat().st_size != entry["bytes"]:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == str(entry["sha256"])
    except OSError:
        return False


def _keep(out: Path, record: dict[str, Any]) -> None:
    write_file(out / RECORD, (json.dumps(record) + "\n").encode())


def from_file(path: Path, label: int, name: str | None = None) -> Item:
    """An image file as an item."""

    def read() -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error

    return Item(name or str(path), label, path.stat().st_size, read)


def from_range(path: Path, offset: int, size: int, label: int, name: str) -> Item:
    """Some bytes of a file, such as an entry of a plain tar archive, as an item."""

    def read() -> bytes:
        handle = os.open(path, os.O_RDONLY)
        try:
            data = os.pread(handle, size, offset)
        finally:
            os.close(handle)
        if len(data) != size:
            raise InputError(f"{path} is cut off")
        return data

    return Item(name, label, size, read)
