"""Find the images and labels of an image collection on disk, in the layouts that they are published in.

    folder     train/CLASS/*, val/CLASS/* (or CLASS/* alone, split by a hash of the names)
    shards     train-*.tar, val-*.tar in the WebDataset layout
    tiny       tiny-imagenet-200: train/CLASS/images/*, val/images/* with val_annotations.txt
    ilsvrc     ILSVRC2012_img_train.tar (a tar of a tar for each class), ILSVRC2012_img_val.tar and either
               ILSVRC2012_devkit_t12.tar.gz or LOC_val_solution.csv for the labels of the latter

Nothing is unpacked: entries of the tar files of ImageNet are read where they lie.
"""

from __future__ import annotations

import csv
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from atmc.common.errors import InputError
from atmc.data.folder import list_pictures
from atmc.data.image_decoding import SUFFIXES
from atmc.data.shard_index import scan
from atmc.data.shard_writer import Item, from_file, from_range

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT, SOLUTION, ANNOTATIONS = "ILSVRC2012_devkit_t12.tar.gz", "LOC_val_solution.csv", "val_annotations.txt"
Found = tuple[dict[str, list[Item]], tuple[str, ...]]


def find_images(folder: Path) -> Found:
    """The items of each split ("train", "val") under `folder`, and the names of the classes."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder")
    if (folder / TRAIN_TAR).is_file():
        return _ilsvrc(folder)
    if any(folder.glob("train-*.tar")):
        return _shards(folder)
    if (folder / "val" / ANNOTATIONS).is_file():
        return _tiny(folder)
    return _folder(folder)


def _folder(folder: Path) -> Found:
    found = {split: list_pictures(folder, which) for split, which in (("train", "train"), ("val", "test"))}
    classes = tuple(sorted({name for name, _ in found["train"]}))
    if not classes:
        raise InputError(f"{folder} has no sub-folders with images ({', '.join(SUFFIXES)})")
    number = _numbers(classes, (name for pairs in found.values() for name, _ in pairs), folder)
    items = {s: [from_file(f, number[c], str(f.relative_to(folder))) for c, f in pairs] for s, pairs in found.items()}
    return {split: each for split, each in items.items() if each}, classes


def _tiny(folder: Path) -> Found:
    train = list_pictures(folder, "train")
    classes = tuple(sorted({name for name, _ in train}))
    rows = (folder / "val" / ANNOTATIONS).read_text().splitlines()
    pairs = [(row.split("\t")[1], folder / "val" / "images" / row.split("\t")[0]) for row in rows if "\t" in row]
    number = _numbers(classes, (name for name, _ in pairs), folder)
    missing = [file for _, file in pairs if not file.is_file()]
    if missing:
        raise InputError(f"{missing[0]} is missing, and {len(missing) - 1} more")
    items = {"train": train, "val": pairs}
    return {
        s: [from_file(f, number[c], str(f.relative_to(folder))) for c, f in found] for s, found in items.items()
    }, classes


def _shards(folder: Path) -> Found:
    items: dict[str, list[Item]] = {}
    for split in ("train", "val"):
        for path in sorted(folder.glob(f"{split}-*.tar")):
            items.setdefault(split, []).extend(
                from_range(path, offset, size, label, f"{path.name}/{at}{_kind(path, offset)}")
                for at, (offset, size, label) in enumerate(scan(path))
            )
    names = folder / "classes.txt"
    top = max(item.label for found in items.values() for item in found) + 1
    classes = tuple(names.read_text().split("\n")[:-1]) if names.is_file() else tuple(str(c) for c in range(top))
    if len(classes) < top:
        raise InputError(f"{names} has {len(classes)} classes, and the shards have the label {top - 1}")
    return items, classes


def _kind(path: Path, offset: int) -> str:
    """The suffix that the first bytes of an image stand for."""
    with path.open("rb") as file:
        file.seek(offset)
        start = file.read(12)
    kinds = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}
    return next((suffix for mark, suffix in kinds.items() if start.startswith(mark)), ".jpg")


def _ilsvrc(folder: Path) -> Found:
    """ImageNet-1k: classes by WordNet ID, in the order of their names, as is usual."""
    train: list[tuple[str, Item]] = []
    for name, offset, _ in _entries(folder / TRAIN_TAR):
        wnid = PurePosixPath(name).stem
        for inner, at, size in _entries(folder / TRAIN_TAR, offset):
            train.append((wnid, from_range(folder / TRAIN_TAR, at, size, 0, f"{wnid}/{inner}")))
    classes = tuple(sorted({wnid for wnid, _ in train}))
    number = {wnid: i for i, wnid in enumerate(classes)}
    items = {"train": [Item(item.name, number[wnid], item.size, item.read) for wnid, item in train]}
    if (folder / VAL_TAR).is_file():
        labels = _validation_labels(folder)
        found = []
        for name, at, size in _entries(folder / VAL_TAR):
            stem = PurePosixPath(name).stem
            if stem not in labels or labels[stem] not in number:
                raise InputError(f"{folder / VAL_TAR}: {name} has no label among the {len(classes)} training classes")
            found.append(from_range(folder / VAL_TAR, at, size, number[labels[stem]], name))
        items["val"] = found
    return items, classes


def _entries(path: Path, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """(name, offset in the file, size) of the files of a plain tar archive that begins at byte `start` of `path`."""
    try:
        with path.open("rb") as raw:
            raw.seek(start)
            with tarfile.open(fileobj=raw, mode="r:") as archive:
                for member in archive:
                    if member.isfile():
                        yield member.name, member.offset_data, member.size
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{path} is half-finished, damaged or no tar archive: {error}") from error


def _validation_labels(folder: Path) -> dict[str, str]:
    """Stem of each validation image → WordNet ID."""
    if (folder / SOLUTION).is_file():
        with (folder / SOLUTION).open(newline="") as file:
            return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
    if not (folder / DEVKIT).is_file():
        raise InputError(f"{folder} has neither {DEVKIT} nor {SOLUTION}: the validation images have no labels")
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise InputError(f"{DEVKIT} needs SciPy: pip install 'atmc[cli]', or use {SOLUTION}") from error
    content: dict[str, bytes] = {}
    with tarfile.open(folder / DEVKIT) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt"):
                packed = archive.extractfile(member)
                content[name] = packed.read() if packed else b""
    try:
        synsets = loadmat(io.BytesIO(content["meta.mat"]), squeeze_me=True, simplify_cells=True)["synsets"]
        wnid = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
        truth = content["ILSVRC2012_validation_ground_truth.txt"].split()
        return {f"ILSVRC2012_val_{i:08d}": wnid[int(label)] for i, label in enumerate(truth, 1)}
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{folder / DEVKIT} is not the development kit of ILSVRC 2012: {error}") from error


def _numbers(classes: tuple[str, ...], named: Iterator[str], folder: Path) -> dict[str, int]:
    number = {name: i for i, name in enumerate(classes)}
    odd = next((name for name in named if name not in number), None)
    if odd is not None:
        raise InputError(f"{folder}: class {odd!r} has no training images")
    return number


def image_folder_in(top: Path) -> Path:
    """The folder that holds `train`, at `top` or below: archives have it one or two levels down."""
    wanted = re.compile(r"train(-.*\.tar)?|ILSVRC2012_img_train\.tar")
    for depth in ("", "*", "*/*"):
        for folder in sorted(top.glob(depth)) if depth else [top]:
            if folder.is_dir() and any(wanted.fullmatch(entry.name) for entry in folder.iterdir()):
                return folder
    return top
