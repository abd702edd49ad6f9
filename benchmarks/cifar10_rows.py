"""How a row of the CIFAR-10 table is stored and scored; what collecting, the table and the figures share.

NAME.row.json           what was run: versions, seeds, time, scores, and the names of the files below
NAME.toml               its recipe with every default written out; `atmc sample NAME.toml` makes the run again
NAME-0.npz, NAME-1.npz  one predictor each (a seed, or an ensemble): `probs` [samples, examples, classes] in the
                        data set's own order, and all else that the table and the figures need. One sample is in
                        float32; several, which are averaged, are in float16 (or, where that would change their NLL,
                        in float32 with as many digits), and `last`, the last sample of each chain [chains,
                        examples, classes], in float32. No probability is zero.
NAME-0.part1.npz, …     the same in parts, where one file would be larger than LIMIT
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atmc.common.errors import InputError
from atmc.posterior import metrics
from atmc.posterior.arrays import floor_of
from atmc.recipe.settings import Recipe, flat
from atmc.report.output_files import write

Array = npt.NDArray[Any]
Row = dict[str, Any]

LIMIT = 15 << 20  # bytes of one file: small enough to be moved and kept anywhere
SCORES = ("accuracy", "nll", "ece", "brier")
ROUNDING = 5e-4  # nats that the NLL may move by on its way to a file: half of the last digit of the table
# Runs of one row may differ in these and in nothing else.
FREE = ("seed", "name", "run.", "data.root", "data.workers")


@dataclass(frozen=True)
class Predictor:
    """Samples whose probabilities are averaged to one prediction, and what they said."""

    probs: Array  # [samples, examples, classes], float32 of one sample, float16 of several where that is enough
    labels: Array  # uint8 [examples]
    epochs: Array  # float32 [samples], when each was taken
    trace: Array  # float32 [rows, 3]: chain, epoch and training loss of each row of metrics
    outside: dict[str, Array] = field(default_factory=dict)  # the predictive [images, classes] on other data, float16
    last: Array | None = None  # float32 [chains, examples, classes], of several samples those taken at the last time

    @property
    def final(self) -> Array:
        """The last samples, one of each chain, as exactly as they are known: a network's mistakes outrun float16."""
        found: Array = self.probs[-1:] if self.last is None else self.last
        return found

    def scores(self, last: bool = False) -> dict[str, float]:
        """Scores of the average of all samples; or those of a last sample alone, on average over the chains."""
        each = [sample[None] for sample in self.final] if last else [self.probs]
        found = [metrics.scores(metrics.predictive(probs), self.labels, floor_of(probs)) for probs in each]
        return {name: float(np.mean([scores[name] for scores in found])) for name in SCORES}

    def without_each(self, chains: int) -> list[Predictor]:
        """This predictor without each of its chains in turn; none where it is not known which sample is whose.

        Chains of a run take their samples together and in their order. Rows joined of unlike runs may not.
        """
        whole = len(self.probs) % chains == 0 and len(self.final) == chains
        if not whole or np.ptp(self.epochs.reshape(-1, chains), axis=1).any():
            return []
        found = []
        for chain in range(chains):
            others = np.arange(len(self.probs)) % chains != chain
            last = None if self.last is None else np.delete(self.last, chain, axis=0)
            found.append(replace(self, probs=self.probs[others], epochs=self.epochs[others], last=last))
        return found

    def growing(self) -> dict[str, Array]:
        """Scores of the average of the first 1, 2, … samples."""
        return {name: np.asarray(values) for name, values in metrics.growing(self.probs, self.labels).items()}

    def singles(self) -> dict[str, Array]:
        """Scores of each sample by itself, in the order in which they were taken."""
        each = [metrics.scores(sample, self.labels) for sample in (*self.probs[: -len(self.final)], *self.final)]
        return {name: np.array([scores[name] for scores in each]) for name in SCORES}

    def detection(self) -> dict[str, dict[str, float]]:
        """AUROC of the test images against each other data set, by two kinds of doubt.

        Both are rounded alike: confidence that only one side can show would tell them apart.
        """
        mean = metrics.predictive(self.probs)
        found: dict[str, dict[str, float]] = {}
        for name, probs in self.outside.items():
            home = doubts(positive(mean, probs.dtype).astype(np.float64))
            strange = doubts(probs.astype(np.float64))
            found[name] = {kind: metrics.detection(home[kind], strange[kind])["auroc"] for kind in home}
        return found


def positive(probs: Array, kind: npt.DTypeLike) -> Array:
    """Probabilities as they are stored: rounded to `kind`, and its smallest number where that would be zero.

    Whoever takes their logarithm then needs no rule for zeros. The smallest is 16.6 nats in float16, 103 in float32.
    """
    rounded = probs.astype(kind)
    raised: Array = np.maximum(rounded, np.finfo(rounded.dtype).smallest_subnormal)
    return raised


