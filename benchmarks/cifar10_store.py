"""How a row of the CIFAR-10 table is stored: averages instead of samples, in one precision for all rows.

NAME.row.json       what was run: versions, seeds, time, scores by sample, and the names of the files below
NAME.toml           its recipe with every default written out; `atmc sample NAME.toml` makes the run again
NAME-0.npz, …       one predictor each (a seed, or an ensemble): `probs` [chains, examples, classes], the average of
                    each chain's samples in the data set's own order, whose mean is the prediction; `labels`; and
                    `entropy.SET`, the entropy of the prediction on each image of another data set
NAME-0.last0.npz, … the last sample of each chain by itself, `probs` [1, examples, classes]

All `probs` are float32 rounded by `rounded`. The samples themselves are not stored: `cifar10_scores.curves` keeps their
scores.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atmc.common.errors import InputError
from atmc.recipe.settings import Recipe, flat
from atmc.report.output_files import write

Array = npt.NDArray[Any]
Row = dict[str, Any]

# Runs of one row may differ in these and in nothing else.
FREE = ("seed", "name", "run.", "data.root", "data.workers")
# Significant bits from each probability on. Two classes that compete keep enough of them not to tie; of a tiny
# probability only its logarithm matters. A file is a fifth of plain float32, and no score of the table changes.
BITS = ((0.5, 15), (2.0**-4, 20), (2.0**-24, 6), (0.0, 2))


@dataclass(frozen=True)
class Predictor:
    """What is averaged to one prediction: the average of each chain, or each network of an ensemble."""

    probs: Array  # float32 [chains, examples, classes]
    labels: Array  # uint8 [examples]
    last: Array | None = None  # float32 [chains, examples, classes], where chains have several samples
    entropy: dict[str, Array] = field(default_factory=dict)  # float16 [images] by OOD data set
    curves: Row = field(default_factory=dict)  # scores by sample, see `cifar10_scores.curves`

    @property
    def samples(self) -> int:
        """How many were averaged."""
        return len(self.curves["epoch"])

    def without_each(self) -> list[Predictor]:
        """This predictor without each of its chains in turn."""
        return [replace(self, probs=np.delete(self.probs, chain, axis=0)) for chain in range(len(self.probs))]


def rounded(probs: Array) -> Array:
    """Probabilities as they are stored: float32, never zero, with fewer bits the smaller they are (`BITS`)."""
    positive = np.maximum(probs.astype(np.float32), np.finfo(np.float32).smallest_subnormal)
    mantissa, exponent = np.frexp(positive.astype(np.float64))
    digits = np.select([positive >= least for least, _ in BITS], [2.0**bits for _, bits in BITS])
    nearest = np.ldexp(np.round(mantissa * digits) / digits, exponent).astype(np.float32)
    kept: Array = np.maximum(nearest, np.finfo(np.float32).smallest_subnormal)
    return kept


# -- predictors on disk ------------------------------------------------------------------------------------------------


def save_predictor(folder: Path, stem: str, predictor: Predictor) -> tuple[str, list[str]]:
    """Write `stem.npz` and the last samples; returns the names."""
    arrays = {f"entropy.{name}": values for name, values in predictor.entropy.items()}
    write(folder / f"{stem}.npz", packed(probs=predictor.probs, labels=predictor.labels, **arrays))
    last = [] if predictor.last is None else list(predictor.last)
    names = [f"{stem}.last{chain}.npz" for chain in range(len(last))]
    for name, sample in zip(names, last, strict=True):
        write(folder / name, packed(probs=sample[None], labels=predictor.labels))
    return f"{stem}.npz", names


def packed(**arrays: Array) -> bytes:
    """An .npz as `np.load` reads it, by LZMA: a fifth smaller than by `np.savez_compressed`; equal bytes each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, values in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_LZMA
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(values))
    return buffer.getvalue()


def load_predictors(folder: Path, row: Row) -> list[Predictor]:
    """The predictors of a row, one for each of its seeds; they must speak of the same examples."""
    found = []
    for name, last, curves in zip(row["probabilities"], row["last"], row["curves"], strict=True):
        own = _read(folder / name)
        samples = [_read(folder / file)["probs"] for file in last]
        found.append(
            Predictor(
                probs=own["probs"],
                labels=own["labels"],
                last=np.concatenate(samples) if samples else None,
                entropy={key.removeprefix("entropy."): a for key, a in own.items() if key.startswith("entropy.")},
                curves=curves,
            )
        )
    if any(not np.array_equal(p.labels, found[0].labels) for p in found):
        raise InputError(f"the predictors of {row['row']} are of different test sets: collect it again")
    return found


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path) as stored:
            return dict(stored)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: collect its row again") from None


# -- rows on disk ------------------------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """`name` itself, if files can be called by it."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise InputError(f"a row called {name}: it names files, so use letters, digits, dots and dashes")
    return name


def check_alike(runs: Sequence[tuple[str, Recipe]]) -> None:
    """Runs of one row differ in their seeds, and in nothing that changes what is sampled; each with where it lies."""
    first, values = runs[0][0], flat(runs[0][1])
    for where, recipe in runs[1:]:
        for key, value in flat(recipe).items():
            if value != values[key] and not key.startswith(FREE):
                raise InputError(f"{where} has {key} = {value!r}, {first} {values[key]!r}: two rows, not one")
    seeds = [recipe.seed for _, recipe in runs]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"two runs have the same seed ({', '.join(map(str, seeds))}): they are one run, not two")


def save_json(path: Path, value: Any) -> None:
    """JSON for people: indented, with lists of numbers or names on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write(path, re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


def save_row(folder: Path, row: Row, predictors: Sequence[Predictor]) -> Row:
    """Write predictors and JSON of a row, and remove files of an earlier row of that name; returns the JSON."""
    saved = [save_predictor(folder, f"{row['row']}-{i}", found) for i, found in enumerate(predictors)]
    files = {"probabilities": [name for name, _ in saved], "last": [last for _, last in saved]}
    row = {**row, **files, "curves": [found.curves for found in predictors]}
    save_json(folder / f"{row['row']}.row.json", row)
    kept = {*files["probabilities"], *(name for last in files["last"] for name in last)}
    own = re.compile(rf"{re.escape(row['row'])}-\d+(\.last\d*)?\.npz")
    for path in folder.glob("*.npz"):
        if own.fullmatch(path.name) and path.name not in kept:
            path.unlink()
    return row


def load_rows(folder: Path) -> list[Row]:
    """Every collected row of `folder`, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.row.json"))]
