"""Take a set of images to a machine that can only be sent small parcels: packs of a bounded size, with digests.

    python benchmarks/image_packs.py pack FOLDER NAME PACKS [--megabytes 45] [--side 128 --quality 85]
    python benchmarks/image_packs.py unpack PACKS ROOT      # shards in ROOT/NAME, as `atmc data get NAME` writes them

FOLDER is what `atmc data get NAME --from` takes. A pack holds the bytes of some images without the padding of a tar
file, and `NAME.json` beside the packs has their SHA-256, so packs can be sent one by one and put together at the end.

Without `--side`, pixels stay as they are. JPEG files are coded anew from the same coefficients where the package
`mozjpeg-lossless-optimization` is installed (6 % smaller at 224 pixels, 14 % at 64), and each is decoded both ways to
see that no pixel changed. With `--side`, images are squashed to that side and coded as WebP, which loses detail. What
was done is in `encoding.txt` beside the shards, and `imagenet_rows.py` puts it into its table.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from atmc.common.errors import InputError
from atmc.data.image_layouts import find_images, image_folder_in
from atmc.data.shard_writer import Item, write_shards

ENCODING = "encoding.txt"
UNCHANGED = "the files of the source, byte for byte"
SAME_PIXELS = "JPEG coded anew without loss: the pixels of the source"
SHARD_MB = 64.0


def smaller(data: bytes) -> bytes:
    """A JPEG of the same coefficients, so of the same pixels; what is no JPEG, or gets no smaller, stays as it is."""
    module: Any = importlib.import_module("mozjpeg_lossless_optimization")
    if not data.startswith(b"\xff\xd8"):
        return data
    found: bytes = module.optimize(data)
    if len(found) >= len(data):
        return data
    before, after = (np.asarray(Image.open(io.BytesIO(each))) for each in (data, found))
    return found if np.array_equal(before, after) else data


def squashed(data: bytes, side: int, quality: int) -> bytes:
    """The image at side × side as WebP."""
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3)
    image.save(buffer, "WEBP", quality=quality)
    return buffer.getvalue()


def encoder(side: int | None, quality: int) -> tuple[Callable[[bytes], bytes], str]:
    """What is done to each image, and how to say it."""
    if side:
        said = f"squashed to {side} × {side}, WebP at quality {quality}"
        return lambda data: squashed(data, side, quality), said
    if importlib.util.find_spec("mozjpeg_lossless_optimization"):
        return smaller, SAME_PIXELS
    return bytes, UNCHANGED


def pack(source: Path, name: str, out: Path, megabytes: float, side: int | None = None, quality: int = 85) -> None:
    """Write `NAME-00.npz`, … of at most `megabytes` each and `NAME.json`."""
    encode, said = encoder(side, quality)
    splits, classes = find_images(image_folder_in(source))
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{name}-*.npz"):
        old.unlink()
    record: dict[str, Any] = {"name": name, "encoding": said, "classes": list(classes), "packs": {}}
    record["images"] = {split: len(items) for split, items in splits.items()}
    waiting: list[tuple[str, Item, bytes]] = []
    size = 0.0

    def flush() -> None:
        nonlocal size
        if waiting:
            path = out / f"{name}-{len(record['packs']):02d}.npz"
            path.write_bytes(_packed(waiting))
            record["packs"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        waiting.clear()
        size = 0.0

    for split, items in splits.items():
        for item in items:
            data = encode(item.read())
            takes = len(data) + len(item.name) + 24
            if waiting and size + takes > megabytes * 1e6 - 10_000:
                flush()
            waiting.append((split, item, data))
            size += takes
    flush()
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def _packed(images: list[tuple[str, Item, bytes]]) -> bytes:
    buffer = io.BytesIO()
    names = "\n".join(f"{split}\t{item.name}" for split, item, _ in images).encode()
    np.savez(
        buffer,
        names=np.frombuffer(names, np.uint8),
        labels=np.array([item.label for _, item, _ in images], np.int32),
        sizes=np.array([len(data) for *_, data in images], np.int32),
        data=np.frombuffer(b"".join(data for *_, data in images), np.uint8),
    )
    return buffer.getvalue()


def _images(path: Path) -> Iterator[tuple[str, Item]]:
    with np.load(path) as found:
        names = found["names"].tobytes().decode().split("\n")
        whole = found["data"].tobytes()
        ends = np.cumsum(found["sizes"], dtype=np.int64)
        for name, label, end, size in zip(names, found["labels"], ends, found["sizes"], strict=True):
            split, _, file = name.partition("\t")
            data = whole[end - size : end]
            suffix = ".webp" if data.startswith(b"RIFF") else Path(file).suffix
            yield split, Item(str(Path(file).with_suffix(suffix)), int(label), len(data), lambda data=data: data)  # type: ignore[misc]


def unpack(packs: Path, root: Path) -> list[Path]:
    """The shards of every set whose packs are all there and right."""
    records = [json.loads(path.read_text()) for path in sorted(packs.glob("*.json"))]
    if not records:
        raise InputError(f"{packs} has no NAME.json of packed images")
    made = []
    for record in records:
        splits: dict[str, list[Item]] = {split: [] for split in record["images"]}
        for name, wanted in record["packs"].items():
            path = packs / name
            if not path.is_file():
                raise InputError(f"{path} is missing: send it too")
            if hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
                raise InputError(f"{path} is altered: its SHA-256 is not {wanted}")
            for split, item in _images(path):
                splits[split].append(item)
        folder = root / record["name"]
        write_shards(folder, splits, record["classes"], SHARD_MB)
        (folder / ENCODING).write_text(record["encoding"] + "\n")
        made.append(folder)
    return made


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing, unpacking = verbs.add_parser("pack"), verbs.add_parser("unpack")
    packing.add_argument("source", type=Path)
    packing.add_argument("name")
    packing.add_argument("packs", type=Path)
    packing.add_argument("--megabytes", type=float, default=45.0)
    packing.add_argument("--side", type=int)
    packing.add_argument("--quality", type=int, default=85)
    unpacking.add_argument("packs", type=Path)
    unpacking.add_argument("root", type=Path)
    asked = parser.parse_args(words)
    if asked.verb == "unpack":
        for folder in unpack(asked.packs, asked.root):
            print(f"{folder}: {(folder / ENCODING).read_text().strip()}")
        return
    pack(asked.source, asked.name, asked.packs, asked.megabytes, asked.side, asked.quality)
    for path in sorted(asked.packs.glob(f"{asked.name}-*.npz")):
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
