"""One process per run: a lock that dies with its holder.

`flock` is released by the kernel when the process ends, however it ends, so a killed run never has to be unlocked by
hand. The file's text only tells the second process who the first one is. A run that is refused before it has written
anything leaves nothing behind: neither the file nor folders that were made for it.
"""

import contextlib
import errno
import fcntl
import os
import platform
from pathlib import Path
from types import TracebackType

from atmc.common.atomic_files import open_file
from atmc.common.errors import RunError

_held: set[int] = set()  # descriptors of locks


def _let_go() -> None:
    """In a forked child (a process that decodes images): it may outlive a killed run, and must not hold its lock."""
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


class RunLock:
    """Context manager: holds `<folder>/.lock`, or raises `RunError` naming the holder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._handle: int | None = None
        self._made: list[Path] = []  # folders made by this process, the innermost first

    def __enter__(self) -> "RunLock":
        for _ in range(100):
            folder = self.path.parent
            self._made = [path for path in (folder, *folder.parents) if path in self._made or not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = open_file(self.path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # the folder was of a run that was refused, and is gone
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    os.close(handle)
                    raise RunError(
                        f"{self.path} cannot be locked ({error.strerror}): choose a run directory on a file system "
                        "that has locks"
                    ) from None
                holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                os.close(handle)
                raise RunError(
                    f"{self.path.parent} is in use by {holder}: wait for it, or choose another run directory"
                ) from None
            if self._is_in_place(handle):
                break
            os.close(handle)  # it was removed between opening and locking: a lock on it would keep nobody out
        else:
            raise RunError(f"{self.path} cannot be locked: choose a run directory on another file system")
        with contextlib.suppress(OSError):  # the text is a courtesy; a full disk must not keep a run from being locked
            if os.fstat(handle).st_nlink == 1:  # another name of the file is somebody else's
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        self._handle = handle
        _held.add(handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is None:
            return
        if error is not None:
            with contextlib.suppress(OSError):
                if [path.name for path in self.path.parent.iterdir()] == [self.path.name]:
                    self.path.unlink()  # still locked: whoever has opened it finds it gone
                    for made in self._made:
                        made.rmdir()
        if self._handle in _held:  # not where this is a child that was forked from the holder
            _held.discard(self._handle)
            os.close(self._handle)
        self._handle = None

    def _is_in_place(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False
