"""Check files of data sets against published sizes and checksums."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from atmc.common.errors import InputError

Progress = Callable[[str, int, int | None], None]
"""Called with the stage, the bytes done, and the total (None if unknown)."""


def silent(stage: str, done: int, total: int | None) -> None:
    """A progress callback that does nothing."""


@dataclass(frozen=True)
class Expected:
    """A file as its publisher made it."""

    name: str
    size: int
    digest: str
    algorithm: str = "md5"  # as published for CIFAR-10; enough against damage

    def fault_of(self, data: bytes) -> str | None:
        """What is wrong with `data`, or None."""
        if len(data) != self.size:
            return f"{self.name} is incomplete or altered: {len(data):,} bytes, expected {self.size:,}"
        found = hashlib.new(self.algorithm, data, usedforsecurity=False).hexdigest()
        if found != self.digest:
            return f"{self.name} is altered: {self.algorithm.upper()} {found}, expected {self.digest}"
        return None

    def read(self, directory: Path) -> bytes:
        """The bytes of the file in `directory`, checked; an InputError names the file and what is wrong with it."""
        path = directory / self.name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise InputError(f"{path} is missing") from None
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        fault = self.fault_of(data)
        if fault:
            raise InputError(f"{directory}: {fault}")
        return data


def faults(directory: Path, files: Iterable[Expected]) -> dict[str, str]:
    """File name → fault, for every file that is missing, half-finished or altered."""
    found = {}
    for file in files:
        try:
            file.read(directory)
        except InputError as error:
            found[file.name] = str(error)
    return found


def sweep(directory: Path, age: float = 86_400.0) -> None:
    """Remove what a killed fetch left more than `age` seconds ago (a younger one may be running)."""
    for leftover in [*directory.glob(".fetch-*"), *directory.glob(".*.tmp")]:
        if time.time() - leftover.stat().st_mtime > age:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
