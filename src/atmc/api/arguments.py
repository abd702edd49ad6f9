"""What people pass to `atmc.sample`: taken as it comes, or refused in one line that says what to pass instead.

All of it is looked at before anything is computed for long or written: a run that is refused leaves no folder behind.
"""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from atmc.common.errors import InputError
from atmc.common.packed_inputs import are_several, pack
from atmc.data import EvalBatches, ImageData, OwnData, is_own, load, read_own
from atmc.engine.run_data import Examples, RunData, check_labels, first_outputs
from atmc.nn.check import check, refusal


def check_call(model: Any, epochs: Any, out: str | Path | None) -> None:
    """That the network is one, that epochs can be counted, and that `out` can hold a run."""
    if isinstance(model, type):
        raise InputError(f"model must be a network, not the class {model.__name__}: pass {model.__name__}(…)")
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not a {type(model).__name__}")
    if any(p.dtype == torch.float64 for p in model.parameters()):
        raise InputError("the network is in float64, and runs are in float32: pass model.float()")
    if epochs is not None and (not isinstance(epochs, int) or epochs < 1):
        raise InputError(f"epochs must be a whole number of at least 1, not {epochs!r}")
    if out is not None:
        there = next((place for place in (Path(out), *Path(out).parents) if place.exists()), None)
        if there is not None and not there.is_dir():
            raise InputError(f"out={str(out)!r}: {there} is a file and cannot hold a run: name a folder")


def check_batch(batch_size: Any, count: int) -> None:
    """That batches of this size can be made of `count` examples."""
    if batch_size is None:
        return
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    if batch_size > count:
        raise InputError(f"batch_size={batch_size} is larger than the {count} examples")


def loader_batch(data: Any) -> int | None:
    """The size of batches that a `DataLoader` says, where it does."""
    size = getattr(data, "batch_size", None) if isinstance(data, DataLoader) else None
    if size is None or isinstance(data.dataset, IterableDataset):
        return None if size is None else int(size)
    return min(int(size), len(data.dataset))


def examples(data: Any, name: str = "data", split: str = "train") -> ImageData:
    """The examples that the argument `name` stands for."""
    if isinstance(data, ImageData):
        return data
    if isinstance(data, str):
        return load(data, split)
    if is_own(data):
        found = read_own(data, name, split)
        if (row := _first_bad(found.images)) is not None:
            raise InputError(f"{name}: the inputs hold NaN or infinite values, first in example {row}")
        return found
    try:
        inputs, labels = data
        if inputs is None or labels is None:
            raise TypeError("None stands for one of them")
        layout = None
        if are_several(inputs) and not isinstance(inputs, list):
            inputs, layout = pack(inputs, name)
        inputs, labels = _array(inputs, name), _array(labels, name)
        words = not isinstance(labels, Tensor) and np.asarray(labels).dtype.kind in "USO"
        x, y = torch.as_tensor(inputs), torch.as_tensor([] if words else labels)
    except (TypeError, ValueError) as error:
        kinds = "(inputs, labels), a Dataset, a DataLoader" + (", the name of a data set" if name == "data" else "")
        raise InputError(f"{name} must be {kinds} or an ImageData: {error}") from error
    if words:
        raise InputError(f"{name}: the labels are not numbers: number the classes 0…C−1")
    counts = [len(part) if part.ndim else 0 for part in (x, y)]
    if counts[0] != counts[1] or counts[0] == 0:
        raise InputError(f"{name}: {counts[0]} inputs and {counts[1]} labels do not pair up")
    if x.dtype in (torch.float64, torch.bool):
        x = x.float()
    if (row := _first_bad(x)) is not None:
        raise InputError(f"{name}: the inputs hold NaN or infinite values, first in example {row}")
    return replace(ImageData.from_tensors(x, y, split=split), layout=layout)


def _array(part: Any, name: str) -> Any:
    """A table or column of pandas as an array; anything else as it is."""
    if not hasattr(part, "to_numpy"):
        return part
    found = np.asarray(part.to_numpy())
    if found.dtype == object and (kinds := getattr(part, "dtypes", None)) is not None and hasattr(kinds, "items"):
        odd = [str(column) for column, kind in kinds.items() if getattr(kind, "kind", "O") not in "iufb"]
        raise InputError(f"{name}: the columns {', '.join(odd[:4])} are not numbers: encode them first")
    return found


