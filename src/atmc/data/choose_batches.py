"""Choose batches from the device's memory or streamed batches for a data set."""

from __future__ import annotations

import torch

from atmc.common.errors import InputError
from atmc.data.dataset import ImageData
from atmc.data.device_batches import DeviceBatches
from atmc.data.evaluation_batches import EvalBatches
from atmc.data.image_decoding import LEAST_AREA
from atmc.data.importance_batches import ImportanceBatches
from atmc.data.own_batches import OwnBatches
from atmc.data.own_data import OwnData
from atmc.data.stream_batches import StreamBatches, StreamEvalBatches
from atmc.data.streamed_source import Source
from atmc.data.training_batches import Batches

SHARE = 0.25  # of the device's free memory that a data set may take; the network needs the rest


def fits(data: ImageData, device: torch.device, pad: int = 4) -> bool:
    """Whether `data`, padded, fits on `device`."""
    if device.type != "cuda":
        return True
    height, width = data.shape[1:] if len(data.shape) == 3 else (1, 1)
    growth = (height + 2 * pad) * (width + 2 * pad) / (height * width)
    free, _ = torch.cuda.mem_get_info(device)
    return data.images.numel() * data.images.element_size() * growth < SHARE * free


def train_batches(
    data: ImageData | Source,
    batch_size: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    augment: str = "none",
    seed: int = 0,
    *,
    pad: int = 4,
    rank: int = 0,
    world: int = 1,
    workers: int = 2,
    independent: bool = False,
    importance: bool = False,
    strata: bool = True,
    side: int | None = None,
    least: float = LEAST_AREA,
    corrupt: str = "refuse",
) -> Batches:
    """`DeviceBatches` for a data set in memory that the device can hold, `StreamBatches` for any other.

    `OwnBatches` for one whose own transform draws at random. `independent`: every example of every batch is drawn from
    all data, instead of epochs that show each once. `importance`: drawn by importance, without augmentation
    (`ImportanceBatches`), one example from each of equal `strata` or independently. `side` and `least` are those of
    "resized-crop-flip". `corrupt`: what becomes of an image that cannot be read, "refuse" or "skip", where images
    stream.
    """
    where = torch.device(device)
    if importance:
        return _by_importance(data, batch_size, where, dtype, augment, seed, world, strata)
    if isinstance(data, ImageData) and not isinstance(data, OwnData) and fits(data, where, pad):
        return DeviceBatches(
            data,
            batch_size,
            where,
            dtype,
            augment,
            seed,
            pad=pad,
            rank=rank,
            world=world,
            independent=independent,
            side=side,
            least=least,
        )
    if independent:
        raise InputError(
            "sampler.noise_rank and noise_examples draw the examples of every batch from all data, and "
            f"{data.name} is read epoch by epoch: leave them out"
        )
    if isinstance(data, OwnData):
        return OwnBatches(data, batch_size, where, dtype, seed, rank=rank, world=world)
    return StreamBatches(
        data,
        batch_size,
        where,
        dtype,
        augment,
        seed,
        pad=pad,
        rank=rank,
        world=world,
        workers=workers,
        side=side,
        least=least,
        corrupt=corrupt,
    )


def _by_importance(
    data: ImageData | Source,
    batch_size: int,
    device: torch.device,
    dtype: torch.dtype,
    augment: str,
    seed: int,
    world: int,
    strata: bool,
) -> ImportanceBatches:
    """`ImportanceBatches`, or one line with the key where these data or processes cannot have them."""
    if augment != "none":
        raise InputError(f"importance takes examples as they are, and augment is {augment!r}")
    if world > 1:
        raise InputError(
            f'data.draw = "importance" keeps the scores of all examples in one process, and {world} share this chain: '
            'use data.draw = "auto"'
        )
    if not isinstance(data, ImageData) or isinstance(data, OwnData) or not fits(data, device, 0):
        raise InputError(
            f'data.draw = "importance" takes any example at any step, and {data.name} is read epoch by epoch: '
            'use data.draw = "auto"'
        )
    return ImportanceBatches(data, batch_size, device, dtype, seed, strata)


def eval_batches(
    data: ImageData | Source,
    batch_size: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    workers: int = 2,
) -> EvalBatches | StreamEvalBatches:
    """The data in their own order, without augmentation, every example once."""
    where = torch.device(device)
    if isinstance(data, ImageData) and fits(data, where, 0):
        return EvalBatches(data, batch_size, where, dtype)
    return StreamEvalBatches(data, batch_size, where, dtype, workers=workers)
