"""Write reports and figures atomically, and never over a file that is not a report."""

from pathlib import Path

from atmc.common.atomic_files import ForeignFileError, read_file, write_file
from atmc.common.errors import InputError, RunError


def write(path: Path, content: str | bytes) -> Path:
    """Write `content` atomically."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        write_file(path, data, mode=0o666, make=False)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def refuse_foreign(path: Path, marker: str) -> None:
    """Raise if `path` holds a file without `marker` near its start."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file such as {path / 'report.html'} with --out")
    if not path.exists() and not path.is_symlink():
        return
    try:
        start = read_file(path, 1000)
    except ForeignFileError as error:
        raise InputError(f"{error}; choose another name with --out") from None
    except OSError as error:
        raise InputError(f"cannot look at {path}, which the report would replace: {error.strerror}") from error
    if marker.encode() not in start:
        raise InputError(f"{path} was not made by atmc and would be overwritten; choose another name with --out")