def suited(model: nn.Module, found: ImageData) -> ImageData:
    """Whole numbers as floats, unless the network takes them as they are, as an embedding takes tokens."""
    if found.images.is_floating_point() or found.images.dtype == torch.uint8 or found.layout is not None:
        return found
    try:
        first_outputs(model, found)
    except InputError:
        return replace(found, images=found.images.float())
    return found


def say_if_augmented(train: ImageData) -> None:
    """Warn that a random transform, which is allowed, is a departure from Bayes' rule."""
    if isinstance(train, OwnData):
        warnings.warn(
            "the data set's transform draws at random: augmented examples are not independent data, so what is sampled "
            "departs from Bayes' rule (runs and reports say augment = own)",
            stacklevel=3,
        )


def evaluation(data: Any, test: Any) -> dict[str, Any]:
    """The evaluation sets by name: `test`, or that of a named data set."""
    if test is not None:
        return {"test": examples(test, "test", "test")}
    return {"test": examples(data, "test", "test")} if isinstance(data, str) else {}


def check_sets(model: nn.Module, given: RunData, likelihood: Any, guessed: bool) -> None:
    """That network, examples and labels go together, also those of `test`. `guessed`: a regression by its labels only.

    The likelihood refuses; what to pass instead is known here, where the labels are an argument. Warns of what can be
    sampled but is hardly meant.
    """
    for split, found in {"": given.train, **given.evaluate}.items():
        if len(found) == 0:
            continue
        try:
            outputs = _check_set(model, found, likelihood, guessed, evaluated=bool(split))
        except InputError as error:
            raise (InputError(f"{split}: {error}") if split else error) from error.__cause__
        if not split:
            _say_what_is_odd(outputs, found.labels, likelihood, guessed)


def check_sizes(given: RunData) -> None:
    """That pictures of `test` have the size of those for training.

    A network that pools would take others, too, and score what `Posterior.predict` refuses.
    """
    whole = tuple(given.train.shape)
    for split, found in given.evaluate.items():
        if len(whole) == 3 and isinstance(given.train, ImageData) and given.train.mean and tuple(found.shape) != whole:
            raise InputError(
                f"{split}: examples of shape {list(found.shape)}, where those of data have {list(whole)}: resize them"
            )


def _check_set(model: nn.Module, found: Examples, likelihood: Any, guessed: bool, evaluated: bool) -> Tensor:
    """The network's first outputs for a set that fits it."""
    outputs, y = first_outputs(model, found)
    try:
        check_labels(outputs, y, found.labels, likelihood, evaluated)
    except InputError as error:
        if hasattr(likelihood, "law"):  # of one's own: it alone knows what it takes
            raise
        if likelihood.task == "classification":
            raise InputError(_wrong_classes(outputs, found.labels, str(error))) from error
        raise InputError(_wrong_values(outputs, found.labels, likelihood, guessed)) from error
    return outputs


