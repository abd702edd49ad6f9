"""Writing what a person looks at: beside and renamed into place, and never over a file that is somebody else's."""

import os
import tempfile
from pathlib import Path

from atmc.common.errors import InputError, RunError


def write(path: Path, content: str | bytes) -> Path:
    """Write `content` so that a reader sees the old file or the new one, never half of one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def refuse_foreign(path: Path, marker: str) -> None:
    """Raise if `path` holds a file that does not carry our marker near its start."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file such as {path / 'report.html'} with --out")
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            start = file.read(1000)
    except OSError as error:
        raise InputError(f"cannot look at {path}, which the report would replace: {error.strerror}") from error
    if marker.encode() not in start:
        raise InputError(f"{path} was not made by atmc and would be overwritten; choose another name with --out")
