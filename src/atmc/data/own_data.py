"""Data sets of a person's own: torch's `Dataset` and `DataLoader`, with transforms, workers and collate functions.

A data set is read once into memory. One whose transform draws at random is also kept to be read anew in every epoch
(`OwnData`), each example with random numbers of its own, a function of seed, epoch and example: a run is then resumed
exactly. An `IterableDataset` has no order that could be asked for, so what one pass gives is the data set.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from atmc.common.errors import InputError
from atmc.common.packed_inputs import Layout, are_several, pack
from atmc.data.dataset import ImageData
from atmc.data.streamed_source import IN_MEMORY

LABELS = ("label", "labels", "target", "targets", "y")  # keys of a batch that is a dict
_BATCH = 256
_TWICE = 4  # examples that are read twice, to see whether their transform draws at random


@dataclass(frozen=True)
class OwnData(ImageData):
    """A data set whose own transform draws at random; `images` holds one draw of each example."""

    dataset: Any = field(default=None, compare=False)
    collate: Callable[[list[Any]], Any] = field(default=default_collate, compare=False)
    workers: int = 0

    def subset(self, index: Tensor, split: str | None = None) -> ImageData:
        """The examples at `index` as they were drawn once."""
        plain = ImageData(
            self.name,
            self.split,
            self.images,
            self.labels,
            self.classes,
            self.mean,
            self.std,
            self.digest,
            self.layout,
        )
        return plain.subset(index, split)


def is_own(data: Any) -> bool:
    """Whether `data` is torch's `Dataset` or `DataLoader`."""
    return isinstance(data, Dataset | DataLoader)


def read_own(data: Any, name: str = "data", split: str = "train") -> ImageData:
    """Read a `Dataset` or `DataLoader` once."""
    dataset = data.dataset if isinstance(data, DataLoader) else data
    collate: Callable[[list[Any]], Any] = collate_plain
    if isinstance(data, DataLoader) and data.collate_fn is not default_collate and data.batch_size is not None:
        collate = data.collate_fn
    workers = data.num_workers if isinstance(data, DataLoader) else 0
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    size, layout = 0, None
    with drawing(0):
        for batch in in_order(data, _BATCH):
            x, y, found = parts_of(batch, name)
            if inputs and found != layout:
                raise InputError(
                    f"{name}: inputs {layout} and then {found}: give them one shape, by a transform or by padding in "
                    "collate_fn"
                )
            layout = found
            if inputs and x.shape[1:] != inputs[0].shape[1:]:
                raise InputError(
                    f"{name}: examples of shapes {list(inputs[0].shape[1:])} and {list(x.shape[1:])}: give them one "
                    "shape, by a transform or by padding in collate_fn"
                )
            inputs.append(x)
            labels.append(y)
            size += x.numel() * x.element_size()
            if size > IN_MEMORY:
                raise InputError(
                    f"{name}: more than {IN_MEMORY >> 30} GiB of examples, or no end of them: pass fewer, or "
                    "atmc.Potential with a loop of your own"
                )
    if not inputs:
        raise InputError(f"{name}: there are no examples")
    made = ImageData.from_tensors(
        _floats(torch.cat(inputs)), torch.cat(labels), split=split, classes=_classes(dataset, torch.cat(labels))
    )
    made = replace(made, layout=layout)
    if split != "train" or isinstance(dataset, IterableDataset) or not _draws(dataset, collate):
        return made
    about = {key: getattr(made, key) for key in ImageData.__dataclass_fields__}
    return OwnData(**about, dataset=dataset, collate=collate, workers=workers)


