"""A run's files: written whole (`common/atomic_files.py`), and checked when read.

Everything a run keeps goes through `write_bytes`. A reader therefore never meets half a file after a crash; what it can
still meet is a disk or a person that changed one, and for that every file has a SHA-256 in the manifest. Tensors are
stored as safetensors and everything else as JSON, so that reading a hostile file cannot run code.
"""

import contextlib
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from atmc.common.atomic_files import ForeignFileError, disk_full, is_full, pieces, read_file, write_file
from atmc.common.errors import RunError

# One metadata key only: safetensors writes several in an order that changes from run to run, and equal samples must
# have equal hashes.
_META = "atmc"


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


def write_bytes(path: Path, payload: bytes, root: Path | None = None) -> FileRecord:
    """Put `payload` at `path` such that a crash at any moment leaves the old file or the new one, whole.

    No link below `root` is followed, nor any in the run that `path` is in the folder of a chain of.
    """
    try:
        write_file(path, payload, root=root)
    except OSError as error:
        if is_full(error):
            raise disk_full(path) from error
        raise
    return FileRecord(path.name, hashlib.sha256(payload).hexdigest(), len(payload))


def run_of(folder: Path) -> Path:
    """The run directory that a folder with a manifest belongs to: its own, or two above the folder of a chain."""
    return folder.parents[1] if folder.parent.name == "chains" else folder


def sha256_of(path: Path) -> tuple[str, int]:
    """SHA-256 and length of a file, read in pieces."""
    digest = hashlib.sha256()
    size = 0
    try:
        for chunk in pieces(path):
            digest.update(chunk)
            size += len(chunk)
    except FileNotFoundError:
        raise DamagedFileError(path, "is missing, though the manifest lists it") from None
    except ForeignFileError as error:
        raise DamagedFileError(path, error.reason) from None
    return digest.hexdigest(), size


def problem(path: Path, sha256: str, size: int) -> str | None:
    """What is wrong with the file at `path`, in words, or None where it is what was written."""
    try:
        with contextlib.suppress(FileNotFoundError):
            if (length := path.lstat().st_size) != size and path.is_file() and not path.is_symlink():
                return f"is torn: {length} bytes instead of {size}"  # however long it is, it need not be read
        found, _ = sha256_of(path)
    except DamagedFileError as error:
        return error.reason
    except OSError as error:
        return f"cannot be read: {error.strerror}"
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
    except (SafetensorError, ValueError, KeyError, AttributeError, struct.error, RecursionError) as error:
        raise DamagedFileError(path, f"is not a tensor file ({error})") from error
    if not isinstance(meta, dict):
        raise DamagedFileError(path, "is not a tensor file (what is said about it is no table)")
    return tensors, meta


def read_checked(path: Path, sha256: str, size: int) -> bytes:
    """The bytes of a recorded file, or `DamagedFileError` naming it."""
    try:
        payload = read_file(path)
    except FileNotFoundError:
        raise DamagedFileError(path, "is missing, though the manifest lists it") from None
    except ForeignFileError as error:
        raise DamagedFileError(path, error.reason) from None
    except OSError as error:
        raise DamagedFileError(path, f"cannot be read: {error.strerror}") from None
    if len(payload) != size:
        raise DamagedFileError(path, f"is torn: {len(payload)} bytes instead of {size}")
    found = hashlib.sha256(payload).hexdigest()
    if found != sha256:
        raise DamagedFileError(path, f"was altered: its checksum is {found[:12]}…, the manifest says {sha256[:12]}…")
    return payload


def read_tensors(path: Path, sha256: str, size: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a recorded file, checksum first."""
    return bytes_to_tensors(path, read_checked(path, sha256, size))
