"""The manifest: what a run is made of, with a checksum for every file, and the one place where a change becomes true.

Files are written first and recorded last, so a crash in between leaves a file that nobody lists: it is as if it had
never been written, and the run, going on from its checkpoint, writes it again. The manifest vouches for itself with a
checksum of its own and is kept twice, so that one bad block cannot make a run forget its samples.
"""

import hashlib
import json
import platform
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Any

import numpy
import safetensors
import torch

import atmc
from atmc.common.atomic_files import ForeignFileError, read_file, remove
from atmc.common.errors import InputError
from atmc.storage.files import DamagedFileError, FileRecord, run_of, write_bytes

FORMAT = 1
NAME = "manifest.json"
MIRROR = "manifest.copy.json"


def versions() -> dict[str, str]:
    """What made the run."""
    return {
        "atmc": atmc.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "cuda": str(torch.version.cuda),
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """Where it was made."""
    found: dict[str, Any] = {"device": device.type, "machine": platform.machine(), "system": sys.platform}
    found["torch"] = torch.__version__
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    else:
        found |= {"threads": torch.get_num_threads(), "instructions": torch.backends.cpu.get_cpu_capability()}
    return found


class Manifest:
    """The manifest of one folder. `values` is plain JSON; `commit` makes it durable."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.folder = folder
        self.values = values
        self.notes: list[str] = []

    @classmethod
    def create(cls, folder: Path, **values: Any) -> "Manifest":
        """A manifest for a new folder; nothing is on disk until `commit`."""
        return cls(folder, {"format": FORMAT, "versions": versions(), "files": {}, "samples": [], **values})

    @classmethod
    def exists(cls, folder: Path) -> bool:
        return (folder / NAME).exists() or (folder / MIRROR).exists()

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """The manifest of `folder`, or its copy where the first is damaged (then `notes` says so)."""
        notes: list[str] = []
        for name in (NAME, MIRROR):
            try:
                manifest = cls(folder, _read(folder / name))
            except DamagedFileError as error:
                notes.append(str(error))
                continue
            manifest.notes = notes
            return manifest
        raise DamagedFileError(folder / NAME, f"cannot be read, nor its copy: {'; '.join(notes)}")

    def commit(self) -> None:
        """Write the manifest; from here on, what it lists is part of the run."""
        body = {key: value for key, value in self.values.items() if key != "checksum"}
        self.values["checksum"] = _checksum(body)
        payload = (json.dumps(self.values, indent=1, sort_keys=True) + "\n").encode()
        self.write(NAME, payload)
        self.write(MIRROR, payload)

    def write(self, relative: str, payload: bytes) -> FileRecord:
        """Put a file into the folder, following no link in the run."""
        return write_bytes(self.locate(relative), payload, run_of(self.folder))

    def remove(self, relative: str) -> None:
        """Remove a file of the folder, following no link in the run."""
        remove(self.locate(relative), root=run_of(self.folder))

    def record(self, relative: str, written: FileRecord) -> dict[str, Any]:
        """Note the checksum of a file; true once committed."""
        entry = {"sha256": written.sha256, "bytes": written.bytes}
        self.values["files"][relative] = entry
        return entry

    def forget(self, relative: str) -> None:
        self.values["files"].pop(relative, None)

    def locate(self, relative: str) -> Path:
        """The path of a recorded file. A manifest is only data: it may not point outside its folder."""
        parts = PurePosixPath(relative)
        if parts.is_absolute() or ".." in parts.parts:
            raise DamagedFileError(self.folder / NAME, f"lists {relative!r}, which is outside the run")
        return self.folder / parts

    def entry(self, relative: str) -> tuple[Path, str, int]:
        """Path, checksum and size of a recorded file."""
        found = self.values["files"].get(relative)
        if found is None:
            raise DamagedFileError(self.folder / NAME, f"does not list {relative}")
        return self.locate(relative), found["sha256"], found["bytes"]


def binding_of(recipe: str) -> dict[str, str]:
    """What ties the chains of a new run together: a random name of the run, and what is sampled, as a digest."""
    return {"run": secrets.token_hex(16), "recipe": hashlib.sha256(recipe.encode()).hexdigest()}


def not_of(values: dict[str, Any], chain: int, binding: Mapping[str, str] | None) -> str | None:
    """Why a manifest is not that of chain `chain` of the run with this `binding`, in words; None where it is."""
    own = values.get("binding") or {}
    number = values.get("chain", chain)
    for key, other in (("recipe", "a chain of a run of another recipe"), ("run", "a chain of another run")):
        if binding is not None and own.get(key) != binding.get(key):
            return f"holds {other}, not chain {chain} of this one"
    return None if number == chain else f"holds a copy of chain {number}, not chain {chain}"


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_file(path))
    except FileNotFoundError:
        raise DamagedFileError(path, "is missing") from None
    except ForeignFileError as error:
        raise DamagedFileError(path, error.reason) from None
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(path, f"is not JSON ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise DamagedFileError(path, "is not a manifest")
    # Before the checksum: a newer version may sum differently, and its reader deserves the better message.
    if values["format"] > FORMAT:
        made = values.get("versions", {}).get("atmc", "a newer version")
        raise InputError(
            f"{path.parent} was written by atmc {made} (format {values['format']}); this is atmc {atmc.__version__}, "
            f"which reads up to format {FORMAT}: upgrade atmc to use it"
        )
    body = {key: value for key, value in values.items() if key != "checksum"}
    if values.get("checksum") != _checksum(body):
        raise DamagedFileError(path, "was altered: it does not match its own checksum")
    for key, fits in _FITS.items():
        if not fits(values.get(key)):
            raise DamagedFileError(path, f"has a right checksum, but its {key!r} cannot be used")
    return values


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind: a type (a truth value is no number), or an own test."""
    if isinstance(kind, type | UnionType):
        return isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    return bool(kind(value))


def _count(value: Any) -> bool:
    """A number of steps, bytes or the like, with room to calculate."""
    return _is(value, int) and 0 <= value < 2**53


def _table(**kinds: Any) -> Callable[[Any], bool]:
    """An object that has these keys, of these kinds."""
    return lambda v: isinstance(v, dict) and all(key in v and _is(v[key], kind) for key, kind in kinds.items())


def _may_have(**kinds: Any) -> Callable[[Any], bool]:
    """An object in which these keys, where there are any, are of these kinds."""
    return lambda v: isinstance(v, dict) and all(key not in v or _is(v[key], kind) for key, kind in kinds.items())


def _list(*tests: Any) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, list) and all(_is(item, test) for item in v for test in tests)


