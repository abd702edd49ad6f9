"""metrics.jsonl: one JSON object per line, appended as the run goes, cut back when a run resumes.

Rows have an `event`: `start`, `log` (a stretch of steps), `warm` (the end of the warm start), `sample`, `rollback`,
`damage`, `end`. A checkpoint remembers how long the file was and what its bytes summed to, so that a resumed run first
cuts off what belongs to steps that are going to be made again. Readers skip a torn last line: it is one that was being
written when the machine died.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atmc.common.atomic_files import ForeignFileError, append, disk_full, is_full, read_file, sync, write_file

EMPTY = hashlib.sha256().hexdigest()


class Journal:
    """The writing side. Opens at the end of what is there."""

    def __init__(self, path: Path, root: Path | None = None, check: Callable[[], None] | None = None) -> None:
        self.path, self.root = path, root
        self._check = check  # before every write: whether the folder is still there
        self._digest = hashlib.sha256()
        self._size = 0

    def resume(self, size: int, sha256: str) -> str | None:
        """Cut the file back to its first `size` bytes; returns what was wrong with them, in words, if anything."""
        kept = _start(self.path, size)
        complaint = wrong(self.path, size, sha256)
        if self.path.exists() and self.path.stat().st_size != len(kept):
            # Written anew rather than cut: a copy that shares the file (cp -l) keeps its own.
            self._guarded(lambda: write_file(self.path, kept, root=self.root))
        self._digest, self._size = hashlib.sha256(kept), len(kept)
        return complaint

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row. A number that is not finite becomes null, which is what JSON has for it."""
        line = (json.dumps(_plain(row)) + "\n").encode()
        self._guarded(lambda: append(self.path, line, root=self.root))
        self._digest.update(line)
        self._size += len(line)

    def mark(self) -> dict[str, Any]:
        """Make what was written durable, and say how long it is: for a checkpoint."""
        sync(self.path, root=self.root)
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._check is not None:
            self._check()
        try:
            work()
        except OSError as error:
            if is_full(error):
                raise disk_full(self.path) from error
            raise


def _start(path: Path, size: int) -> bytes:
    """The first `size` bytes of a file, or all where it is shorter, or none where it is not there."""
    try:
        return read_file(path, size)
    except FileNotFoundError:
        return b""


def wrong(path: Path, size: int, sha256: str) -> str | None:
    """What is wrong with the first `size` bytes of a metrics file, which a checkpoint vouches for, if anything."""
    try:
        kept = _start(path, size)
    except ForeignFileError as error:
        return str(error)
    if len(kept) < size:
        return f"{path}: lost its end ({len(kept)} of {size} bytes are left)"
    if hashlib.sha256(kept).hexdigest() != sha256:
        return f"{path}: was altered after it was written"
    return None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics file."""
    try:
        lines = read_file(path).split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
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
