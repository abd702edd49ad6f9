"""Inputs of a prediction: tensors, arrays, data sets, loaders and streams as batches; normalisation of pixels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from atmc.common.errors import InputError, outside
from atmc.common.packed_inputs import are_several, pack
from atmc.data.own_data import LABELS, in_order, is_own, read_own
from atmc.nn.several_inputs import layout_of

CLEARLY_BYTES = 8.0  # pictures of 0..255 reach beyond this unless they are black
KINDS = "inputs must be a tensor, an array, a data set or batches of them"


def home_of(inputs: Any) -> torch.device:
    """The device of the inputs, to which results are returned."""
    return inputs.device if isinstance(inputs, Tensor) else torch.device("cpu")


def pick_device(home: torch.device, device: torch.device | str | None) -> torch.device:
    """The device named; else the inputs' own if it is an accelerator; else CUDA where there is one."""
    if device is not None:
        found = torch.device(device)
        if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device {device}: this machine has {torch.cuda.device_count()} CUDA devices")
        return found
    if home.type != "cpu":
        return home
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_batches(inputs: Any, size: int, shape: tuple[int, ...] | None = None) -> tuple[Iterable[Tensor], int | None]:
    """Batches of inputs, and how many where that is known.

    Tensors, arrays and data sets are cut into equal parts of at most `size`. Anything else is an iterable of batches or
    of (inputs, labels). `shape`, that of one input, tells one input from a batch.
    """
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, not {size}")
    if isinstance(inputs, str | bytes):
        raise ValueError(f"{KINDS}; atmc predict takes files")
    if is_own(inputs):  # in the data set's order, also where a loader would shuffle
        batches: Any = in_order(inputs, size)
        return Firsts(batches), None if isinstance(batches.dataset, IterableDataset) else len(batches)
    if isinstance(inputs, Mapping):
        inputs = first_of(inputs)
    whole = getattr(inputs, "images", inputs)
    if hasattr(whole, "to_numpy"):  # a table of pandas
        whole = whole.to_numpy()
    if isinstance(whole, np.ndarray):
        whole = torch.from_numpy(np.ascontiguousarray(whole))
    if isinstance(whole, Tensor):
        if shape is not None and tuple(whole.shape) == shape and (whole.ndim < 2 or shape[0] > 1):
            raise InputError(f"inputs of shape {list(whole.shape)} are one input alone: add a batch dimension: x[None]")
        if whole.ndim < 2 or len(whole) == 0:
            raise ValueError(f"inputs must have the shape [examples, ...] with at least one, not {list(whole.shape)}")
        count = math.ceil(len(whole) / size)
        return list(torch.split(whole, math.ceil(len(whole) / count))), count
    if hasattr(inputs, "read") and hasattr(inputs, "labels"):
        return OnDisk(inputs, size), math.ceil(len(inputs) / size)
    if isinstance(inputs, Iterator):
        return (first_of(batch) for batch in inputs), None
    if not isinstance(inputs, Iterable) and not hasattr(inputs, "__getitem__"):
        raise ValueError(f"{KINDS}, not {type(inputs).__name__}")
    return Firsts(inputs), len(inputs) if hasattr(inputs, "__len__") else None


class Pixels:
    """Raw inputs as a network takes them, on its device.

    uint8 pixels are standardised per channel, (x/255 − mean)/std; floats are taken as they are. With `mean` and the
    `shape` of one image, images of another size are refused: a network that pools would accept them and predict worse.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], shape: tuple[int, ...] | None = None) -> None:
        if len(mean) != len(std) or any(s <= 0 for s in std):
            raise ValueError("mean and std must have one entry per channel each, and std must be positive")
        self.mean, self.std = mean, std
        self.shape = shape if mean and shape is not None and len(shape) == 3 else None  # of pictures only
        self._there: dict[str, tuple[Tensor, Tensor]] = {}

    def __call__(self, raw: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        # Flat inputs [N, D] are left to the network, which may begin by making pictures flat.
        if self.shape is not None and raw.ndim > 2 and tuple(raw.shape[1:]) != self.shape:
            raise InputError(
                f"inputs of shape {list(raw.shape)}: pictures are taken as [examples, channels, height, width] = "
                f"[N, {', '.join(map(str, self.shape))}]{_cure(tuple(raw.shape), self.shape)}"
            )
        # All of one flat axis [N, D] is one channel, as in the statistics of the training data.
        channels = 1 if raw.ndim == 2 and len(self.mean) == 1 else raw.shape[1]
        if raw.dtype == torch.uint8 and self.mean and channels != len(self.mean):
            raise ValueError(
                f"inputs of shape {list(raw.shape)} have {channels} channels, the network takes {len(self.mean)}"
            )
        x = raw.to(device, non_blocking=True)
        if x.dtype == torch.uint8:
            x = x.float() / 255.0
            if self.mean:
                mean, std = self._on(x.device)
                shape = (1, -1, *[1] * (x.ndim - 2))
                x = (x - mean.view(shape)) / std.view(shape)
        x = x.to(dtype)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x

    def check_scale(self, raw: Tensor) -> None:
        """Refuse floats of 0..255 and warn of floats of 0..1, which were not normalised.

        Normalised pixels lie around 0 and none is beyond `top`, (1 − mean)/std. Floats of 0..1 must reach from about 0
        to about 1, so that a normalised dark or bright image gives no warning. Waits for the device once.
        """
        if raw.dtype == torch.uint8 or raw.ndim < 3 or raw.numel() == 0:
            return
        if not self.mean or not all(0 < mean < 1 for mean in self.mean):
            return
        low, high = torch.stack(raw.detach().float().aminmax()).tolist()
        top = max((1 - mean) / std for mean, std in zip(self.mean, self.std, strict=True))
        said = (
            f"the inputs are {raw.dtype} numbers from {low:.3g} to {high:.3g}, which are taken as they are, and look "
            "like pixels that were not normalised: pass uint8 pixels, which are normalised here, or (x - mean) / std "
            "with posterior.mean and posterior.std, which are for pixels from 0 to 1"
        )
        of_bytes = low >= 0 and max(1.01 * top, CLEARLY_BYTES) < high <= 255
        if of_bytes and high > 2 * top:
            raise InputError(said)
        if of_bytes or (0 <= low < 0.05 and 0.9 < high <= 1):
            warnings.warn(said, stacklevel=outside())

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        key = str(device)
        if key not in self._there:  # once: a copy to the device waits for it
            self._there[key] = torch.tensor(self.mean, device=device), torch.tensor(self.std, device=device)
        return self._there[key]


def _cure(given: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What to do about inputs whose shape is not [N, C, H, W] for images of `wanted`, if it can be guessed."""
    channels, height, width = wanted
    if given == wanted:
        return "; for one picture add a batch dimension: x[None]"
    if given[1:] == (height, width, channels):
        return "; channels come first: x.permute(0, 3, 1, 2) of a tensor"
    if channels == 1 and given[1:] == (height, width):
        return "; add the dimension of channels: x[:, None]"
    if len(given) == 3 and given[0] == channels:
        return "; for one picture add a batch dimension, x[None], and resize it"
    return "; resize them first" if len(given) == 4 and given[1] == channels else ""


