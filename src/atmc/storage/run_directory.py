"""A run directory, read: recipe, manifest, metrics, samples and predictions of all its chains.

    recipe.toml      resolved: every default written out
    manifest.json    versions, hardware, data checksums, seed; a SHA-256 for every file (kept twice)
    metrics.jsonl    one row per stretch of steps, sample or event
    checkpoint/      the newest two; all that exact continuation needs
    samples/         NNNN.safetensors, the weights that were drawn
    predictions/     <split>/NNNN.safetensors, what each sample says about the evaluation sets
    fixed.safetensors  what of the network is not sampled, where that is a part of it; samples have the rest
    labels/          <split>.safetensors, what is true of them: scores need no data set, also where it was only tensors
A run of several chains has all but recipe, manifest and labels in chains/0, chains/1, …, each with its own manifest.
"""

import importlib.util
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError
from atmc.recipe.build import build_likelihood, build_model
from atmc.recipe.settings import Recipe, recipe_from_dict
from atmc.recipe.toml_files import RECIPE_FILE, validated
from atmc.storage.files import DamagedFileError, problem, read_tensors
from atmc.storage.manifest import MIRROR, NAME, Manifest, not_of
from atmc.storage.metrics_log import read_rows, wrong
from atmc.storage.prediction_files import from_file
from atmc.storage.sample_bank import SampleBank

# Whatever of these is a link, or anything but a file or a folder, is not of a run's making.
NAMES = frozenset(
    {".lock", NAME, MIRROR, RECIPE_FILE, "metrics.jsonl", "checkpoint", "samples", "predictions", "labels", "chains"}
    | {"tensorboard", "fixed.safetensors"}
)
FIXED = "fixed.safetensors"
STUCK = "no checkpoint can be read"  # of a chain that keeps its samples and cannot be resumed