def _strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _or_none(test: Any) -> Callable[[Any], bool]:
    return lambda v: v is None or _is(v, test)


_NUMBER = int | float
_DATA = _table(
    name=str,
    digests=lambda v: _strings(v) and "train" in v,
    examples=_count,
    shape=_list(lambda n: _count(n) and 0 < n < 10**6),
    classes=_list(str),
    mean=_list(_NUMBER),
    std=_list(_NUMBER),
)
_SAMPLE = _may_have(step=_count, cycle=_count, chain=_count, epoch=_NUMBER, temperature=_NUMBER)
# Whatever reads a manifest may rely on these. A checksum only shows that nothing changed since; somebody's own tool, or
# somebody's malice, can write anything with a right one.
_FITS: dict[str, Callable[[Any], bool]] = {
    "files": lambda v: isinstance(v, dict) and all(map(_table(sha256=str, bytes=_count), v.values())),
    "samples": _list(_table(file=str, index=_count), _SAMPLE),
    "lost": _or_none(_list(_table(file=str, index=_count, reason=str), _SAMPLE)),
    "checkpoints": _or_none(
        _list(_table(number=_count, file=str, step=_count, metrics=_table(bytes=_count, sha256=str)))
    ),
    "sessions": _or_none(_list(_may_have(hardware=dict))),
    "versions": _strings,
    "data": _or_none(_DATA),  # a chain's own manifest has none: the run's has it
    "network": _or_none(_strings),
    "recipe": _or_none(str),
    "status": _or_none(str),
    "gave_up": _or_none(str),
    "binding": _or_none(_strings),
    "chain": _or_none(_count),
}
