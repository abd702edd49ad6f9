"""Data sets by name: load one, open one for streaming, fetch one, list them all.

A name is `digits`, `cifar10`, `fashion-mnist`, `mnist`, or one of a family: `folder:PATH`, `shards:GLOB`,
`synthetic:SHAPE`, with options after a question mark, as in `folder:pictures?size=64&channels=1`. `digits?train=200`
has 200 training images; all others are test images.
"""

from __future__ import annotations

from pathlib import Path

from atmc.common.errors import InputError, RunError
from atmc.common.suggest import did_you_mean
from atmc.data import digits, synthetic
from atmc.data.checked_files import Progress, faults, silent
from atmc.data.dataset import DatasetInfo, ImageData, default_root
from atmc.data.dataset_names import FAMILIES, Name
from atmc.data.fetch import cifar10, mnist
from atmc.data.folder import FolderSource
from atmc.data.shards import ShardSource
from atmc.data.streamed_source import ArraySource, Source

SPLITS = ("train", "test")
_MNISTS = {release.name: release for release in (mnist.MNIST, mnist.FASHION)}
FETCHED = ("cifar10", "fashion-mnist", "mnist")
NAMED = ("digits", *FETCHED)
# Of the training pictures of folders and shards loaded by this process: the test split needs them too.
_STATISTICS: dict[tuple[str, str], tuple[tuple[float, ...], tuple[float, ...]]] = {}


def load(name: str, split: str = "train", root: Path | str | None = None) -> ImageData:
    """A split of a data set, in memory. Nothing is fetched: what is absent or damaged is named with the cure."""
    _check_split(name, split)
    place = _root(root)
    if name == "cifar10":
        return cifar10.load(place, split)
    if name in _MNISTS:
        return mnist.load(place, split, _MNISTS[name])
    parts = _family(name)
    if parts.family == "digits":
        return digits.load(split, parts.whole("train", digits.TRAIN))
    if parts.family == "synthetic":
        return _synthetic(parts, split)
    source = _source(parts, split, place)
    train = source if split == "train" else _source(parts, "train", place)
    known = _STATISTICS.get((name, train.digest))
    if split != "train" and known is None:
        whole = train.in_memory()
        known = (whole.mean, whole.std)
    data = source.in_memory(known)
    _STATISTICS[name, train.digest] = (data.mean, data.std)
    return data


def open_source(name: str, split: str = "train", root: Path | str | None = None) -> Source:
    """A split of a data set to be streamed: folders and shards are read as they are needed, others are in memory."""
    _check_split(name, split)
    if name in NAMED or name.startswith(("digits", "synthetic")):
        return ArraySource(load(name, split, root))
    return _source(_family(name), split, _root(root))


def is_streaming(name: str) -> bool:
    """Whether a data set of this name is to be opened with `open_source` rather than loaded whole."""
    parts = Name.parse(name)
    return parts is not None and (parts.family == "shards" or parts.whole("stream", 0) > 0)


def fetch(
    name: str,
    root: Path | str | None = None,
    source: Path | str | None = None,
    progress: Progress | None = None,
) -> Path | None:
    """Fetch and verify a data set, from `source` if one is named; gives its folder, or None where none is needed.

    What is already there and right is left as it is; what is half-finished or altered is replaced.
    """
    place, tell = _root(root), progress or silent
    given = None if source is None else Path(source).expanduser()
    if given is not None and not given.exists():
        raise InputError(f"{given} does not exist: name the folder or archive that {name} is in")
    try:
        if name == "cifar10":
            return cifar10.fetch(place, given, tell)
        if name in _MNISTS:
            return mnist.fetch(place, _MNISTS[name], given, tell)
    except OSError as error:  # a full disk, a root that cannot be written
        raise RunError(f"{name} could not be stored under {place}: {error.strerror or error}") from error
    _family(name)
    return None


