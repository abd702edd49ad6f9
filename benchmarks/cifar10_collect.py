"""From run directories to a stored row: each sample's test probabilities, the recipe, and what it says of other images.

Needs torch, numpy and safetensors beside what reads the data; a GPU is used where there is one. Test probabilities that
the runs have stored are taken as they are, so that only the images from elsewhere are shown to the networks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atmc.common.errors import InputError, RunError
from atmc.engine.torch_settings import numerics
from atmc.posterior import Posterior
from atmc.recipe.toml_files import recipe_to_toml
from atmc.report import ood_inputs
from atmc.report.output_files import write
from atmc.report.read_run import Answers, Reading, pixels
from cifar10_rows import (
    SCORES,
    Array,
    Predictor,
    Row,
    check_alike,
    check_name,
    load_rows,
    numbered_on,
    positive,
    save_predictor,
    save_row,
    stored,
)

OUTSIDE = ("fashion-mnist", "mnist", "noise")
SHOWN = 10_000  # images of each, as many as the test set has


class Run(Reading):
    """A run directory whose test predictions are read, or made, once."""

    def __init__(self, path: Path, root: str | None = None, device: str | None = None) -> None:
        super().__init__(path)
        self.device = device
        if root is not None:
            self.recipe = replace(self.recipe, data=replace(self.recipe.data, root=root))

    @cached_property
    def truth(self) -> Answers:
        """The labels of the test set, which newer runs keep beside their predictions."""
        return self.answers("test")

    @cached_property
    def test_probs(self) -> Array:
        """What each sample says of it."""
        return self.probs("test", self.truth, self.device)


@dataclass(frozen=True)
class Part:
    """Samples of one run that belong to one predictor."""

    run: Run
    samples: list[int]  # their places in the run's bank
    chains: list[int]  # that they come from
    seed: int | str

    @property
    def seconds(self) -> float:
        """The chains of a run take turns on one device: each has its share of the time."""
        return (self.run.seconds() or 0.0) * len(self.chains) / self.run.recipe.chains

    def rows(self, event: str) -> list[dict[str, Any]]:
        """What metrics.jsonl says of these chains."""
        return [row for row in self.run.run.metrics() if row.get("event") == event and row.get("chain") in self.chains]


def collect(
    paths: Sequence[Path],
    name: str,
    out: Path,
    *,
    label: str | None = None,
    average: str = "run",
    outside: Sequence[str] | None = None,
    root: str | None = None,
    device: str | None = None,
) -> Row:
    """Store the runs at `paths` as the row `name` in `out`; returns what its JSON file says.

    `average` says what is averaged to one predictor: each `chain` or each `run` by itself (then they are the seeds of
    the row, and the table has their mean and spread), or `all` runs together (then they are an ensemble).
    """
    check_name(name)
    runs = [Run(path, root, device) for path in paths]
    check_alike([(str(run.path), run.recipe) for run in runs])
    out.mkdir(parents=True, exist_ok=True)
    groups = group(runs, average)
    others = OUTSIDE if outside is None else outside
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as the runs themselves predict
        predictors = [predictor(parts, others, device) for parts in groups]
    files = [save_predictor(out, f"{name}-{i}", found) for i, found in enumerate(predictors)]
    own = runs[0].recipe
    # A resolved recipe names every default; where the data lay on that machine is nobody's business.
    write(out / f"{name}.toml", recipe_to_toml(replace(own, data=replace(own.data, root=None))))
    row = describe(name, label, groups, predictors, [file for some in files for file in some])
    row["aside"] = any(old.get("aside", False) for old in load_rows(out) if old["row"] == name)
    save_row(out, row)
    return row


def group(runs: Sequence[Run], average: str) -> list[list[Part]]:
    """The parts of each predictor."""
    if average == "chain":
        return [[part] for run in runs for chain in range(run.recipe.chains) if (part := one_chain(run, chain)).samples]
    whole = [Part(r, list(range(len(r.run.bank))), list(range(r.recipe.chains)), r.recipe.seed) for r in runs]
    return [whole] if average == "all" else [[part] for part in whole]


def one_chain(run: Run, chain: int) -> Part:
    """One chain of a run as a seed of its own."""
    bank = run.run.bank
    samples = [i for i in range(len(bank)) if bank.chain_of(i) == chain]
    return Part(run, samples, [chain], f"{run.recipe.seed}:{chain}")


def predictor(parts: Sequence[Part], outside: Sequence[str], device: str | None) -> Predictor:
    """The samples of all parts as one predictor, in the order of the epochs at which they were taken."""
    probs = np.concatenate([part.run.test_probs[part.samples] for part in parts])
    epochs = np.array([part.run.run.bank.meta(i)["epoch"] for part in parts for i in part.samples], dtype=np.float32)
    order = np.argsort(epochs, kind="stable")
    labels = parts[0].run.truth.labels.astype(np.uint8)
    several = len(order) > 1
    traces = [[(row["chain"], row["epoch"], row["loss"]) for row in part.rows("log")] for part in parts]
    return Predictor(
        probs=stored(probs[order], labels),
        labels=labels,
        epochs=epochs[order],
        trace=numbered_on([np.array(trace, dtype=np.float32).reshape(-1, 3) for trace in traces]),
        outside=shown(parts, outside, device),
        last=positive(probs[order[epochs[order] == epochs.max()]], np.float32) if several else None,
    )


def shown(parts: Sequence[Part], names: Sequence[str], device: str | None) -> dict[str, Array]:
    """The predictive on images from elsewhere, brought to the size of the run's own; what is not here is skipped."""
    run = parts[0].run
    found: dict[str, Array] = {}
    if not names:
        return found
    try:
        posterior = Posterior.concat([part.run.posterior[part.samples] for part in parts])
    except (InputError, RunError) as error:  # the weights stayed where the run was made
        tell(f"no images from elsewhere: {error}")
        return found
    for name in names:
        try:
            images = ood_inputs.make(name, pixels(run.examples("test")), SHOWN, run.recipe.data.root).images
        except InputError as error:
            tell(f"{name} is left out: {error}")
            continue
        with numerics(run.recipe, torch.device("cpu")):
            probs = posterior.predict(images, device=device, strategy="loop").probs
        found[name] = positive(probs.cpu().numpy(), np.float16)
    return found


