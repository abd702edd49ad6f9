"""Files that are whole or not there: written beside, synced, renamed, and checked when read.

Everything a run keeps goes through `write_bytes`. A reader therefore never meets half a file after a crash; what it can
still meet is a disk or a person that changed one, and for that every file has a SHA-256 in the manifest. Tensors are
stored as safetensors and everything else as JSON, so that reading a hostile file cannot run code.
"""

import errno
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from atmc.common.errors import RunError

_CHUNK = 4 << 20
# One metadata key only: safetensors writes several in an order that changes from run to run, and equal samples must
# have equal hashes.
_META = "atmc"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DamagedFileError(RunError):
    """A file of a run is missing, torn or altered; `path` and `reason` say which and how."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class FileRecord:
    """What the manifest keeps of a file, enough to notice any change of it."""

    file: str
    sha256: str
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {"file": self.file, "sha256": self.sha256, "bytes": self.bytes}


def write_bytes(path: Path, payload: bytes) -> FileRecord:
    """Put `payload` at `path` such that a crash at any moment leaves the old file or the new one, whole."""
    beside = path.with_name(f".{path.name}.tmp")
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            view = memoryview(payload)
            while view:
                chunk = view[:_CHUNK]
                view = view[os.write(handle, chunk) :]
            digest.update(payload)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise disk_full(path) from error
        raise
    return FileRecord(path.name, digest.hexdigest(), len(payload))


def disk_full(path: Path) -> RunError:
    """The one line for a disk that has no room."""
    return RunError(
        f"no space left to write {path}: free some and run the same command again; what was complete is kept"
    )


def is_full(error: OSError) -> bool:
    """Whether `error` says that there is no room (disk, quota or file size limit)."""
    return error.errno in _FULL


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: a rename is only on disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> tuple[str, int]:
    """SHA-256 and length of a file, read in pieces."""
    digest = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        raise DamagedFileError(path, "is missing, though the manifest lists it") from None
    return digest.hexdigest(), size


def problem(path: Path, sha256: str, size: int) -> str | None:
    """What is wrong with the file at `path`, in words, or None where it is what was written."""
    try:
        found, length = sha256_of(path)
    except DamagedFileError as error:
        return error.reason
    if length != size:
        return f"is torn: {length} bytes instead of {size}"
    if found != sha256:
        return f"was altered: its checksum is {found[:12]}…, the manifest says {sha256[:12]}…"
    return None


def tensors_to_bytes(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    """Tensors and a JSON-able `meta` as one safetensors file; equal input gives equal bytes."""
    own = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(own, {_META: json.dumps(meta, sort_keys=True)})


def bytes_to_tensors(path: Path, payload: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The reverse of `tensors_to_bytes`; whatever is not such a file is named as damaged."""
    try:
        tensors = safetensors.torch.load(payload)
        length = struct.unpack("<Q", payload[:8])[0]
        header = json.loads(payload[8 : 8 + length])
        meta = json.loads(header.get("__metadata__", {}).get(_META, "{}"))
    except (SafetensorError, ValueError, KeyError, AttributeError, struct.error) as error:
        raise DamagedFileError(path, f"is not a tensor file ({error})") from error
    return tensors, meta


def read_checked(path: Path, sha256: str, size: int) -> bytes:
    """The bytes of a recorded file, or `DamagedFileError` naming it."""
    try:
        payload = path.read_bytes()
    except FileNotFoundError:
        raise DamagedFileError(path, "is missing, though the manifest lists it") from None
    if len(payload) != size:
        raise DamagedFileError(path, f"is torn: {len(payload)} bytes instead of {size}")
    found = hashlib.sha256(payload).hexdigest()
    if found != sha256:
        raise DamagedFileError(path, f"was altered: its checksum is {found[:12]}…, the manifest says {sha256[:12]}…")
    return payload


def read_tensors(path: Path, sha256: str, size: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a recorded file, checksum first."""
    return bytes_to_tensors(path, read_checked(path, sha256, size))


def sweep(folder: Path) -> None:
    """Remove what a killed writer left beside its file."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)
