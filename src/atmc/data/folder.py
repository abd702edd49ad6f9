"""A folder of images, a sub-folder for each class.

Either `PATH/train/CLASS/…` and `PATH/test/CLASS/…` (or `val`, `validation`), or `PATH/CLASS/…` alone: then a fifth of
the images is the test split, chosen by a hash of each file's name, so that adding images never moves one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from atmc.common.errors import InputError
from atmc.data.image_decoding import SUFFIXES, View, naming, upright_size
from atmc.data.streamed_source import Encoded

TEST_NAMES = ("test", "val", "validation")
LARGEST_SIDE = 224  # of images whose sizes differ, without a given size


class FolderSource(Encoded):
    """The images of one split, sorted by class and name, resized to one size."""

    def __init__(
        self,
        name: str,
        path: Path,
        split: str,
        size: tuple[int, int] | None = None,
        channels: int = 3,
        crop: float = 1.0,
        keep: int = 0,
    ) -> None:
        if not path.is_dir():
            raise InputError(f"{name}: {path} is no folder")
        self.name, self.split = name, split
        train = list_pictures(path, "train")
        files = train if split == "train" else list_pictures(path, "test")
        self.classes = tuple(sorted({folder for folder, _ in train}))
        number = {folder: i for i, folder in enumerate(self.classes)}
        for folder, file in files:
            if folder not in number:
                raise InputError(f"{name}: {file} is of class {folder!r}, which has no training pictures")
        if not files:
            raise InputError(f"{name}: no pictures ({', '.join(SUFFIXES)}) for the {split} split under {path}")
        self._files = [file for _, file in files]
        self.labels = torch.tensor([number[folder] for folder, _ in files], dtype=torch.int64)
        height, width = size or _common_size([file for _, file in train])
        self._dress(View(height, width, channels, crop), keep)
        seal = hashlib.sha256(repr(self.view).encode())
        for file in self._files:
            seal.update(f"{file.relative_to(path)}\0{file.stat().st_size}\n".encode())
        self.digest = seal.hexdigest()

    def raw(self, index: int) -> tuple[bytes, str]:
        file = self._files[index]
        try:
            return file.read_bytes(), str(file)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from error


def list_pictures(path: Path, split: str) -> list[tuple[str, Path]]:
    """(class, file) of a split, sorted."""
    if (path / "train").is_dir():
        names = ("train",) if split == "train" else TEST_NAMES
        return [pair for name in names if (path / name).is_dir() for pair in _pictures(path / name)]
    return [(folder, file) for folder, file in _pictures(path) if _is_test(folder, file) == (split == "test")]


def _pictures(path: Path) -> list[tuple[str, Path]]:
    return [
        (folder.name, file)
        for folder in sorted(path.iterdir())
        if folder.is_dir()
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.is_file()
    ]


def _is_test(folder: str, file: Path) -> bool:
    return hashlib.sha256(f"{folder}/{file.name}".encode()).digest()[0] % 5 == 0


def _common_size(files: list[Path]) -> tuple[int, int]:
    """The common size of the training images, or a square of their median shorter side, at most 224."""
    sizes = []
    for file in files:
        with naming(file):
            sizes.append(upright_size(file))
    if len(set(sizes)) == 1:
        width, height = sizes[0]
        return height, width
    side = min(LARGEST_SIDE, int(np.median([min(size) for size in sizes])))
    return side, side
