"""A data set's examples on the device, and the gathers that take batches out of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atmc.common.errors import InputError
from atmc.data.augment import lookup_table, normalise, table_offsets
from atmc.data.dataset import ImageData
from atmc.data.epoch_order import EpochPlan
from atmc.data.resized_crops import resized


class DeviceStore:
    """Bytes padded with raw zeros as [N, H', W', C] and a table that normalises them, on one device.

    Floating data are normalised once and stored in `dtype`; `table` is then None. Examples of other ranks are images
    one pixel high: [N, D] has one channel, [N, C, …] has C.
    """

    def __init__(self, data: ImageData, device: torch.device | str, dtype: torch.dtype, pad: int = 0) -> None:
        self.data, self.device, self.dtype, self.pad = data, torch.device(device), dtype, pad
        shape = data.shape
        channels = shape[0] if len(shape) > 1 else 1
        height, width = (shape[1], shape[2]) if len(shape) == 3 else (1, math.prod(shape) // channels)
        self.grid = (height, width, channels)
        self.pixels, self.table = self._pixels_and_table(data)
        self.labels = data.labels.to(self.device)
        self._offsets = table_offsets(channels, width, self.device)
        self._padded_width = width + 2 * pad
        self._area = (height + 2 * pad) * self._padded_width
        self._rows = (torch.arange(height, device=self.device) * self._padded_width)[None, :, None]
        mean, std = (torch.tensor(v or usual) for v, usual in ((data.mean, (0.0,)), (data.std, (1.0,))))
        self._scale, self._shift = (1 / (255 * std)).to(self.device), (-mean / std).to(self.device)
        self._columns = torch.arange(width, device=self.device)[None, None, :]

    def _pixels_and_table(self, data: ImageData) -> tuple[Tensor, Tensor | None]:
        height, width, channels = self.grid
        images = data.images.reshape(len(data), channels, height, width).permute(0, 2, 3, 1)
        images = torch.nn.functional.pad(images, (0, 0, self.pad, self.pad, self.pad, self.pad))
        if data.images.dtype == torch.uint8:
            table = lookup_table(data.mean, data.std, channels, self.dtype, self.device)
            return images.contiguous().to(self.device), table
        if data.images.is_complex():
            raise InputError(f"{data.name}: inputs of {data.images.dtype}: give real numbers")
        if not data.images.is_floating_point():  # whole numbers, as of tokens, stay what they are
            return images.contiguous().to(self.device), None
        if data.mean:
            centre, scale = (torch.tensor(values, dtype=torch.float64) for values in (data.mean, data.std))
            images = (images.double() - centre) / scale
        return images.to(self.dtype).contiguous().to(self.device), None

    def addresses(self, plan: EpochPlan) -> Tensor:
        """An epoch's plan as addresses, [N, 3]: the first pixel of each window, the way to walk (±1), the example."""
        mirrored = plan.flip.long()
        origin = plan.order * self._area + plan.dy * self._padded_width + plan.dx + mirrored * (self.grid[1] - 1)
        return torch.stack([origin, 1 - 2 * mirrored, plan.order], dim=1)

    def windows(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs and labels at rows of `slots`, cut and mirrored as they say."""
        origin, stride, index = slots.unbind(1)
        where = torch.addcmul(origin[:, None, None] + self._rows, stride[:, None, None], self._columns)
        pixels = torch.index_select(self.pixels.view(-1, self.grid[2]), 0, where.view(-1))
        return self._finish(pixels.view(-1, *self.grid), index)

    def examples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs and labels of the examples at `index`, as they are."""
        height, width, _ = self.grid
        whole = self.pixels[:, self.pad : self.pad + height, self.pad : self.pad + width]
        return self._finish(torch.index_select(whole, 0, index), index)

    def resized(self, slots: Tensor, side: int | None, least: float) -> tuple[Tensor, Tensor]:
        """The inputs and labels at rows (random word, random word, example) of `slots`: random resized crops."""
        shape = self.grid[:2] if side is None else (side, side)
        levels = resized(torch.index_select(self.pixels, 0, slots[:, 2]), slots[:, :2], shape, least)
        values = torch.addcmul(self._shift, levels.float(), self._scale).to(self.dtype)
        return values.contiguous().permute(0, 3, 1, 2), self.labels[slots[:, 2]]

    def _finish(self, pixels: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        values = pixels if self.table is None else normalise(pixels, self.table, self._offsets)
        return self.shaped(values), self.labels[index]

    def shaped(self, values: Tensor) -> Tensor:
        """[B, H, W, C] seen as the data's own shape; an image's channels stay last in memory."""
        x = values.permute(0, 3, 1, 2)
        return x if len(self.data.shape) == 3 else x.reshape(len(x), *self.data.shape)
