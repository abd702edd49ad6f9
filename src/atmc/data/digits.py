"""scikit-learn's digits: 1,797 handwritten digits of 8 × 8 pixels that need no download; the demo's data."""

from __future__ import annotations

import numpy as np
import torch

from atmc.common.errors import InputError
from atmc.data.dataset import ImageData, channel_statistics, digest_of
from atmc.data.validation_split import held_out_index

TEST = 500


def load(split: str) -> ImageData:
    """1,297 training or 500 test images [N, 1, 8, 8], split by a fixed stratified rule; 0…16 is scaled to 0…255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError("digits needs scikit-learn: pip install 'atmc[cli]'") from error
    raw = load_digits()
    pixels = np.rint(raw.images * (255 / 16)).astype(np.uint8)
    images = torch.from_numpy(pixels[:, None])
    labels = torch.from_numpy(raw.target.astype(np.int64))
    train, test = held_out_index(labels, TEST, "digits/test")
    mean, std = channel_statistics(images[train])
    chosen = train if split == "train" else test
    images, labels = images[chosen], labels[chosen]
    classes = tuple(str(digit) for digit in range(10))
    return ImageData("digits", split, images, labels, classes, mean, std, digest_of(images, labels))