def describe(
    name: str, label: str | None, groups: list[list[Part]], predictors: list[Predictor], files: list[str]
) -> Row:
    """The row as JSON: scores of the predictive, averaged over predictors, and how it was made."""
    run = groups[0][0].run
    runs = list({id(part.run): part.run for parts in groups for part in parts}.values())
    each = [found.scores() for found in predictors]
    sampler, manifest = run.recipe.sampler, run.run.manifest
    return {
        "row": name,
        "label": label,
        "aside": False,  # `join --aside` sets a row aside, and there it stays
        "temperature": None if sampler.name == "sgd" else sampler.temperature,
        "augment": run.recipe.data.augment,
        **{score: float(np.mean([scores[score] for scores in each])) for score in SCORES},
        "samples": min(len(found.probs) for found in predictors),
        "epochs": min(epochs(one) for one in runs),
        "chains": min(sum(len(part.chains) for part in parts) for parts in groups),  # that are averaged
        "status": "done" if all(one.run.status == "done" for one in runs) else "unfinished",
        "seeds": [part.seed for parts in groups for part in parts],
        "gpu_seconds": round(sum(part.seconds for parts in groups for part in parts), 1),
        "rollbacks": sum(len(part.rows("rollback")) for parts in groups for part in parts),
        "device": sorted({hardware(session) for one in runs for session in one.run.manifest["sessions"]}),
        "versions": manifest["versions"],
        "data": {"name": manifest["data"]["name"], "examples": len(run.truth), "digest": run.truth.digest},
        "recipe": f"{name}.toml",
        "probabilities": files,
        "validation": [validation(parts) for parts in groups],
    }


def epochs(run: Run) -> float:
    """Epochs of a finished run as its recipe says them; of another how far it has come."""
    plan = run.recipe.schedule
    return plan.epochs + plan.warm_start_epochs if run.run.status == "done" else round(run.epochs(), 1)


def hardware(session: dict[str, Any]) -> str:
    """The device that a session ran on."""
    found = session["hardware"]
    return str(found.get("gpu", found["device"]))


def validation(parts: Sequence[Part]) -> dict[str, list[float]]:
    """Validation scores as the runs noted them, in columns: of each sample, and of the average of its chain so far."""
    # A sample that is drawn again after a rollback replaces the one before.
    latest = {
        (number, row["chain"], row["index"]): (row["epoch"], row["scores"]["validation"])
        for number, part in enumerate(parts)
        for row in part.rows("sample")
        if "validation" in row["scores"]
    }
    columns: dict[str, list[float]] = {}
    for epoch, scores in latest.values():
        columns.setdefault("epoch", []).append(epoch)
        for of in ("single", "predictive"):
            for score in ("accuracy", "nll"):
                columns.setdefault(f"{of} {score}", []).append(scores[of][score])
    return columns


def tell(text: str) -> None:
    """For the person at the terminal; what is piped stays clean."""
    print(text, file=sys.stderr)
