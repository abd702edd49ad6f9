"""Imagenette, Imagewoof, Tiny-ImageNet, imagenet-mini: subsets of ImageNet that fit in memory, stored as tar shards.

`atmc data get NAME --from PATH` takes a folder of image files, a folder of tar shards, or the official archive. The
number of images of each split must be the published one. What is verified beyond that: the MD5 of an official archive
where one is published, or the digest of the content where the collection is one of those seen before.
Images of ImageNet are for non-commercial research (image-net.org); none come with this package.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from atmc.common.errors import InputError
from atmc.data.checked_files import Progress, silent
from atmc.data.checked_files import sweep as sweep_scratch
from atmc.data.dataset import ImageData, Named
from atmc.data.dataset_names import Name
from atmc.data.fetch.download import download
from atmc.data.image_decoding import SUFFIXES
from atmc.data.image_layouts import ANNOTATIONS, find_images, image_folder_in
from atmc.data.shard_writer import faults_of, read_record, write_shards
from atmc.data.shards import ShardSource
from atmc.data.streamed_source import PHOTO_MEAN, PHOTO_STD

SHARD_MB = 64.0
LARGEST_ARCHIVE = 4 << 30


@dataclass(frozen=True)
class Release:
    """One collection: what it must hold, and the checksums that are known."""

    name: str
    counts: dict[str, int]
    side: int  # of its images, or the usual one where they differ
    classes: tuple[str, ...]  # in the order of their WordNet IDs; empty: the IDs themselves
    url: str  # empty: there is none, and the files must be given
    archives: dict[str, str] = field(default_factory=dict)  # published MD5 by the name of an official archive
    digests: dict[str, tuple[str, str]] = field(default_factory=dict)  # content of train and val of copies seen before


IMAGENETTE = Release(
    "imagenette",
    {"train": 9_469, "val": 3_925},
    224,
    ("tench", "English springer", "cassette player", "chain saw", "church", "French horn", "garbage truck", "gas pump",
     "golf ball", "parachute"),
    "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
    {
        "imagenette2.tgz": "fe2fc210e6bb7c5664d602c3cd71e612",
        "imagenette2-320.tgz": "3df6f0d01a2c9592104656642f5e78a3",
        "imagenette2-160.tgz": "e793b78cc4c9e9a4ccc0c1155377a412",
    },
    digests={
        "squashed to 224 × 224, of github.com/thunderInfy/imagenette": (
            "0d8c9353746139bf6e337572526abb8bb11d07a22a0356a98f9eb29beadc546e",
            "4dade70268c19183d85e1760c83cbbbb6c01863eb3a17380d28d881a515dfb33",
        ),
    },
)  # fmt: skip
IMAGEWOOF = Release(
    "imagewoof",
    {"train": 9_025, "val": 3_929},
    224,
    ("Shih-Tzu", "Rhodesian ridgeback", "beagle", "English foxhound", "Border terrier", "Australian terrier",
     "golden retriever", "Old English sheepdog", "Samoyed", "dingo"),
    "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz",
    digests={
        "squashed to 224 × 224, of github.com/thunderInfy/imagewoof": (
            "681bf61d3bb0b6ce4acb4738dcd4e2bdb245e77d11d8b9d1776ce6d967984739",
            "18ade7fa201d2b333f016f15d228394d6d573bb9b6653d429b3049647c4699b6",
        ),
    },
)  # fmt: skip
TINY = Release(
    "tiny-imagenet",
    {"train": 100_000, "val": 10_000},
    64,
    (),
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    digests={
        "the files of github.com/seshuad/IMagenet": (
            "e7e7f4a6bf2bc387447d14da27aed009a9f154002b04c9ca843ad62ba32dd229",
            "e01680b6cc70363830ad2ed6c3bc107e11ad444914113b172bab6ad731f12918",
        ),
    },
)

MINI = Release(
    "imagenet-mini",
    {"train": 34_745, "val": 3_923},
    224,
    (),
    "",
    digests={
        "training images cut to 224 × 224, of github.com/torchlurk/dataviz-project": (
            "92bb4875d9215c213d39b74f378e4085a047e46eca9894b1cc79e32e9bd1eaca",
            "3c2b7b1de479594284138716a0fe8c96da1d6b297641b9dc2c6f199c76ffff36",
        ),
    },
)


def fetch(root: Path, release: Release, source: Path | None = None, progress: Progress = silent) -> Path:
    """Make the shards of a collection present and right, from `source` or from its home page."""
    directory = root / release.name
    record = read_record(directory)
    if record is not None and not faults_of(directory, record, deep=True):
        return directory
    if source is None and not release.url:
        raise InputError(f"{release.name} cannot be downloaded: run `atmc data get {release.name} --from PATH`")
    directory.mkdir(parents=True, exist_ok=True)
    sweep_scratch(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
        found = source or download(release.url, Path(scratch), largest=LARGEST_ARCHIVE, progress=progress)
        known = ""
        if found.is_file():
            known = _check_archive(found, release, progress)
            found = _unpack(found, Path(scratch) / "images", progress)
        splits, classes = find_images(image_folder_in(found))
        for split, count in release.counts.items():
            if len(splits.get(split, ())) != count:
                raise InputError(
                    f"{found}: {len(splits.get(split, ())):,} {split} images, and {release.name} has {count:,}"
                )
        if release.classes and len(classes) != len(release.classes):
            raise InputError(f"{found}: {len(classes)} classes, and {release.name} has {len(release.classes)}")
        record = write_shards(directory, splits, classes, SHARD_MB, progress)
    seen = {digests: what for what, digests in release.digests.items()}
    known = known or seen.get(tuple(record["splits"][split]["digest"] for split in ("train", "val")), "")
    progress(f"verified: {known}" if known else "verified by its counts alone: no checksum of this copy is known", 0, 0)
    return directory


def load(root: Path, split: str, release: Release, options: Name | None = None) -> ImageData:
    """A split in memory, decoded to squares of one size (`?size=128`); normalised by ImageNet's statistics."""
    return open_shards(root, split, release, options).in_memory((PHOTO_MEAN, PHOTO_STD))


