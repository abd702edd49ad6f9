"""One process per run: a lock that dies with its holder.

`flock` is released by the kernel when the process ends, however it ends, so a killed run never has to be unlocked by
hand. The file's text only tells the second process who the first one is.
"""

import contextlib
import fcntl
import os
import platform
from pathlib import Path
from types import TracebackType

from atmc.errors import RunError


class RunLock:
    """Context manager: holds `<folder>/.lock`, or raises `RunError` naming the holder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._handle: int | None = None

    def __enter__(self) -> "RunLock":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise RunError(
                f"{self.path.parent} is in use by {holder}: wait for it, or choose another run directory"
            ) from None
        with contextlib.suppress(OSError):  # the text is a courtesy; a full disk must not keep a run from being locked
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        self._handle = handle
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
