"""The examples of a run: what is learned from, what is held out, and what is evaluated."""

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atmc import data
from atmc.common.errors import InputError
from atmc.data import ImageData, Source
from atmc.recipe.settings import Recipe
from atmc.target.likelihoods import OwnLikelihood

if TYPE_CHECKING:
    from atmc.storage.run_directory import RunDir

Examples = ImageData | Source
MOST_STEPS = 200_000_000  # a step takes some dozen bytes of a schedule


@dataclass(frozen=True)
class RunData:
    """The training set (its size is the N of the potential) and the evaluation sets by name.

    `inputs` is what the examples were, where these are features that a part of the network has made of them.
    """

    train: Examples
    evaluate: dict[str, Examples]
    inputs: Examples | None = None

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""
        return len(self.train.classes)

    def digests(self) -> dict[str, str]:
        """SHA-256 of every split, for the manifest."""
        return {"train": self.train.digest} | {split: found.digest for split, found in self.evaluate.items()}


def load_data(recipe: Recipe) -> RunData:
    """Load (or open, where they are streamed) and split the data a recipe names."""
    section = recipe.data
    whole = _get(section.name, "train", section.root)
    held: Examples | None = None
    if section.validation >= len(whole):
        raise InputError(f"data.validation = {section.validation} is not below the {len(whole)} training examples")
    if section.validation:
        whole, held = data.hold_out(whole, section.validation)
    splits: dict[str, Examples] = {}
    for split in recipe.run.evaluate:
        if split == "train":
            splits[split] = whole
        elif split == "validation" and held is not None:
            splits[split] = held
        else:
            splits[split] = _get(section.name, split, section.root)
    return RunData(whole, splits)


def load_split(run: "RunDir", split: str) -> Examples:
    """A split of the data of a run directory, read anew and checked to be what the run saw."""
    found = load_data(replace(run.recipe, run=replace(run.recipe.run, evaluate=[split]))).evaluate[split]
    known = (run.manifest.get("data") or {}).get("digests", {}).get(split)
    if known not in (None, found.digest):
        raise InputError(f"the {split} images of {found.name} are no longer those that {run.path} was run with")
    return found


def _get(name: str, split: str, root: str | None) -> Examples:
    return data.open_source(name, split, root) if data.is_streaming(name) else data.load(name, split, root)


def check_fits(model: nn.Module, examples: RunData, recipe: Recipe, likelihood: Any) -> None:
    """One clear line where batch, network, examples and labels do not fit together.

    Evaluation sets are looked at as the training set is: otherwise the first sample, perhaps hours later, finds out,
    in a folder that is then a run on these data.
    """
    train = examples.train
    if recipe.data.batch_size > len(train):
        raise InputError(
            f"data.batch_size = {recipe.data.batch_size} is larger than the {len(train)} training examples"
        )
    check_labels(*first_outputs(model, train), train.labels, likelihood)
    for split, found in examples.evaluate.items():
        if len(found) and split != "train":
            try:
                check_labels(*first_outputs(model, found), found.labels, likelihood, evaluated=True)
            except InputError as error:
                raise InputError(f"{split}: {error}") from error


def check_length(recipe: Recipe, examples: int) -> None:
    """One clear line where a run would have more steps than its schedule, which is a table, has room for."""
    steps = (recipe.schedule.epochs + recipe.schedule.warm_start_epochs) * examples // recipe.data.batch_size
    if steps > MOST_STEPS:
        raise InputError(
            f"schedule.epochs = {recipe.schedule.epochs} makes {steps:,} steps of {recipe.data.batch_size} examples "
            f"each, more than {MOST_STEPS:,}: make it shorter, and longer again when it is done"
        )


def first_outputs(model: nn.Module, found: Examples) -> tuple[Tensor, Tensor]:
    """What the network says about the first two examples of a set, and their labels."""
    few = found.subset(torch.arange(min(2, len(found))), "train")
    x, y = next(iter(data.eval_batches(few, 2, "cpu", workers=0)))
    twin = copy.deepcopy(model).cpu().eval()
    try:
        with torch.no_grad():
            outputs = twin(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        layout, said = getattr(found, "layout", None), str(error).splitlines()[0]
        what = f"examples of shape {list(found.shape)}" if layout is None else f"the inputs {layout}"
        raise InputError(f"the network does not take {what}: {said}") from error
    if not isinstance(outputs, Tensor):
        raise InputError(f"the network must return one tensor, not a {type(outputs).__name__}")
    return outputs, y


def check_labels(outputs: Tensor, y: Tensor, labels: Tensor, likelihood: Any, evaluated: bool = False) -> None:
    """`InputError` where first outputs and their labels `y`, or any of all the `labels`, do not go together.

    Targets of a regression that is only `evaluated` may lack an axis of length 1, as `Evaluator` allows.
    """
    own = isinstance(likelihood, OwnLikelihood)  # takes targets as they are
    if evaluated and not own and likelihood.task != "classification" and y.numel() == outputs.numel():
        y = y.reshape(outputs.shape)
    likelihood.check_shapes(outputs, y)
    likelihood.check_values(outputs, labels)
