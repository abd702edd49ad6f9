"""metrics.jsonl: one JSON object per line, appended as the run goes, cut back when a run resumes.

Rows have an `event`: `start`, `log` (a stretch of steps), `sample`, `rollback`, `damage`, `end`. A checkpoint remembers
how long the file was and what its bytes summed to, so that a resumed run first cuts off what belongs to steps that are
going to be made again. Readers skip a torn last line: it is one that was being written when the machine died.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atmc.storage.files import disk_full, is_full


class Journal:
    """The writing side. Opens at the end of what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._size = 0

    def resume(self, size: int, sha256: str) -> str | None:
        """Cut the file back to its first `size` bytes; returns what was wrong with them, in words, if anything."""
        kept = self.path.read_bytes()[:size] if self.path.exists() else b""
        found = hashlib.sha256(kept)
        complaint = wrong(self.path, size, sha256)
        if self.path.exists():
            with self.path.open("r+b") as stream:
                stream.truncate(len(kept))
        self._digest, self._size = found, len(kept)
        return complaint

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row. A number that is not finite becomes null, which is what JSON has for it."""
        line = (json.dumps(_plain(row)) + "\n").encode()
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                left = memoryview(line)
                while left:
                    left = left[os.write(handle, left) :]
            finally:
                os.close(handle)
        except OSError as error:
            if is_full(error):
                raise disk_full(self.path) from error
            raise
        self._digest.update(line)
        self._size += len(line)

    def mark(self) -> dict[str, Any]:
        """Make what was written durable, and say how long it is: for a checkpoint."""
        if self.path.exists():
            handle = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}


def wrong(path: Path, size: int, sha256: str) -> str | None:
    """What is wrong with the first `size` bytes of a metrics file, which a checkpoint vouches for, if anything."""
    kept = path.read_bytes()[:size] if path.exists() else b""
    if len(kept) < size:
        return f"{path}: lost its end ({len(kept)} of {size} bytes are left)"
    if hashlib.sha256(kept).hexdigest() != sha256:
        return f"{path}: was altered after it was written"
    return None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
