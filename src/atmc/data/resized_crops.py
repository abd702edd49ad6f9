"""Random resized crops on the device, from images that are held there: two products of matrices a batch.

A crop is brought to its size by the filter that Pillow uses for `BILINEAR` with a box: a triangle as wide as two
pixels of the crop or of the image, whichever is wider. Along an axis that is a matrix [out, in] for each image, so a
batch is weights_y · image · weights_xᵀ, and flipping turns the rows of weights_x round. Boxes follow from the same
random words as on the host (`image_decoding.random_box`). Pillow rounds to bytes after each axis; this does not, so
both agree within a grey level and a half. Nothing looks at a value, so a step can be recorded in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atmc.data.image_decoding import LEAST_AREA

_HALF, _LOW = 0xFFFFFFFF, 0x7FFFFFFF


def boxes(words: Tensor, size: tuple[int, int], shape: tuple[int, int], least: float = LEAST_AREA) -> Tensor:
    """(top, left, height, width) [B, 4] of the crops that words [B, 2] stand for, from images of `size` (H, W)."""
    a, b = words.unbind(1)
    area = least + (1 - least) * ((a >> 32) & _HALF).double() / 2**32
    stretch = torch.exp(math.log(4 / 3) * (2 * ((a >> 1) & _LOW).double() / 2**31 - 1))
    whole = area * (size[0] * size[1])
    ratio = stretch * (shape[1] / shape[0])
    width = (whole * ratio).sqrt().clamp(max=size[1])
    height = (whole / ratio).sqrt().clamp(max=size[0])
    left = (size[1] - width) * (((b >> 32) & _HALF).double() / 2**32)
    top = (size[0] - height) * ((b & _HALF).double() / 2**32)
    return torch.stack([top, left, height, width], 1)


def filters(start: Tensor, extent: Tensor, out: int, size: int, flip: Tensor | None = None) -> Tensor:
    """Weights [B, out, size] that bring `extent` pixels from `start` on, of an axis of `size`, to `out` pixels."""
    at = torch.arange(out, device=start.device).expand(len(start), out)
    if flip is not None:
        at = torch.where(flip[:, None], out - 1 - at, at)
    scale = (extent / out)[:, None]
    centre = (start[:, None] + (at + 0.5) * scale).float()
    support = scale.clamp(min=1.0).float()
    pixel = torch.arange(size, device=start.device) + 0.5
    distance = (pixel[None, None, :] - centre[:, :, None]) / support[:, :, None]
    weights = (1.0 - distance.abs()).clamp(min=0.0)
    return weights / weights.sum(2, keepdim=True)


def resized(pixels: Tensor, words: Tensor, shape: tuple[int, int], least: float = LEAST_AREA) -> Tensor:
    """Crops [B, H', W', C] in grey levels from bytes [B, H, W, C]."""
    height, width, channels = pixels.shape[1:]
    # Half precision keeps a grey level to a sixteenth; CPUs are slow at it.
    work = torch.float16 if pixels.device.type == "cuda" else torch.float32
    top, left, tall, wide = boxes(words, (height, width), shape, least).unbind(1)
    down = filters(top, tall, shape[0], height).to(work)
    across = filters(left, wide, shape[1], width, (words[:, 0] & 1).bool()).to(work)
    rows = torch.bmm(down, pixels.to(work).flatten(2))  # [B, H', W · C]
    columns = rows.view(-1, shape[0], width, channels).transpose(1, 2).reshape(-1, width, shape[0] * channels)
    cut = torch.bmm(across, columns).view(-1, shape[1], shape[0], channels)
    return cut.transpose(1, 2)