def _wrong_values(outputs: Tensor, targets: Tensor, likelihood: Any, guessed: bool) -> str:
    """What is wrong with the targets of a regression, and what to pass instead."""
    per_input = getattr(likelihood, "per_input", None)  # of a likelihood whose outputs are values and their noise
    if per_input is False:
        outputs = outputs[:, : outputs.shape[1] // 2]
    if (row := _first_bad(targets)) is not None:
        return f"the regression targets hold NaN or infinite values, first in example {row}"
    classes = guessed and _whole(targets)  # perhaps meant to be
    if targets.ndim == 1 and outputs.ndim == 2 and outputs.shape[1] > 1 and classes:
        return (
            f"labels of {targets.dtype} mean a regression, and the network has {outputs.shape[1]} outputs for each "
            "example: for classes pass y.long()"
        )
    if per_input:
        numbers = math.prod(targets.shape[1:])
        return (
            f"the network has {outputs.shape[1]} outputs for each example, and {type(likelihood).__name__} needs "
            f"{2 * numbers}: {numbers} for the target and {numbers} for the logarithm of its noise"
        )
    said = (
        f"the network's outputs are {[len(targets), *outputs.shape[1:]]} and the targets {list(targets.shape)}: "
        "they must have one shape"
    )
    if targets.ndim == 1 and outputs.ndim == 2 and outputs.shape[1] == 1:
        return f"{said}; pass y[:, None]" + (
            ", or for classes y.long() and an output for each class" if classes else ""
        )
    return f"{said}; pass y.squeeze(1)" if targets.ndim == 2 and outputs.ndim == 1 and targets.shape[1] == 1 else said


def _wrong_classes(outputs: Tensor, labels: Tensor, refused: str) -> str:
    """What is wrong with the labels of a classification, and what to pass instead where that is known."""
    if outputs.ndim != 2:
        return refused
    outs, count = outputs.shape[1], len(labels)
    integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.ndim != 1:
        said = f"labels must be [{count}], the class of each example, not {list(labels.shape)}"
        if labels.ndim == 2 and labels.shape[1] == 1:
            return f"{said}: pass y.squeeze(1)" + ("" if integers else ".long()")
        indices = "y.int().argmax(1)" if labels.dtype == torch.bool else "y.argmax(1)"
        return f"{said}: pass {indices}" if _one_hot(labels) else said
    if not integers:
        more = ", and two classes need two outputs" if labels.dtype == torch.bool and outs == 1 else ""
        return f"labels must be whole numbers, the class of each example, not {labels.dtype}: pass y.long(){more}"
    least, most = int(labels.min()), int(labels.max())
    if outs == 1 and least >= 0:
        classes = "two classes need two outputs" if most == 1 else f"{most + 1} classes need {most + 1} outputs"
        return (
            f"label {most} is out of range for a network with one output: {classes} (a regression: y.float()[:, None])"
        )
    return f"{refused}; if these count from 1, pass y - 1" if least == 1 and most == outs else refused


def _say_what_is_odd(outputs: Tensor, labels: Tensor, likelihood: Any, guessed: bool) -> None:
    """Warn where the labels alone made it a regression, and of probabilities where logits belong."""
    if guessed and _whole(labels):
        cure = "y.argmax(1)" if _one_hot(labels) else "y.long(), and an output for each class"
        warnings.warn(f"labels of {labels.dtype} mean a regression; for classes pass {cure}", stacklevel=4)
    elif likelihood.task == "classification" and outputs.shape[1] > 1:
        sums = outputs.double().sum(1)
        if bool((outputs >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
            warnings.warn(
                "the network's outputs are probabilities (none is below 0, and each example's add up to 1), and they "
                "are taken as logits: leave out the softmax at its end",
                stacklevel=4,
            )


def _first_bad(values: Tensor) -> int | None:
    """The first row with NaN or infinite values."""
    fine = torch.isfinite(values).reshape(len(values), values.numel() // len(values)).all(1)
    return None if bool(fine.all()) else int(fine.int().argmin())


def _whole(values: Tensor) -> bool:
    return bool((values == values.round()).all())


def _one_hot(labels: Tensor) -> bool:
    if labels.ndim != 2 or labels.shape[1] < 2:
        return False
    return bool(((labels == 0) | (labels == 1)).all()) and bool((labels.sum(1) == 1).all())


def check_layers(model: nn.Module, train: ImageData) -> None:
    """`InputError` for a network with layers that cannot be sampled."""
    few = train.subset(torch.arange(min(4, len(train))))
    example, _ = next(iter(EvalBatches(few, len(few)))) if len(few) > 1 else (None, None)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        findings = check(model, example.to(device) if isinstance(example, Tensor) else None)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape, said = list(train.shape), str(error).splitlines()[0]
        raise InputError(f"the network does not take examples of shape {shape}: {said}") from error
    if findings:
        raise InputError(refusal(findings))


def work(model: nn.Module, train: ImageData) -> float:
    """Operations of a forward pass for one example, at least two for each parameter: the counter misses some layers.

    Infinite for a network whose operations cannot be counted.
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        least = 2.0 * sum(p.numel() for p in model.parameters())
        with counter:
            outputs, _ = first_outputs(model, train)
    except Exception:  # it is the counting that failed: the network has been run before
        return math.inf
    return max(least, float(counter.get_total_flops()) / len(outputs))
