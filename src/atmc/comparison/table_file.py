"""A table in a CSV file as examples: standardised columns, one of which is to be predicted.

Numbers are standardised by the training rows; a column of words becomes a column of 0 and 1 for each word. A target of
words, or of few whole numbers, is a class; any other is a number, which stays in its own units.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.common.suggest import did_you_mean
from atmc.posterior.arrays import Floats, Ints

MOST_BYTES = 100_000_000
FEW = 20  # different whole numbers up to which a target is a class, and words up to which a column is taken
LEAST = 50  # rows
MISSING = ("", "na", "nan", "null", "?")


@dataclass(frozen=True)
class Table:
    """Training and test rows, ready for a network."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]  # empty for a regression
    columns: int
    dropped: int  # rows with missing values


def read_table(path: Path, target: str | None, seed: int = 0, held_out: int = 5) -> Table:
    """Read `path` and hold one row of `held_out` out as the test set; the last column is the target by default."""
    names, rows = _rows(path)
    if target is None:
        target = names[-1]
    if target not in names:
        raise InputError(f"{path} has no column {target!r}: {did_you_mean(target, names)}")
    whole = [row for row in rows if not any(cell.strip().lower() in MISSING for cell in row)]
    if len(whole) < LEAST:
        raise InputError(f"{path} has {len(whole)} complete rows; at least {LEAST} are needed")
    at = names.index(target)
    order = np.random.default_rng(seed).permutation(len(whole))
    cut = len(whole) // held_out
    held, learned = np.sort(order[:cut]), np.sort(order[cut:])
    inputs = [_column(names[i], [row[i] for row in whole], learned) for i in range(len(names)) if i != at]
    x = torch.tensor(np.concatenate(inputs, axis=1), dtype=torch.float32)
    y, classes = _target(target, [row[at] for row in whole])
    parts = [(x[torch.from_numpy(rows)], y[torch.from_numpy(rows)]) for rows in (learned, held)]
    if not classes and float(parts[0][1].std()) == 0:
        raise InputError(f"column {target!r} is the same in every row")
    return Table(parts[0], parts[1], classes, x.shape[1], len(rows) - len(whole))


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is larger than {MOST_BYTES // 1_000_000} MB: take a part of its rows")
        with path.open(newline="", encoding="utf-8-sig") as file:
            start = file.read(4096)
            file.seek(0)
            delimiter = max(",;\t", key=start.partition("\n")[0].count)
            lines = [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table: {getattr(error, 'strerror', None) or error}") from None
    if len(lines) < 2 or len(lines[0]) < 2:
        raise InputError(f"{path} needs a line of column names, rows, and at least two columns")
    names = [name.strip() for name in lines[0]]
    for number, row in enumerate(lines[1:], start=2):
        if len(row) != len(names):
            raise InputError(f"{path}: row {number} has {len(row)} cells, the first line {len(names)}")
    if all(_number(name) is not None for name in names):
        raise InputError(f"{path} begins with numbers: add a first line with the names of the columns")
    return names, lines[1:]


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _column(name: str, cells: list[str], learned: Ints) -> Floats:
    values = [_number(cell) for cell in cells]
    if all(value is not None for value in values):
        column = np.array(values, dtype=np.float64)
        spread = column[learned].std()
        return np.asarray(((column - column[learned].mean()) / (spread if spread > 0 else 1.0))[:, None])
    words = sorted({cell.strip() for cell in cells})
    if len(words) > FEW:
        raise InputError(f"column {name!r} has {len(words)} different words; leave it out of the file")
    return np.array([[float(cell.strip() == word) for word in words] for cell in cells])


def _target(name: str, cells: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Classes and their names, or numbers `[rows, 1]` in their own units and no names."""
    values = [_number(cell) for cell in cells]
    different = sorted({cell.strip() for cell in cells})
    numbers = all(value is not None for value in values)
    whole = numbers and all(value is not None and value == int(value) for value in values)
    if not numbers or (whole and len(different) <= FEW):
        if not 2 <= len(different) <= 1000:
            raise InputError(f"column {name!r} has {len(different)} different values and cannot be a class")
        return torch.tensor([different.index(cell.strip()) for cell in cells]), tuple(different)
    return torch.tensor(values, dtype=torch.float64)[:, None].float(), ()