def stored(probs: Array, labels: Array) -> Array:
    """Probabilities as they go to a file: in float16, where that does not change the NLL of their average.

    It does change that of a single network, which stays in float32, and of samples that are all surer of a mistake than
    float16 can show (one chain's 0.2468 became 0.2432). Those need the range of float32 but not its digits.
    """
    exact, rounded = positive(probs, np.float32), positive(probs, np.float16)
    if len(probs) == 1:
        return exact
    change = metrics.nll(metrics.predictive(rounded), labels) - metrics.nll(metrics.predictive(exact), labels)
    return shortened(exact) if abs(change) > ROUNDING else rounded


def shortened(probs: Array) -> Array:
    """float32 with as many digits as float16 has: a file of them packs better."""
    mantissa, exponent = np.frexp(probs)
    digits = 2.0 ** (np.finfo(np.float16).nmant + 1)
    return positive(np.ldexp(np.round(mantissa * digits) / digits, exponent), np.float32)


def numbered_on(traces: Sequence[Array]) -> Array:
    """Traces as one, with chains numbered on: every run counts its own from 0."""
    found, first = [], 0.0
    for own in traces:
        trace = own.copy()
        if len(trace):
            trace[:, 0] += first - trace[:, 0].min()
            first = trace[:, 0].max() + 1
        found.append(trace)
    return np.concatenate(found)


def doubts(probs: Array) -> dict[str, Array]:
    """Entropy, and what the likeliest class leaves over, of each row of `probs` [examples, classes].

    The second is the sum of the other classes rather than 1 − max: near one, float16 has only three digits, and images
    that differ in their doubt would tie.
    """
    entropy = -(probs * np.log(np.maximum(probs, np.finfo(np.float64).tiny))).sum(axis=1)
    return {"entropy": entropy, "confidence": probs.sum(axis=1) - probs.max(axis=1)}


# -- predictors on disk ------------------------------------------------------------------------------------------------


def save_predictor(folder: Path, stem: str, predictor: Predictor, limit: int = LIMIT) -> list[str]:
    """Write `stem.npz`, or as few parts as have at most `limit` bytes each; returns the names."""
    samples = len(predictor.probs)
    for count in range(1, samples + 1):
        parts = [_packed(predictor, group, first=i == 0) for i, group in enumerate(_groups(samples, count))]
        if max(len(part) for part in parts) <= limit:
            break
    names = [f"{stem}.npz"] if len(parts) == 1 else [f"{stem}.part{i}.npz" for i in range(1, len(parts) + 1)]
    for name, part in zip(names, parts, strict=True):
        write(folder / name, part)
    return names


def _groups(samples: int, count: int) -> list[Array]:
    return np.array_split(np.arange(samples), count)


def _packed(predictor: Predictor, group: Array, first: bool) -> bytes:
    """The file that holds the samples of `group`; what belongs to all samples is in the first."""
    arrays: dict[str, Any] = {
        "probs": predictor.probs[group],
        "labels": predictor.labels,
        "epochs": predictor.epochs[group],
    }
    if first:
        arrays["trace"] = predictor.trace
        arrays |= {f"outside.{name}": probs for name, probs in predictor.outside.items()}
        arrays |= {} if predictor.last is None else {"last": predictor.last}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def load_predictor(folder: Path, names: Sequence[str]) -> Predictor:
    """What `save_predictor` wrote."""
    parts = [_read(folder / name) for name in names]
    first = parts[0]
    return Predictor(
        probs=np.concatenate([part["probs"] for part in parts]),
        labels=first["labels"],
        epochs=np.concatenate([part["epochs"] for part in parts]),
        trace=first["trace"],
        outside={name.removeprefix("outside."): a for name, a in first.items() if name.startswith("outside.")},
        last=first.get("last"),
    )


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path) as stored:
            return dict(stored)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: collect its row again") from None


def by_predictor(names: Sequence[str]) -> list[list[str]]:
    """File names with the parts of one predictor together, in their order."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"(\.part\d+)?\.npz$", "", name), []).append(name)
    return list(groups.values())


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


# -- rows on disk ------------------------------------------------------------------------------------------------------


def save_json(path: Path, value: Any) -> None:
    """JSON for people: indented, with lists of numbers or names on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write(path, re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


def save_row(folder: Path, row: Row) -> None:
    """The row's JSON; files of its predictors that it does not name, of an earlier row of that name, are removed."""
    save_json(folder / f"{row['row']}.row.json", row)
    own = re.compile(rf"{re.escape(row['row'])}-\d+(\.part\d+|\.last\d*)*\.npz")
    for path in folder.glob("*.npz"):
        if own.fullmatch(path.name) and path.name not in row["probabilities"]:
            path.unlink()


def load_rows(folder: Path) -> list[Row]:
    """Every collected row of `folder`, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.row.json"))]


def load_predictors(folder: Path, row: Row) -> list[Predictor]:
    """The predictors of a row, one for each of its seeds; they must speak of the same examples."""
    found = [load_predictor(folder, names) for names in by_predictor(row["probabilities"])]
    if any(not np.array_equal(p.labels, found[0].labels) for p in found):
        raise InputError(f"the predictors of {row['row']} are of different test sets: collect it again")
    return found
