"""Read a run directory: probabilities, labels, traces and diagnostics. Nothing is written to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atmc.common.errors import InputError, RunError
from atmc.report.report_data import OWN, Array, Finding, Trace, called

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from atmc.engine.run_data import Examples
    from atmc.posterior import Posterior


@dataclass(frozen=True)
class Answers:
    """Labels and classes of a split, in the order of the run's predictions."""

    name: str  # of the data set
    split: str
    labels: NDArray[Any]
    classes: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def what(self) -> str:
        return called(self.name, self.split)


class Reading:
    """One run directory, opened for reading."""

    def __init__(self, path: Path) -> None:
        from atmc.storage.run_directory import RunDir

        if not Path(path).is_dir():
            raise InputError(f"there is no run directory {path}; make one with atmc sample RECIPE --out {path}")
        self.path = Path(path)
        if (self.path / "posterior.json").is_file() and not (self.path / "manifest.json").exists():
            raise InputError(
                f"{path} is a saved posterior, which keeps neither data nor traces: name the run that it came from "
                f"(images it can do: atmc predict {path} IMAGE.png)"
            )
        self.run = RunDir.open(path)
        self.recipe = self.run.recipe
        self._examples: dict[str, Examples] = {}

    @cached_property
    def posterior(self) -> Posterior:
        """The run's samples as one predictor."""
        from atmc.posterior import Posterior

        self._need_samples()
        self.need_network(
            f"p = atmc.Posterior.from_run({str(self.path)!r}, model) and p.predict(x); after p.save(FOLDER) of a "
            "network of torch's own layers, atmc predict FOLDER IMAGE.png works too"
        )
        try:
            return Posterior.from_run(self.run)
        except (ValueError, RuntimeError) as error:
            if isinstance(error, InputError | RunError):
                raise
            said = str(error).splitlines()[0]
            raise RunError(f"{self.path}: its samples do not fit the network that it names: {said}") from error

    def need_network(self, instead: str) -> None:
        """Refuse a run of a custom network, with what to write in Python `instead`."""
        if self.recipe.model.name == "custom":
            made = self.run.manifest.get("network", {}).get("class", "a network")
            what = f"{self.path} sampled {made}, a network of your own"
            raise InputError(f"{what}, which no command can make: in Python, use {instead}")

    def answers(self, split: str) -> Answers:
        """The labels of a split, as kept by the run, or else from the data set."""
        _check_split(split)
        about = self.run.manifest["data"]
        labels = self.run.labels(split) if split in self.run.splits else None
        if labels is not None:
            digest = str(about["digests"].get(split, ""))
            return Answers(str(about["name"]), split, labels.numpy(), tuple(about["classes"]), digest)
        data = self.examples(split)
        return Answers(data.name, split, data.labels.numpy(), tuple(data.classes), data.digest)

    def examples(self, split: str) -> Examples:
        """The images and labels of a split, checked to be those that the run saw."""
        _check_split(split)
        if split not in self._examples:
            self._examples[split] = self._load(split)
        return self._examples[split]

    def _load(self, split: str) -> Examples:
        from atmc.engine.run_data import load_split

        if self.recipe.data.name == OWN:
            raise InputError(f"{self.path} was made from tensors, {self._what_is_kept(split)}")
        if split == "validation" and self.recipe.data.validation == 0:
            raise InputError(f"{self.path} held nothing out for validation: choose --split test")
        return load_split(self.run, split)

    def _what_is_kept(self, split: str) -> str:
        python = "use atmc.Posterior.from_run(run, model) in Python"
        if split in self.run.splits:
            return f"of which only labels and predictions are kept, and this needs the {split} examples: {python}"
        if split != "test":  # which nothing that can be given to atmc.sample would change
            return f"and has no {split} labels: {python}"
        return f"and has no {split} labels: give test=(x, y) to atmc.sample for scores here, or {python}"

    def probs(self, split: str, answers: Answers, device: str | None = None) -> NDArray[np.float32]:
        """Probabilities [samples, examples, classes], as stored by the run or computed."""
        self._need_samples()
        stored = split in self.run.splits
        probs = self.run.predictions(split).numpy() if stored else self.ask(pixels(self.examples(split)), device)
        if probs.ndim != 3 or probs.shape[1] != len(answers) or probs.shape[2] != len(answers.classes):
            raise InputError(f"{self.path}: the predictions are not for the {len(answers)} {answers.what}")
        return probs

    def numbers(self, split: str, answers: Answers) -> tuple[Tensor, NDArray[Any], Any]:
        """Outputs [samples, examples, ...] of a regression, targets in the shape of its predictions, its likelihood."""
        self._need_samples()
        law, outputs, targets = self.run.likelihood(), self.run.predictions(split), answers.labels
        shape = tuple(law.predict(outputs[:1]).shape[1:])
        if shape[0] != len(answers) or targets.size != np.prod(shape):
            raise InputError(f"{self.path}: the predictions are not for its {len(answers)} {answers.what}")
        return outputs, targets.reshape(shape), law  # targets [N] may belong to outputs [N, 1]

    def scaled(self, mean: Any, labels: Any) -> tuple[dict[str, float], float] | None:
        """Scores after temperature scaling, and the temperature fitted on the validation split; None without one."""
        from atmc.posterior import metrics

        if "validation" not in self.run.splits:
            return None
        held = self.answers("validation")
        fitted = metrics.predictive(self.probs("validation", held))
        by = metrics.temperature_scale(metrics.log_probs(fitted), held.labels)
        return metrics.scores(metrics.apply_temperature(mean, by), labels), by

    def _need_samples(self) -> None:
        if len(self.run.bank) == 0:
            raise InputError(f"{self.path} has no samples yet; resume it with atmc sample {self.path}")

    def ask(self, images: Tensor, device: str | None = None) -> NDArray[np.float32]:
        """Each sample's probabilities for `images`, with as many threads as the run had: small networks need few."""
        import torch

        from atmc.engine.torch_settings import numerics

        with numerics(self.recipe, torch.device("cpu")):
            found: NDArray[np.float32] = self.posterior.sample_probs(images, device=device).numpy()
        return found

    def traces(self) -> tuple[Trace, ...]:
        """Loss, temperature and thermostat of every chain."""
        return tuple(trace(rows, chain) for chain in range(self.recipe.chains) if (rows := self.run.metrics(chain)))

    def seconds(self) -> float | None:
        """Time spent sampling, all chains together (they share a device)."""
        spent = [_number(row.get("seconds")) for row in self.run.metrics() if row.get("event") == "log"]
        return float(np.nanmax(spent)) if spent and not np.isnan(spent).all() else None

    def epochs(self) -> float:
        """Epochs done so far."""
        seen = [_number(row.get("epoch")) for row in self.run.metrics()]
        return float(np.nanmax(seen)) if seen and not np.isnan(seen).all() else 0.0

    def findings(self) -> tuple[Finding, ...]:
        """The findings of `atmc doctor`."""
        from atmc.diagnose.doctor import doctor
        from atmc.diagnose.finding import LEVELS

        found = []
        for advice in doctor(self.run):
            evidence = f"{advice.evidence} ({advice.sure})" if advice.sure else advice.evidence
            level = advice.level if advice.level in LEVELS else "note"
            found.append(Finding(level, advice.title, evidence, advice.action))
        return tuple(found)


def _check_split(split: str) -> None:
    if split not in ("test", "validation", "train"):
        raise InputError(f"--split {split}: choose test, validation or train")


def pixels(data: Examples, index: Sequence[int] | None = None) -> Tensor:
    """The images of a data set, all or those at `index`, decoded where they are still files."""
    import torch

    part = data if index is None else data.subset(torch.as_tensor(list(index)), data.split)
    images: Tensor = part.in_memory((part.mean, part.std)).images if hasattr(part, "in_memory") else part.images
    return images


def trace(rows: list[dict[str, Any]], chain: int) -> Trace:
    """The log rows of one chain as columns."""
    logged = [row for row in rows if row.get("event") == "log"]

    def column(name: str) -> Array:
        return np.array([_number(row.get(name)) for row in logged], dtype=np.float64)

    return Trace(
        chain=chain,
        epoch=column("epoch"),
        loss=column("loss"),
        temperature=column("kinetic_temperature"),
        thermostat=column("thermostat_q50"),
        thermostat_low=column("thermostat_q01"),
        thermostat_high=column("thermostat_q99"),
    )


def _number(value: Any) -> float:
    # The file may be untrusted: what is not a number counts as missing.
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
