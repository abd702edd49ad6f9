"""Store a row from run directories: test probabilities averaged by chain, scores by sample, the recipe, OOD inputs.

Uses a GPU if there is one. Stored test probabilities are reused, so that the networks see the OOD images only.
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
from cifar10_scores import averages, curves, entropy_of, mean_of, of_average
from cifar10_store import Array, Predictor, Row, check_alike, check_name, load_rows, rounded, save_row

OOD = ("fashion-mnist", "mnist", "noise")
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
    samples: list[int]  # their numbers in the run's bank
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
    ood: Sequence[str] | None = None,
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
    others = OOD if ood is None else ood
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as the runs themselves predict
        predictors = [predictor(parts, others, device) for parts in groups]
    own = runs[0].recipe
    # A resolved recipe names every default; where the data lay on that machine is nobody's business.
    write(out / f"{name}.toml", recipe_to_toml(replace(own, data=replace(own.data, root=None))))
    row = describe(name, label, groups, predictors)
    row["aside"] = any(old.get("aside", False) for old in load_rows(out) if old["row"] == name)
    return save_row(out, row, predictors)


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


def predictor(parts: Sequence[Part], ood: Sequence[str], device: str | None) -> Predictor:
    """The samples of all parts as one predictor, in the order of the epochs at which they were taken."""
    probs = np.concatenate([part.run.test_probs[part.samples] for part in parts])
    taken = [(part.run.run.bank, i) for part in parts for i in part.samples]
    epochs = np.array([bank.meta(i)["epoch"] for bank, i in taken])
    owners = [(number, part.run.run.bank.chain_of(i)) for number, part in enumerate(parts) for i in part.samples]
    numbers = {owner: number for number, owner in enumerate(sorted(set(owners)))}  # every run counts its own from 0
    order = np.argsort(epochs, kind="stable")
    probs, epochs, chains = probs[order], epochs[order], np.array([numbers[owner] for owner in owners])[order]
    labels = parts[0].run.truth.labels.astype(np.uint8)
    recipe = parts[0].run.recipe
    sampled = recipe.sampler.name != "sgd"
    lasts = [np.flatnonzero(chains == chain)[-1] for chain in range(len(numbers))]
    return Predictor(
        probs=rounded(averages(probs, chains)),
        labels=labels,
        last=rounded(probs[lasts]) if sampled and len(probs) > len(numbers) else None,
        entropy=shown(parts, ood, device),
        curves=curves(probs, labels, epochs, chains, recipe.schedule.cycle_epochs if sampled else None),
    )


def shown(parts: Sequence[Part], names: Sequence[str], device: str | None) -> dict[str, Array]:
    """The entropy of the prediction on OOD images of the size of the run's own; what is not here is skipped."""
    run = parts[0].run
    found: dict[str, Array] = {}
    if not names:
        return found
    try:
        posterior = Posterior.concat([part.run.posterior[part.samples] for part in parts])
    except (InputError, RunError) as error:  # the weights stayed where the run was made
        tell(f"no OOD inputs: {error}")
        return found
    for name in names:
        try:
            images = ood_inputs.make(name, pixels(run.examples("test")), SHOWN, run.recipe.data.root).images
        except InputError as error:
            tell(f"{name} is left out: {error}")
            continue
        with numerics(run.recipe, torch.device("cpu")):
            probs = posterior.predict(images, device=device, strategy="loop").probs
        found[name] = entropy_of(probs.cpu().numpy())
    return found


def describe(name: str, label: str | None, groups: list[list[Part]], predictors: list[Predictor]) -> Row:
    """The row as JSON: scores of the predictive, averaged over predictors, and how it was made."""
    run = groups[0][0].run
    runs = list({id(part.run): part.run for parts in groups for part in parts}.values())
    sampler, manifest = run.recipe.sampler, run.run.manifest
    return {
        "row": name,
        "label": label,
        "aside": False,  # `join --aside` sets a row aside, and there it stays
        "temperature": None if sampler.name == "sgd" else sampler.temperature,
        "augment": run.recipe.data.augment,
        **mean_of([of_average(found) for found in predictors]),
        "samples": min(found.samples for found in predictors),
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
    }


def epochs(run: Run) -> float:
    """Epochs of a finished run as its recipe says them; of another how far it has come."""
    plan = run.recipe.schedule
    return plan.epochs + plan.warm_start_epochs if run.run.status == "done" else round(run.epochs(), 1)


def hardware(session: dict[str, Any]) -> str:
    """The device that a session ran on."""
    found = session["hardware"]
    return str(found.get("gpu", found["device"]))


def tell(text: str) -> None:
    """For the person at the terminal; what is piped stays clean."""
    print(text, file=sys.stderr)
