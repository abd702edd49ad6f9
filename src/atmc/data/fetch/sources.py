"""Fetch the files of a data set from the first source that works; store them only if all have their checksums."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from atmc.common.atomic_files import write_file
from atmc.common.errors import InputError, RunError
from atmc.data.checked_files import Expected, Progress, faults, sweep


def fetch_files(
    name: str,
    directory: Path,
    files: Sequence[Expected],
    source: Path | None,
    ways: Sequence[Callable[[Path], Path]],
    read: Callable[[Path], Mapping[str, bytes]],
    progress: Progress,
) -> Path:
    """Make `files` present and right in `directory`, which is returned.

    Args:
        source: a folder or archive to use; without one each of `ways` is tried.
        ways: each puts a folder or archive into a scratch folder and returns it.
        read: the files' content by name, from a folder or archive.
    """
    if not faults(directory, files):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    sweep(directory)

    def store(found: Path) -> Path:
        content = read(found)
        for file in files:
            fault = file.fault_of(content[file.name]) if file.name in content else f"{file.name} is missing"
            if fault:
                raise InputError(f"{found}: {fault}")
        done = 0
        for file in files:
            write_file(directory / file.name, content[file.name])
            done += file.size
            progress(f"store {name}", done, sum(file.size for file in files))
        return directory

    if source is not None:
        return store(source)
    failures = []
    for way in ways:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
            try:
                return store(way(Path(scratch)))
            except (RunError, InputError) as error:
                failures.append(str(error))
                progress(f"not this way: {error}", 0, None)
    raise RunError(f"{name} could not be fetched: {'; '.join(failures)}. Name a copy with --from PATH")