def open_shards(root: Path, split: str, release: Release, options: Name | None = None) -> ShardSource:
    """A split to be streamed."""
    directory = root / release.name
    record = read_record(directory)
    cure = f"run `atmc data get {release.name} --from PATH`"
    if record is None:
        raise InputError(f"{release.name} is not under {root}: {cure}")
    if wrong := faults_of(directory, record):
        raise InputError(f"{release.name}: {wrong[0]}; {cure}")
    name = release.name if options is None else options.full
    side = release.side if options is None else options.whole("size", release.side)
    cache = 0 if options is None else options.whole("cache", 0)
    pattern = f"{directory}/{{split}}-*.tar"
    source = ShardSource(
        name, pattern, split, (side, side), classes=len(record["classes"]), cache=root / "shard-index", keep=cache
    )
    source.classes = release.classes or tuple(record["classes"])
    return source


def _check_archive(path: Path, release: Release, progress: Progress) -> str:
    """Which official archive this is; one with a published name and another checksum is refused."""
    wanted = release.archives.get(path.name)
    if wanted is None:
        return ""
    progress(f"check {path.name}", 0, path.stat().st_size)
    with path.open("rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != wanted:
        raise InputError(f"{path} is half-finished or altered: MD5 {md5}, expected {wanted}")
    return f"the official {path.name}"


def _unpack(path: Path, into: Path, progress: Progress) -> Path:
    """The images of a tar or zip archive as files, under names that cannot leave the folder."""
    total = path.stat().st_size
    try:
        for name, read in _zip(path) if zipfile.is_zipfile(path) else _tar(path):
            parts = PurePosixPath(name).parts
            wanted = PurePosixPath(name).suffix.lower() in SUFFIXES or parts[-1] == ANNOTATIONS
            if wanted and not any(part in ("..", "/") or part.startswith(".") for part in parts):
                target = into.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(read())
        progress(f"unpack {path.name}", total, total)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path} is half-finished, damaged or no archive of images: {error}") from error
    return into


def _tar(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with tarfile.open(path, mode="r|*") as archive:
        for member in archive:
            if member.isfile():
                file: IO[bytes] | None = archive.extractfile(member)
                yield member.name, lambda file=file: file.read() if file else b""  # type: ignore[misc]


def _zip(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                yield member.filename, lambda member=member: archive.read(member)  # type: ignore[misc]


def state_of(root: Path, release: Release) -> tuple[str, str]:
    """("ready", "absent" or "damaged", what to do) for `atmc data list`: by sizes, without reading the shards."""
    record = read_record(root / release.name)
    if record is None:
        return "absent", f"atmc data get {release.name} --from PATH"
    wrong = faults_of(root / release.name, record)
    return ("damaged", wrong[0]) if wrong else ("ready", "")


def _entry(release: Release, summary: str, classes: int) -> Named:
    return Named(
        name=release.name,
        summary=summary,
        train=release.counts["train"],
        test=release.counts["val"],
        shape=(3, release.side, release.side),
        classes=classes,
        load=lambda root, split, options: load(root, split, release, options),
        fetch=lambda root, source, progress: fetch(root, release, source, progress),
        folder=release.name,
        state=lambda root: state_of(root, release),
        stream=lambda root, split, options: open_shards(root, split, release, options),
    )


ENTRIES = (
    _entry(IMAGENETTE, "photographs of ten easy classes of ImageNet", 10),
    _entry(IMAGEWOOF, "photographs of ten breeds of dogs of ImageNet", 10),
    _entry(TINY, "photographs of 200 classes of ImageNet, 64 × 64", 200),
    _entry(MINI, "photographs of all 1,000 classes of ImageNet", 1000),
)
