"""Images that are not what the network was taught, to see whether it notices.

Three kinds are made on the spot from nothing but the test set and Pillow's own font, each honest about what it is; any
other named data set can be brought to the network's size and serve as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

from atmc.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MADE = ("letters", "scrambled", "noise")
# Capitals that are nobody's digit: without B, D, G, I, L, O, Q, S and Z.
ALPHABET = "ACEFHJKMNPRTUVWXY"


@dataclass(frozen=True)
class StrangerImages:
    """Images of a network's size that come from elsewhere."""

    name: str
    about: str
    images: Tensor  # uint8 [N, C, H, W]


def make(name: str, home: Tensor, count: int = 500, root: str | None = None) -> StrangerImages:
    """`count` images of the kind or data set `name`, in the shape of the test images `home`, uint8 [N, C, H, W]."""
    if home.ndim != 4 or str(home.dtype) != "torch.uint8":
        raise InputError("the run's examples are not images, so there are no strangers to them")
    if name == "letters":
        return letters(home, count)
    if name == "scrambled":
        return scrambled(home, count)
    if name == "noise":
        return noise(home, count)
    return elsewhere(name, home, count, root)


def noise(home: Tensor, count: int) -> StrangerImages:
    """Every pixel drawn by itself from the test set's pixels: the right brightness and contrast, and nothing else."""
    import torch

    generator = torch.Generator().manual_seed(1)
    channels = home.shape[1]
    size = (count, *home.shape[2:])
    parts = []
    for c in range(channels):
        pool = home[:, c].reshape(-1)
        parts.append(pool[torch.randint(len(pool), size, generator=generator)])
    return StrangerImages("noise", "Every pixel is drawn by itself from the test set's pixels.", torch.stack(parts, 1))


def scrambled(home: Tensor, count: int) -> StrangerImages:
    """Test images cut into quarters that change places: the same strokes, and no longer what they were."""
    import torch

    generator = torch.Generator().manual_seed(2)
    images = home[:count].clone()
    height, width = images.shape[2] // 2, images.shape[3] // 2
    places = [(slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width)) for r in (0, 1) for c in (0, 1)]
    # Orders in which no quarter stays where it was.
    orders = torch.tensor([order for order in permutations(range(4)) if all(order[i] != i for i in range(4))])
    chosen = orders[torch.randint(len(orders), (len(images),), generator=generator)]
    result = images.clone()
    for to in range(4):
        for source in range(4):
            rows = (chosen[:, to] == source).nonzero().squeeze(1)
            (y, x), (v, u) = places[to], places[source]
            result[rows, :, y, x] = images[rows, :, v, u]
    return StrangerImages("scrambled", "Test images cut into quarters that changed places.", result)


def letters(home: Tensor, count: int) -> StrangerImages:
    """Capital letters in Pillow's own font, as large and as bright as the test set's pictures, slightly turned."""
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
    return StrangerImages("letters", "Capital letters, drawn with Pillow's own font and slightly turned.", images)


def elsewhere(name: str, home: Tensor, count: int, root: str | None) -> StrangerImages:
    """The test split of another data set, brought to the size and number of channels of `home`."""
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
    about = f"Test images of {name}, brought to {home.shape[3]} × {home.shape[2]} pixels."
    return StrangerImages(name, about, images.round().clamp(0, 255).to(torch.uint8))
