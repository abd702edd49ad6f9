"""Files that are whole or not there, in folders that may be anybody's. Everything that atmc writes goes through here.

A file is written beside its place under a name that nobody can foresee, synced, and renamed: a crash at any moment
leaves the old file or the new one, whole. Names below `root` are opened one by one, relative to the descriptor of the
folder before, and links are not followed: a run directory from a stranger cannot make atmc write, cut or delete
anything outside it. What is read must be a regular file: a FIFO or a device would never end.
"""

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from atmc.common.errors import RunError

_CHUNK = 4 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SUFFIX = ".tmp"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Opening a FIFO must not wait for its other end.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_LARGE, _HOLLOW = 256 << 20, 64  # a larger file of which less than a 64th is on the disk is a hole, not data


_durable = ContextVar("durable", default=True)


class ForeignFileError(RunError):
    """What is at `path` is none of atmc's: a link, or no regular file; `reason` says which."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


# -- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder that is removed at the end. What the block writes is not synced, since nobody could read it later."""
    before = _durable.set(False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
    finally:
        _durable.reset(before)


def _to_disk(handle: int) -> None:
    if _durable.get():
        os.fsync(handle)


@contextmanager
def writing(path: Path, *, root: Path | None = None, mode: int = 0o644, make: bool = True) -> Iterator[int]:
    """A descriptor to write to; what was written is at `path` when the block ends, and nothing where it fails.

    Folders that are missing are made, unless `make` is false. With `root`, no link below it is followed.
    """
    with _folder_of(path, root, make) as folder:
        beside = f".{path.name[:100]}.{secrets.token_hex(8)}{_SUFFIX}"
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, mode, dir_fd=folder)
        try:
            try:
                yield handle
                _to_disk(handle)
            finally:
                os.close(handle)
            os.replace(beside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            raise
        _to_disk(folder)  # a rename is only on disk once its folder is


def write_file(path: Path, payload: bytes, *, root: Path | None = None, mode: int = 0o644, make: bool = True) -> None:
    """Put `payload` at `path`, whole or not at all."""
    with writing(path, root=root, mode=mode, make=make) as handle:
        write_all(handle, payload)


def write_all(handle: int, payload: bytes) -> None:
    """All of `payload`, in as many pieces as the system likes."""
    view = memoryview(payload)
    while view:
        view = view[os.write(handle, view[:_CHUNK]) :]


def append(path: Path, payload: bytes, *, root: Path | None = None) -> None:
    """Add `payload` to the end of a file, which is made where there is none; its folder must be there."""
    with _folder_of(path, root) as folder:
        handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, folder)
        try:
            write_all(handle, payload)
        finally:
            os.close(handle)


def sync(path: Path, *, root: Path | None = None) -> None:
    """Make what was appended durable; nothing where there is no such file."""
    with contextlib.suppress(FileNotFoundError), _folder_of(path, root) as folder:
        handle = open_file(path, os.O_RDONLY, folder)
        try:
            _to_disk(handle)
        finally:
            os.close(handle)


def remove(path: Path, *, root: Path | None = None) -> None:
    """Remove a file (or a link itself), where there is one."""
    with contextlib.suppress(FileNotFoundError), _folder_of(path, root) as folder:
        os.unlink(path.name, dir_fd=folder)


def sweep(folder: Path, *, root: Path | None = None) -> None:
    """Remove what killed writers left beside their files."""
    with contextlib.suppress(FileNotFoundError), _folder_of(folder / "any", root) as handle:
        for name in os.listdir(handle):
            if _is_left(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=handle)


def disk_full(path: Path) -> RunError:
    """The one line for a disk that has no room."""
    return RunError(
        f"no space left to write {path}: free some and run the same command again; what was complete is kept"
    )


def is_full(error: OSError) -> bool:
    """Whether `error` says that there is no room (disk, quota or file size limit)."""
    return error.errno in _FULL


# -- reading ---------------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; `ForeignFileError` for a link, a FIFO, a device, a folder or a hole."""
    handle = open_file(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def read_file(path: Path, most: int | None = None) -> bytes:
    """The bytes of a regular file, or the first `most` of them."""
    with reading(path) as handle:
        parts, left = [], os.fstat(handle).st_size if most is None else most
        while left > 0 and (part := os.read(handle, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def pieces(path: Path) -> Iterator[bytes]:
    """The bytes of a regular file, some at a time."""
    with reading(path) as handle:
        while part := os.read(handle, _CHUNK):
            yield part


def open_file(path: Path, flags: int, folder: int | None = None) -> int:
    """Open a regular file, by its name in `folder` where that is given; anything else is refused by its kind."""
    try:
        handle = os.open(path if folder is None else path.name, flags | _FILE, 0o644, dir_fd=folder)
    except OSError as error:
        reason = {
            errno.ELOOP: "is a link, which no file of atmc's is",
            errno.ENXIO: "is a FIFO or a socket, not a file",
            errno.EISDIR: "is a folder, not a file",
        }.get(error.errno or 0)
        if reason is None:
            raise
        raise ForeignFileError(path, reason) from None
    try:
        if reason := _odd(os.fstat(handle)):
            raise ForeignFileError(path, reason)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _odd(found: os.stat_result) -> str | None:
    if stat.S_ISDIR(found.st_mode):
        return "is a folder, not a file"
    if not stat.S_ISREG(found.st_mode):
        return f"is {_KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}, not a file"
    if found.st_size > _LARGE and found.st_blocks * 512 < found.st_size // _HOLLOW:
        return f"is a hole of {found.st_size:,} bytes, not data"
    return None


# -- folders ---------------------------------------------------------------------------------------------------------


@contextmanager
def _folder_of(path: Path, root: Path | None, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder that `path` is in; below `root` no link is followed on the way."""
    base = path.parent if root is None else root
    inner = () if root is None else path.parent.relative_to(root).parts
    if make:
        base.mkdir(parents=True, exist_ok=True)
    handle = os.open(base, _FOLDER)
    try:
        for depth, part in enumerate(inner, start=1):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            try:
                deeper = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                raise ForeignFileError(base.joinpath(*inner[:depth]), "is a link or a file, not a folder") from None
            os.close(handle)
            handle = deeper
        yield handle
    finally:
        os.close(handle)


def refuse_foreign(folder: Path, names: frozenset[str]) -> None:
    """`ForeignFileError` where any of these names in `folder`, or anything below one, is neither a file nor a folder.

    What else a person keeps there is no business of ours.
    """
    try:
        ours = [entry for entry in os.scandir(folder) if entry.name in names or _is_left(entry.name)]
    except FileNotFoundError:
        return
    while ours:
        entry = ours.pop()
        kind = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind):
            ours += os.scandir(entry.path)
        elif not stat.S_ISREG(kind):
            what = "a link" if stat.S_ISLNK(kind) else _KINDS.get(stat.S_IFMT(kind), "something else")
            said = f"is {what}, which a run never has: remove it, or leave this run alone"
            raise ForeignFileError(Path(entry.path), said)


def _is_left(name: str) -> bool:
    """Whether a name is that of a file which was being written."""
    return name.startswith(".") and name.endswith(_SUFFIX)
