"""Crop, flip and normalise.

The image is padded by `pad` black pixels before normalisation, and a window of the original size is cut at a random
offset; it is flipped left to right with probability ½. Normalisation is a table lookup: a byte of channel c becomes
`table[c, byte]`, (byte/255 − mean)/std in float64, rounded once. A table gives the same bits on CPU, GPU and in Triton.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atmc.common.errors import InputError

Augment = Literal["none", "crop", "flip", "crop-flip"]
AUGMENTS: Final = ("none", "crop", "flip", "crop-flip")


def parse_augment(augment: str, pad: int) -> tuple[int, bool]:
    """(pad, flip) of an augmentation's name; pad is 0 without a crop."""
    if augment not in AUGMENTS:
        raise InputError(f"augment = {augment!r} is unknown: choose one of {', '.join(AUGMENTS)}")
    if pad < 0:
        raise InputError(f"pad = {pad} must not be negative")
    return (pad if "crop" in augment else 0), "flip" in augment


def lookup_table(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The flat table [channels · 256] of normalised bytes; without statistics a byte becomes byte/255."""
    centre = torch.tensor(_per_channel(mean or (0.0,), channels, "mean"), dtype=torch.float64)
    scale = torch.tensor(_per_channel(std or (1.0,), channels, "std"), dtype=torch.float64)
    byte = torch.arange(256, dtype=torch.float64) / 255
    return ((byte - centre[:, None]) / scale[:, None]).to(dtype).reshape(-1).to(device)


def _per_channel(values: tuple[float, ...], channels: int, what: str) -> tuple[float, ...]:
    if len(values) not in (1, channels):
        raise ValueError(f"{len(values)} values of {what} for {channels} channels")
    return values if len(values) == channels else values * channels


def table_offsets(channels: int, width: int, device: torch.device) -> Tensor:
    """The offset in the table of each byte of a row [width · channels].

    A whole row, because adding along an axis of three is slow; 32 bits, because every byte gets such an index.
    """
    return (torch.arange(channels, dtype=torch.int32, device=device) * 256).repeat(width)


def normalise(pixels: Tensor, table: Tensor, offsets: Tensor) -> Tensor:
    """Bytes [B, H, W, C] → values of the table's type, in two kernels."""
    index = pixels.flatten(2) + offsets
    return torch.index_select(table, 0, index.view(-1)).view(pixels.shape)


def crop_flip(image: npt.NDArray[np.uint8], pad: int, dx: int, dy: int, mirrored: bool) -> npt.NDArray[np.uint8]:
    """One image [H, W, C] padded, cropped and flipped on the host, for streamed data."""
    if pad:
        height, width = image.shape[:2]
        image = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))[dy : dy + height, dx : dx + width]
    return np.ascontiguousarray(image[:, ::-1] if mirrored else image)
