"""Out-of-distribution (OOD) images in the shape of the test images.

Three kinds are generated from the test set and Pillow's font; any other data set is resized.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

from atmc.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MADE = ("letters", "scrambled", "noise")
# Without capitals that look like digits: B, D, G, I, L, O, Q, S and Z.
ALPHABET = "ACEFHJKMNPRTUVWXY"


@dataclass(frozen=True)
class OodImages:
    """OOD images of a network's size."""

    name: str
    about: str
    images: Tensor  # uint8 [N, C, H, W]


def make(name: str, home: Tensor, count: int = 500, root: str | None = None) -> OodImages:
    """`count` images of the kind or data set `name`, in the shape of the test images `home`, uint8 [N, C, H, W]."""
    if home.ndim != 4 or str(home.dtype) != "torch.uint8":
        raise InputError("the run's examples are not images, so there are no OOD images for them")
    made = {"letters": letters, "scrambled": scrambled, "noise": noise}.get(name)
    return made(home, count) if made else other_data(name, home, count, root)


def noise(home: Tensor, count: int) -> OodImages:
    """Every pixel drawn independently from the test set's pixels."""
    import torch

    generator = torch.Generator().manual_seed(1)
    channels = home.shape[1]
    size = (count, *home.shape[2:])
    parts = []
    for c in range(channels):
        pool = home[:, c].reshape(-1)
        parts.append(pool[torch.randint(len(pool), size, generator=generator)])
    return OodImages("noise", "Every pixel is drawn independently from the test set's.", torch.stack(parts, 1))


def scrambled(home: Tensor, count: int) -> OodImages:
    """Test images whose quarters are permuted."""
    import torch

    generator = torch.Generator().manual_seed(2)
    images = home[:count].clone()
    height, width = images.shape[2] // 2, images.shape[3] // 2
    parts = [(slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width)) for r in (0, 1) for c in (0, 1)]
    # Orders in which no quarter stays where it was.
    orders = torch.tensor([order for order in permutations(range(4)) if all(order[i] != i for i in range(4))])
    chosen = orders[torch.randint(len(orders), (len(images),), generator=generator)]
    result = images.clone()
    for to in range(4):
        for source in range(4):
            rows = (chosen[:, to] == source).nonzero().squeeze(1)
            (y, x), (v, u) = parts[to], parts[source]
            result[rows, :, y, x] = images[rows, :, v, u]
    return OodImages("scrambled", "Test images whose quarters are permuted.", result)


def letters(home: Tensor, count: int) -> OodImages:
    """Capital letters in Pillow's font, as large and as bright as the test images, slightly rotated."""
    import numpy as np
    import torch
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(3)
    channels, height, width = (int(n) for n in home.shape[1:])
    pixels = home.float()
    paper, pen = (float(pixels.quantile(q)) if pixels.numel() < 1 << 24 else 255.0 * (q > 0.5) for q in (0.05, 0.98))
    border = float(pixels[:, :, 0].mean())
    if border > 127:  # ink on white paper
        paper, pen = pen, paper
    scale = 16
    made = np.empty((count, height, width), dtype=np.uint8)
    for i in range(count):
        canvas = Image.new("L", (width * scale, height * scale), int(paper))
        font = ImageFont.load_default(size=int(height * scale * rng.uniform(0.85, 1.05)))
        letter = ALPHABET[i % len(ALPHABET)]
        middle = (width * scale * rng.uniform(0.45, 0.55), height * scale * rng.uniform(0.45, 0.55))
        draw = ImageDraw.Draw(canvas)
        draw.text(middle, letter, fill=int(pen), font=font, anchor="mm", stroke_width=scale // 4, stroke_fill=int(pen))
        turned = canvas.rotate(rng.uniform(-12, 12), fillcolor=int(paper))
        made[i] = np.asarray(turned.resize((width, height), Image.Resampling.BOX))
    images = torch.from_numpy(made)[:, None].expand(count, channels, height, width).contiguous()
    return OodImages("letters", "Capital letters in Pillow's font, slightly rotated.", images)


def other_data(name: str, home: Tensor, count: int, root: str | None) -> OodImages:
    """The test split of another data set, resized to the size and channels of `home`."""
    import torch
    from torch.nn.functional import interpolate

    from atmc import data

    other = data.load(name, "test", root=root).images
    if other.ndim != 4 or other.dtype != torch.uint8:
        raise InputError(f"{name} does not hold images, so it cannot be shown to a network for images")
    images = other[:count].float()
    channels = home.shape[1]
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if images.shape[2:] != home.shape[2:]:
        images = interpolate(images, size=tuple(home.shape[2:]), mode="bilinear", antialias=True)
    about = f"Test images of {name}, resized to {home.shape[3]} × {home.shape[2]} pixels."
    return OodImages(name, about, images.round().clamp(0, 255).to(torch.uint8))
