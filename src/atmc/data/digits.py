"""scikit-learn's digits: 1,797 handwritten digits of 8 × 8 pixels that need no download; the demo's data."""

from __future__ import annotations

import numpy as np
import torch

from atmc.common.errors import InputError
from atmc.data.dataset import ImageData, channel_statistics, digest_of
from atmc.data.validation_split import held_out_index

TOTAL = 1_797
TRAIN = 1_297


def load(split: str, train: int = TRAIN) -> ImageData:
    """The `train` training images or all others, the test images, as [N, 1, 8, 8]; 0…16 is scaled to 0…255.

    The split is a fixed stratified rule: a smaller training set is part of every larger one.
    """
    if not 10 <= train < TOTAL:
        raise InputError(f"digits?train={train}: choose 10 to {TOTAL - 1} of its {TOTAL:,} images for training")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError("digits needs scikit-learn: pip install 'atmc[cli]'") from error
    raw = load_digits()
    pixels = np.rint(raw.images * (255 / 16)).astype(np.uint8)
    images = torch.from_numpy(pixels[:, None])
    labels = torch.from_numpy(raw.target.astype(np.int64))
    taught, test = held_out_index(labels, TOTAL - train, "digits/test")
    mean, std = channel_statistics(images[taught])
    chosen = taught if split == "train" else test
    images, labels = images[chosen], labels[chosen]
    classes = tuple(str(digit) for digit in range(10))
    name = "digits" if train == TRAIN else f"digits?train={train}"
    return ImageData(name, split, images, labels, classes, mean, std, digest_of(images, labels))
