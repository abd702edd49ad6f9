"""Load, stream, fetch and list data sets by name.

A name is `digits`, `cifar10`, `imagenette`, … (see NAMED), or one of a family: `folder:PATH`, `shards:GLOB`,
`synthetic:SHAPE`, with options after a question mark, as in `folder:pictures?size=64&channels=1`. `digits?train=200`
has 200 training images; all others are test images.
"""

from __future__ import annotations

from pathlib import Path

from atmc.common.errors import InputError, RunError
from atmc.common.suggest import did_you_mean
from atmc.data import digits, synthetic
from atmc.data.checked_files import Progress, faults, silent
from atmc.data.dataset import DatasetInfo, ImageData, Named, default_root
from atmc.data.dataset_names import FAMILIES, Name
from atmc.data.fetch import cifar10, image_sets, mnist
from atmc.data.folder import FolderSource
from atmc.data.shards import ShardSource
from atmc.data.streamed_source import ArraySource, Source

SPLITS = ("train", "test")
#: The data sets that have a name. To add one: a module with its entry, and the entry here.
NAMED = {entry.name: entry for entry in (digits.ENTRY, cifar10.ENTRY, *mnist.ENTRIES, *image_sets.ENTRIES)}
# Of the training images of folders and shards loaded by this process: the test split needs them too.
_STATISTICS: dict[tuple[str, str], tuple[tuple[float, ...], tuple[float, ...]]] = {}


def load(name: str, split: str = "train", root: Path | str | None = None) -> ImageData:
    """A split of a data set, in memory. Nothing is downloaded."""
    _check_split(name, split)
    home = _root(root)
    if name in NAMED:
        return NAMED[name].load(home, split, None)
    parts = _family(name)
    if parts.family in NAMED:
        return NAMED[parts.family].load(home, split, parts)
    if parts.family == "synthetic":
        return _synthetic(parts, split)
    source = _source(parts, split, home)
    train = source if split == "train" else _source(parts, "train", home)
    known = _STATISTICS.get((name, train.digest))
    if split != "train" and known is None:
        whole = train.in_memory()
        known = (whole.mean, whole.std)
    data = source.in_memory(known)
    _STATISTICS[name, train.digest] = (data.mean, data.std)
    return data


def open_source(name: str, split: str = "train", root: Path | str | None = None) -> Source:
    """A split of a data set to be streamed; other data than folders and shards are in memory."""
    _check_split(name, split)
    parts = None if name in NAMED else _family(name)
    entry = NAMED.get(name if parts is None else parts.family)
    if entry is not None and entry.stream is not None:
        found: Source = entry.stream(_root(root), split, parts)
        return found
    if entry is not None or parts is None or parts.family == "synthetic":
        return ArraySource(load(name, split, root))
    return _source(parts, split, _root(root))


def is_streaming(name: str) -> bool:
    """Whether a data set is to be opened with `open_source` rather than `load`."""
    parts = Name.parse(name)
    if parts is None:
        return False
    return parts.whole("stream", 0) > 0 or (parts.family == "shards" and not parts.whole("memory", 0))


def fetch(
    name: str,
    root: Path | str | None = None,
    source: Path | str | None = None,
    progress: Progress | None = None,
) -> Path | None:
    """Fetch and verify a data set, from `source` if given; returns its folder, or None if it needs no files.

    Files that are half-finished or altered are replaced.
    """
    home, tell = _root(root), progress or silent
    given = None if source is None else Path(source).expanduser()
    if given is not None and not given.exists():
        raise InputError(f"{given} does not exist: name the folder or archive that {name} is in")
    if name not in NAMED:
        _family(name)
        return None
    try:
        way = NAMED[name].fetch
        return None if way is None else way(home, given, tell)
    except OSError as error:  # a full disk, a root that cannot be written
        raise RunError(f"{name} could not be stored under {home}: {error.strerror or error}") from error


def available(root: Path | str | None = None) -> list[DatasetInfo]:
    """Every data set, and whether its files are there and match their checksums."""
    home = _root(root)
    rows = [_info(entry, home) for entry in NAMED.values()]
    families = {
        "folder": ("your pictures, a sub-folder for each class", "folder:PATH?size=64 (and &stream=1 for a large one)"),
        "shards": (
            "tar shards in the WebDataset layout; &memory=1 does not stream them",
            "shards:PATH/{split}-*.tar?size=224",
        ),
        "synthetic": ("made-up data of any shape", "synthetic:3x32x32?classes=10&train=50000"),
    }
    patterns = [
        DatasetInfo(family, what, None, None, None, None, "pattern", example, None)
        for family, (what, example) in families.items()
    ]
    return [*rows, *patterns]


def _info(entry: Named, root: Path) -> DatasetInfo:
    directory = root / entry.folder if entry.folder else None
    state, detail = "ready", entry.source
    if entry.state is not None:
        state, detail = entry.state(root)
    elif directory is not None and (wrong := faults(directory, entry.files)):
        present = any((directory / file.name).exists() for file in entry.files)
        state, detail = ("damaged", "; ".join(wrong.values())) if present else ("absent", f"atmc data get {entry.name}")
    known = (entry.train, entry.test, entry.shape, entry.classes)
    return DatasetInfo(entry.name, entry.summary, *known, state, detail, directory)


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
    channels, crop, keep = parts.whole("channels", 3), parts.real("crop", 1.0), parts.whole("cache", 0)
    if channels not in (1, 3) or not 0 < crop <= 1 or (sides is not None and len(sides) > 2):
        raise InputError(f"{parts.full}: size is 64 or 48x64, channels 1 or 3, and crop above 0 and at most 1")
    if parts.family == "folder":
        return FolderSource(parts.full, Path(parts.rest).expanduser(), split, square, channels, crop, keep)
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
        keep=keep,
    )