def available(root: Path | str | None = None) -> list[DatasetInfo]:
    """Every data set there is a name for, and whether its files are here and whole (their checksums are computed)."""
    place = _root(root)
    rows = [_info("cifar10", "32 × 32 colour photographs", 50_000, 10_000, (3, 32, 32), place)]
    for name, what in (("fashion-mnist", "28 × 28 grey pictures of clothes"), ("mnist", "28 × 28 handwritten digits")):
        rows.append(_info(name, what, 60_000, 10_000, (1, 28, 28), place))
    shipped = DatasetInfo(
        "digits", "8 × 8 handwritten digits", 1_297, 500, (1, 8, 8), 10, "ready", "comes with scikit-learn", None
    )
    families = {
        "folder": ("your pictures, a sub-folder for each class", "folder:PATH?size=64 (and &stream=1 for a large one)"),
        "shards": ("tar shards in the WebDataset layout, streamed", "shards:PATH/{split}-*.tar?size=224"),
        "synthetic": ("made-up data of any shape", "synthetic:3x32x32?classes=10&train=50000"),
    }
    patterns = [
        DatasetInfo(family, what, None, None, None, None, "pattern", example, None)
        for family, (what, example) in families.items()
    ]
    return [shipped, *rows, *patterns]


def _info(name: str, what: str, train: int, test: int, shape: tuple[int, ...], root: Path) -> DatasetInfo:
    directory = cifar10.folder(root) if name == "cifar10" else root / name
    files = cifar10.OFFICIAL.files if name == "cifar10" else _MNISTS[name].files
    wrong = faults(directory, files)
    present = [file.name for file in files if (directory / file.name).exists()]
    if not wrong:
        state, detail = "ready", ""
    elif present:
        state, detail = "damaged", "; ".join(wrong.values())
    else:
        state, detail = "absent", f"atmc data get {name}"
    return DatasetInfo(name, what, train, test, shape, 10, state, detail, directory)


def _root(root: Path | str | None) -> Path:
    return default_root() if root is None else Path(root).expanduser()


def _check_split(name: str, split: str) -> None:
    if split not in SPLITS:
        raise InputError(f"{name} has no split {split!r}: choose train or test (a validation split: hold_out)")


def _family(name: str) -> Name:
    parts = Name.parse(name)
    if parts is None or (parts.family == "digits" and parts.rest):
        known = (*NAMED, *(f"{family}:" for family in FAMILIES if family not in NAMED))
        raise InputError(f"unknown data set {name!r}; {did_you_mean(name, known)}")
    return parts


def _synthetic(parts: Name, split: str) -> ImageData:
    return synthetic.load(
        parts.full,
        split,
        parts.sizes(parts.rest or "3x32x32", "its shape"),
        classes=parts.whole("classes", 10),
        train=parts.whole("train", 2048),
        test=parts.whole("test", 512),
        seed=parts.whole("seed", 0),
    )


def _source(parts: Name, split: str, root: Path) -> Source:
    if not parts.rest:
        raise InputError(f"{parts.full}: name a path after {parts.family}:")
    size = parts.options.get("size")
    sides = None if size is None else parts.sizes(size, "size")
    square = None if sides is None else (sides[0], sides[-1])
    channels, crop = parts.whole("channels", 3), parts.real("crop", 1.0)
    if channels not in (1, 3) or not 0 < crop <= 1 or (sides is not None and len(sides) > 2):
        raise InputError(f"{parts.full}: size is 64 or 48x64, channels 1 or 3, and crop above 0 and at most 1")
    if parts.family == "folder":
        return FolderSource(parts.full, Path(parts.rest).expanduser(), split, square, channels, crop)
    return ShardSource(
        parts.full,
        parts.rest,
        split,
        square or (224, 224),
        channels,
        crop,
        classes=parts.whole("classes", 0) or None,
        window=parts.whole("window", 8),
        cache=root / "shard-index",
    )