def in_order(data: Any, size: int) -> Iterable[Any]:
    """Batches of a `Dataset` or `DataLoader` in the data set's own order, every example once."""
    if not isinstance(data, DataLoader):
        return DataLoader(data, batch_size=size, collate_fn=collate_plain, generator=torch.Generator())
    if data.batch_size is None or isinstance(data.dataset, IterableDataset):
        return data
    picked = data.sampler
    if not isinstance(picked, RandomSampler | SequentialSampler):
        order = [int(i) for i in picked]
        if len(set(order)) < len(order):
            raise InputError(
                f"a DataLoader with a {type(picked).__name__} shows some examples more than once, which changes what "
                "the likelihood counts: pass its Dataset"
            )
        picked = sorted(order)
    else:
        picked = SequentialSampler(data.dataset)  # type: ignore[arg-type]
    collate = collate_plain if data.collate_fn is default_collate else data.collate_fn
    return DataLoader(
        data.dataset,
        batch_size=data.batch_size,
        sampler=picked,
        collate_fn=collate,
        num_workers=data.num_workers,
        generator=torch.Generator(),
        worker_init_fn=data.worker_init_fn,
    )


def split_batch(batch: Any, name: str = "data") -> tuple[Tensor, Tensor]:
    """Inputs and labels of a batch: a pair, or a dict that has labels. Several inputs are packed into one tensor."""
    return parts_of(batch, name)[:2]


def parts_of(batch: Any, name: str = "data") -> tuple[Tensor, Tensor, Layout | None]:
    """Inputs, labels, and what the inputs hold where several are packed."""
    if isinstance(batch, Mapping):
        keys = [key for key in LABELS if key in batch]
        rest = {key: part for key, part in batch.items() if key not in LABELS}
        if len(keys) != 1 or not rest:
            raise InputError(
                f"{name}: a batch with the entries {', '.join(map(str, batch))}: it takes one of labels "
                f"({', '.join(LABELS)}), and inputs"
            )
        batch = (rest if len(rest) > 1 else next(iter(rest.values())), batch[keys[0]])
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise InputError(
            f"{name}: a batch must be (inputs, labels) or a dict with labels, not {what}; several inputs come as "
            "((first, second), labels) or as a dict"
        )
    layout = None
    if are_several(batch[0]):
        x, layout = pack(batch[0], name)
    else:
        x = _tensor(batch[0], name)
    y = _tensor(batch[1], name)
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise InputError(f"{name}: a batch of {list(x.shape)} inputs and {list(y.shape)} labels does not pair up")
    return x, y, layout


def collate_plain(items: list[Any]) -> Any:
    """torch's default, which pictures of PIL go through too, as uint8 [C, H, W]."""
    return default_collate([_without_pictures(item) for item in items])


def _without_pictures(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _without_pictures(value) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return tuple(_without_pictures(value) for value in item)
    if hasattr(item, "convert") and hasattr(item, "getbands"):  # a picture of PIL
        pixels = np.array(item if item.mode in ("L", "RGB") else item.convert("RGB"))
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
    return item


def _tensor(part: Any, name: str) -> Tensor:
    try:
        return part if isinstance(part, Tensor) else torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        cure = "; numbers are needed, and labels count from 0" if isinstance(part, tuple | list) else ""
        raise InputError(f"{name}: a batch holds {type(part).__name__}, not a tensor{cure}") from error


def _floats(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float64, torch.bool) else x


def _classes(dataset: Any, labels: Tensor) -> tuple[str, ...] | None:
    """The names of the classes, where the data set has them, as `ImageFolder` does."""
    names = getattr(dataset, "classes", None)
    if labels.is_floating_point() or not isinstance(names, list | tuple) or len(names) <= int(labels.max()):
        return None
    return tuple(str(name) for name in names)


def _draws(dataset: Any, collate: Callable[[list[Any]], Any]) -> bool:
    """Whether the same examples, read twice, differ."""
    few = range(min(_TWICE, len(dataset)))
    with drawing(1):
        one, two = (split_batch(collate([dataset[i] for i in few]))[0] for _ in range(2))
    return one.shape != two.shape or not torch.equal(one, two)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Random numbers of torch, NumPy and Python from `seed`, and afterwards where they were."""
    plain, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        reseed(seed)
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(numpy_state)  # noqa: NPY002


def reseed(seed: int) -> None:
    torch.manual_seed(seed & (2**63 - 1))
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (transforms of other people's use it)
    random.seed(seed)
