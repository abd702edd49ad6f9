"""Corrupted images: seven corruptions of uint8 images in five severities, the same for the same seed.

Severity s is the fraction s/5 of a strongest corruption (JPEG: its quality is multiplied by 0.6 each time). How strong
that is was set by hand on clothes of 28 × 28 pixels, such that most can still be told. Lengths go with the image's
shorter side, so that small and large images are corrupted alike.

    noise        Gaussian, standard deviation 0.05 s of the full range, independent for each value
    blur         Gaussian, standard deviation side/80 · s pixels
    contrast     differences from the image's mean are multiplied by 1 − 0.18 s
    brightness   0.1 s of the full range is added
    jpeg         saved at quality 50, 30, 18, 11, 6
    pixelate     reduced to the fraction 1 − 0.15 s of its sides, and enlarged without smoothing
    fog          the fraction 0.13 s of each value is replaced by that of a smooth random bright field
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.common.errors import InputError

SEVERITIES = (1, 2, 3, 4, 5)
QUALITY = (50, 30, 18, 11, 6)


def corrupt(images: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """`images` (uint8 `[N, C, H, W]`) corrupted by one of CORRUPTIONS; the result follows from the arguments alone."""
    if kind not in CORRUPTIONS:
        raise InputError(f"there is no corruption {kind!r}: choose {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise InputError(f"the severity of a corruption is 1 to 5, not {severity}")
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise InputError("corruptions are for images: uint8 of the shape [N, C, H, W]")
    generator = torch.Generator().manual_seed(1_000_003 * seed + 101 * list(CORRUPTIONS).index(kind) + severity)
    made = CORRUPTIONS[kind](images.cpu().float() / 255, severity, generator)
    return (made.clamp(0, 1) * 255).round().to(torch.uint8)


def noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    return x + 0.05 * severity * torch.randn(x.shape, generator=generator)


def blur(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    wide = min(x.shape[2:]) / 80 * severity
    reach = min(max(1, int(3 * wide + 0.5)), min(x.shape[2:]) - 1)  # reflection needs a side longer than that
    at = torch.arange(-reach, reach + 1, dtype=x.dtype)
    kernel = torch.exp(-at.square() / (2 * wide**2))
    kernel = kernel / kernel.sum()
    channels = x.shape[1]
    for shape, pad in (((1, -1), (reach, reach, 0, 0)), ((-1, 1), (0, 0, reach, reach))):
        weight = kernel.view(1, 1, *shape).expand(channels, 1, -1, -1)
        x = F.conv2d(F.pad(x, pad, mode="reflect"), weight, groups=channels)
    return x


def contrast(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + (1 - 0.18 * severity) * (x - mean)


def brightness(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    return x + 0.1 * severity


def jpeg(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    from PIL import Image

    if x.shape[1] not in (1, 3):
        raise InputError(f"JPEG has one or three channels, and these images have {x.shape[1]}")
    found = []
    for pixels in (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(pixels.squeeze(-1) if x.shape[1] == 1 else pixels).save(
            buffer, "JPEG", quality=QUALITY[severity - 1]
        )
        found.append(np.atleast_3d(np.asarray(Image.open(buffer))))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 255


def pixelate(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    height, width = (max(1, round(side * (1 - 0.15 * severity))) for side in x.shape[2:])
    return F.interpolate(F.adaptive_avg_pool2d(x, (height, width)), x.shape[2:], mode="nearest")


def fog(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    field, size, weight = torch.zeros(len(x), 1, *x.shape[2:]), 2, 1.0
    while size <= max(x.shape[2:]):  # octaves: each twice as fine and half as strong as the one before
        rough = torch.rand(len(x), 1, size, size, generator=generator)
        field += weight * F.interpolate(rough, x.shape[2:], mode="bilinear", align_corners=True)
        size, weight = 2 * size, weight / 2
    low, high = field.amin((2, 3), keepdim=True), field.amax((2, 3), keepdim=True)
    bright = 0.6 + 0.4 * (field - low) / (high - low).clamp_min(1e-6)
    share = 0.13 * severity
    return (1 - share) * x + share * bright


CORRUPTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "noise": noise,
    "blur": blur,
    "contrast": contrast,
    "brightness": brightness,
    "jpeg": jpeg,
    "pixelate": pixelate,
    "fog": fog,
}