@dataclass
class RunDir:
    """A run on disk. Reading never changes it, and can go on while it runs."""

    path: Path
    recipe: Recipe
    top: Manifest
    parts: list[Manifest]
    _damage: list[str] | None = field(default=None, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> "RunDir":
        """Open a run directory; anything that is not one is an `InputError`, a damaged one a `DamagedFileError`."""
        folder = Path(path)
        if not Manifest.exists(folder):
            raise InputError(f"{folder} is not a run directory: it has no manifest.json")
        top = Manifest.load(folder)
        if RECIPE_FILE not in top.values["files"]:
            raise InputError(f"{folder} holds no run: its manifest lists no {RECIPE_FILE}")
        if top.values.get("data") is None:
            raise DamagedFileError(folder / NAME, "does not say what data the run is of")
        recipe = read_recipe(top)
        parts = [top]
        if recipe.chains > 1:
            folders = chain_folders(folder, recipe)
            parts = []
            for number, part in ((n, Manifest.load(f)) for n, f in enumerate(folders) if Manifest.exists(f)):
                if reason := not_of(part.values, number, top.values.get("binding")):
                    top.notes.append(f"{part.folder}: {reason}, so none of its samples are used")
                else:
                    parts.append(part)
            # A run that was killed while it opened its chains has lost nothing.
            if any(record["step"] > 0 for part in parts for record in part.values.get("checkpoints") or []):
                top.notes += [
                    f"{f}: chain {number} of {recipe.chains} has no manifest, so none of its samples are used"
                    for number, f in enumerate(folders)
                    if not Manifest.exists(f)
                ]
        return cls(folder, recipe, top, parts)

    @property
    def manifest(self) -> dict[str, Any]:
        """The run's manifest as plain values."""
        return self.top.values

    @property
    def notes(self) -> list[str]:
        """What was found damaged while opening, one line each."""
        return [note for part in {id(m): m for m in (self.top, *self.parts)}.values() for note in part.notes]

    def damage(self) -> list[str]:
        """All that is wrong with its files, or was and cost a sample, one line each. Reads every sample, once."""
        if self._damage is None:
            self._damage = self._look_for_damage()
        return list(self._damage)

    def _look_for_damage(self) -> list[str]:
        torn = [str(error) for _, error in self.bank.problems()] if self.parts else []
        lost = [
            f"{part.locate(str(entry['file']))}: no longer in the bank: {entry['reason']}"
            for part in self.parts
            for entry in part.values.get("lost", [])
            if entry["index"] not in {kept["index"] for kept in part.values["samples"]}
        ]
        marks = [
            (part, part.values["checkpoints"][-1]["metrics"]) for part in self.parts if part.values.get("checkpoints")
        ]
        logs = [wrong(part.folder / "metrics.jsonl", mark["bytes"], mark["sha256"]) for part, mark in marks]
        return [*self.notes, *torn, *lost, *(line for line in logs if line), *self._stuck()]

    def _stuck(self) -> list[str]:
        """A line for each chain of which no checkpoint can be read."""
        found = []
        for part in self.parts:
            listed = bool(part.values.get("checkpoints"))
            # It may be running, and have replaced its checkpoints since its manifest was read.
            if listed and not (_has_checkpoint(part) or _has_checkpoint(Manifest.load(part.folder))):
                found.append(f"{part.folder}: {STUCK}, so it cannot be resumed; its samples can be used")
        return found

    @property
    def bank(self) -> SampleBank:
        """All samples, of all chains."""
        if not self.parts:
            raise InputError(f"{self.path} has no chain yet: run it first")
        return SampleBank(*self.parts)

    @property
    def status(self) -> str:
        """`done` where all chains are, else what the last session ended with, else `running`."""
        states = [str(part.values.get("status", "running")) for part in self.parts]
        return next((s for s in states if s != "done"), "done") if states else "running"

    @property
    def splits(self) -> list[str]:
        """The evaluation sets that every sample has predictions for."""
        found = []
        for split in ("validation", "test", "train"):
            names = [
                split_file(entry.meta["index"], split) in entry.manifest.values["files"] for entry in self.bank.entries
            ]
            if names and all(names):
                found.append(split)
        return found

    def metrics(self, chain: int | None = None) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl, of one chain or of all, one chain after the other."""
        rows = [row for part in self.parts for row in read_rows(part.folder / "metrics.jsonl")]
        return [row for row in rows if chain is None or row.get("chain") == chain]

    def predictions(self, split: str = "test") -> Tensor:
        """Probabilities [samples, examples, classes] in the bank's order, float32; outputs for a regression."""
        found = []
        for entry in self.bank.entries:
            relative = split_file(entry.meta["index"], split)
            if relative not in entry.manifest.values["files"]:
                raise InputError(
                    f"{self.path} has no predictions for {split!r}; it has {', '.join(self.splits) or 'none'}"
                )
            found.append(from_file(read_tensors(*entry.manifest.entry(relative))[0]))
        if not found:
            raise InputError(f"{self.path} has no samples yet")
        return torch.stack(found)

    def labels(self, split: str = "test") -> Tensor | None:
        """The labels that belong to the predictions of a split, in their order; None where the run kept none."""
        relative = labels_file(split)
        if relative not in self.top.values["files"]:
            return None
        path, sha256, size = self.top.entry(relative)
        tensors, _ = read_tensors(path, sha256, size)
        if "labels" not in tensors:
            raise DamagedFileError(path, "holds no labels")
        return tensors["labels"]

    def model(self) -> nn.Module:
        """The recipe's network, with fresh weights, in evaluation mode."""
        shape, classes = self.manifest["data"]["shape"], len(self.manifest["data"]["classes"])
        if self.recipe.model.name == "custom":
            made = self.manifest.get("network", {}).get("class", "the user's own")
            raise InputError(f"{self.path} sampled {made}, a network of the user's own: pass it as model=")
        return build_model(self.recipe, tuple(shape), classes).eval()

    def likelihood(self) -> Any:
        """The likelihood of the recipe."""
        return build_likelihood(self.recipe)


def _has_checkpoint(part: Manifest) -> bool:
    """Whether any of the checkpoints that a manifest lists is what was written."""
    records = [part.values["files"].get(record["file"]) for record in part.values["checkpoints"]]
    return any(
        record is not None and problem(*part.entry(listed["file"])) is None
        for listed, record in zip(part.values["checkpoints"], records, strict=True)
    )


def chain_folders(folder: Path, recipe: Recipe) -> list[Path]:
    """Where each chain of a run lives."""
    return [folder] if recipe.chains == 1 else [folder / "chains" / str(i) for i in range(recipe.chains)]


def split_file(index: int, split: str) -> str:
    """The predictions of a sample on a split, as the manifest names them."""
    return f"predictions/{split}/{index:04d}.safetensors"


def fixed_tensors(top: Manifest) -> dict[str, Tensor]:
    """What of the network a run does not sample, and so is in no sample; empty where all of it is sampled."""
    return read_tensors(*top.entry(FIXED))[0] if FIXED in top.values["files"] else {}


def labels_file(split: str) -> str:
    """The labels of a split, as the run's manifest names them."""
    return f"labels/{split}.safetensors"


def read_recipe(top: Manifest) -> Recipe:
    """The resolved recipe of a run. The manifest holds its text; recipe.toml is the copy for people."""
    text = str(top.values.get("recipe", ""))
    path, sha256, size = top.entry(RECIPE_FILE)
    if reason := problem(path, sha256, size):
        top.notes.append(f"{path}: {reason}; the manifest's copy is used")
    try:
        values = tomllib.loads(text)
        # Where pydantic is, it looks at every type: the text may be anybody's.
        found = validated(values) if importlib.util.find_spec("pydantic") else recipe_from_dict(values)
    except (tomllib.TOMLDecodeError, TypeError, AttributeError, RecursionError, InputError) as error:
        raise DamagedFileError(top.folder / NAME, f"holds no recipe ({error})") from error
    if not 1 <= found.chains <= 10_000:
        raise DamagedFileError(top.folder / NAME, f"holds no recipe (of {found.chains} chains)")
    return found