@contextmanager
def fitting(model: nn.Module, shape: tuple[int, ...] | None, raw: Tensor) -> Iterator[None]:
    """Name the right shape if a network's call on `raw` fails because of a wrong one.

    Checked only after a failure, since many networks take images of any size. `shape` is that of one training input.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        given, said = list(raw.shape[1:]), str(error).splitlines()[0]
        wanted = _taken(model, given) if shape is None else list(shape)
        if wanted is None or wanted == given:
            raise
        raise InputError(f"each input has the shape {given}, but the network takes {wanted} ({said})") from error


def _taken(model: nn.Module, given: list[int]) -> list[int] | None:
    """The shape that a network's first layer takes, if the layer alone tells it."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    first = next((module for module in model.modules() if isinstance(module, kinds)), None)
    if isinstance(first, nn.Linear):
        return [first.in_features] if len(given) == 1 else None  # of several dimensions a flattening may come before it
    return None if first is None else [first.in_channels, *given[1:]]


def precision_of(model: nn.Module) -> torch.dtype:
    """The dtype of a network's parameters, which its inputs must have."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def looks_up(model: nn.Module) -> bool:
    """Whether a network takes integers, as indices of an embedding."""
    packed = layout_of(model) is not None
    return packed or any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules())


def first_of(batch: Any) -> Tensor:
    """The inputs of a batch that may be a pair of inputs and labels."""
    first = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if isinstance(batch, Mapping):
        first = {key: part for key, part in batch.items() if key not in LABELS}
        if not first:
            raise InputError(f"inputs with the entries {', '.join(map(str, batch))}, which are labels alone")
        if len(first) == 1:
            first = next(iter(first.values()))
    if are_several(first):
        return pack(first)[0]
    if isinstance(first, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(first))
    if not isinstance(first, Tensor):
        cure = "; of plain numbers make one with torch.tensor" if isinstance(first, int | float | tuple | list) else ""
        raise ValueError(f"{KINDS}, and a batch here holds {type(first).__name__}{cure}")
    return first


def with_labels(data: Any) -> tuple[Any, Any]:
    """Inputs and labels of data that have both."""
    if is_own(data):
        found = read_own(data, "inputs", "test")
        return found.images, found.labels
    if hasattr(data, "images") and hasattr(data, "labels"):
        return data.images, data.labels
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    raise InputError(
        f"evaluate needs labels: pass evaluate(x, y), a Dataset or a DataLoader, not a {type(data).__name__} alone"
    )


class Firsts:
    """The inputs of an iterable of batches, without the labels."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Tensor]:
        return (first_of(batch) for batch in self.batches)


class OnDisk:
    """Batches of a data set on disk; the next one is read while one is used."""

    def __init__(self, source: Any, size: int) -> None:
        self.source = source
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        # Threads are enough: decoders and files release the interpreter's lock.
        with ThreadPoolExecutor(8) as readers, ThreadPoolExecutor(1) as ahead:

            def batch(start: int) -> Tensor:
                pixels = list(readers.map(self.source.read, range(start, min(start + self.size, len(self.source)))))
                return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()

            following = ahead.submit(batch, 0) if len(self.source) else None
            for start in range(0, len(self.source), self.size):
                assert following is not None
                ready = following.result()
                if start + self.size < len(self.source):
                    following = ahead.submit(batch, start + self.size)
                yield ready
