"""Read files by name from a folder, a tar archive or a Debian package."""

from __future__ import annotations

import lzma
import tarfile
import tempfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from atmc.common.errors import InputError
from atmc.data.checked_files import Progress, silent
from atmc.data.fetch.packages import unpack_deb

LARGEST = 256 << 20  # no file of the data sets read here is larger; a crafted archive cannot fill the memory


def read_archive(path: Path, wanted: Collection[str], progress: Progress = silent) -> dict[str, bytes]:
    """File name → bytes for each of the `wanted` names found in `path`, at whatever depth.

    Tar archives are read in one pass and never unpacked to disk. The caller checks the bytes by their checksums.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_dir():
        return _from_folder(path, wanted, progress)
    if not path.is_file():
        raise InputError(f"{path} is neither a file nor a folder")
    if path.suffix == ".deb":
        with tempfile.TemporaryDirectory() as scratch:
            return _from_folder(unpack_deb(path, Path(scratch)), wanted, progress)
    return _from_tar(path, wanted, progress)


def _from_folder(path: Path, wanted: Collection[str], progress: Progress) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for file in sorted(path.rglob("*"), key=lambda p: (len(p.parts), p)):
        if file.name in wanted and file.name not in found and file.is_file():
            size = file.stat().st_size
            if size > LARGEST:
                raise InputError(f"{file} is {size:,} bytes, more than any file of this data set")
            progress(f"read {file.name}", 0, size)
            found[file.name] = file.read_bytes()
    return found


def _from_tar(path: Path, wanted: Collection[str], progress: Progress) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    total = path.stat().st_size
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r|*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in wanted or name in found or not member.isfile():
                    continue
                if member.size > LARGEST:
                    raise InputError(f"{path}: {name} claims {member.size:,} bytes, more than this data set's files")
                file = archive.extractfile(member)
                if file is not None:
                    found[name] = file.read()
                progress(f"read {path.name}", raw.tell(), total)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise InputError(f"{path} is half-finished, damaged or no tar archive: {error}") from error
    return found
