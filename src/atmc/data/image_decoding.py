"""Image files to bytes of one size. Pillow is imported by the functions that decode, not by importing this."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atmc.common.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".gif", ".tif", ".tiff")
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class View:
    """How a picture becomes an example: its size, its channels (1 grey, 3 RGB), and how much of the middle is shown."""

    height: int
    width: int
    channels: int = 3
    crop: float = 1.0

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


def decode(data: bytes, where: str, view: View, words: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """The picture in `data` as [H, W, C]: its middle, or with random `words` the crop and flip they stand for.

    The middle is the largest window of the view's proportions, times `view.crop`; a picture that already has the size
    comes out untouched. What cannot be decoded is an InputError that names `where`.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("image files need pillow: pip install 'atmc[cli]'") from error
    try:
        with Image.open(io.BytesIO(data)) as opened:
            picture = _upright(opened)
            box = middle(picture.size, view) if words is None else random_box(picture.size, view, words)
            pixels = _cut(picture, view, box, reduce=words is not None)
    except MemoryError:
        raise
    except Exception as error:  # decoders meet damaged bytes here and raise almost anything
        raise unreadable(where, error, len(data)) from error
    return np.ascontiguousarray(pixels[:, ::-1]) if words is not None and words[0] & 1 else pixels


def unreadable(where: object, error: Exception, size: int) -> InputError:
    """What to say of a file of `size` bytes that a decoder gave up on: why, and nothing of the program's insides."""
    from PIL import Image, UnidentifiedImageError

    said = " ".join(str(error).split())[:120]
    if size == 0:
        why = "it is empty"
    elif isinstance(error, UnidentifiedImageError):  # whose own words are the address of a buffer in memory
        why = "in no known format"
    elif isinstance(error, Image.DecompressionBombError):
        why = "it has too many pixels"
    else:
        why = f"damaged, or cut off: {said or type(error).__name__}"
    return InputError(f"{where} is no readable image ({why}): mend it or take it away")


def _cut(picture: Image, view: View, box: Box, reduce: bool) -> npt.NDArray[np.uint8]:
    from PIL.Image import Resampling

    mode = "RGB" if view.channels == 3 else "L"
    if reduce:
        # A JPEG can be decoded at a fraction of its size; ask for no less than the crop needs.
        width, height = picture.size
        need = (math.ceil(view.width * width / (box[2] - box[0])), math.ceil(view.height * height / (box[3] - box[1])))
        picture.draft(mode, need)
        x, y = picture.size[0] / width, picture.size[1] / height
        box = (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
    if picture.mode.startswith("I;16"):
        picture = picture.point(lambda value: value / 257, "L")  # 65535 becomes 255
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = _on_white(picture)
    cut = picture.convert(mode).resize((view.width, view.height), Resampling.BILINEAR, box=box)
    return np.array(cut, dtype=np.uint8).reshape(view.height, view.width, view.channels)


def _upright(picture: Image) -> Image:
    """The picture turned as its EXIF tag says: cameras store what they saw and note how they were held."""
    from PIL import ImageOps

    turned = picture.getexif().get(0x0112, 1) != 1
    return ImageOps.exif_transpose(picture) if turned else picture


def _on_white(picture: Image) -> Image:
    """The picture without its transparency, as it would look on a page."""
    from PIL import Image as pillow

    see_through = picture.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", see_through.size, "white"), see_through)


def middle(size: tuple[int, int], view: View) -> Box:
    """The largest centred window of the view's proportions, scaled by `view.crop`."""
    scale = min(size[0] / view.width, size[1] / view.height) * view.crop
    width, height = view.width * scale, view.height * scale
    left, top = (size[0] - width) / 2, (size[1] - height) / 2
    return (left, top, left + width, top + height)


def random_box(size: tuple[int, int], view: View, words: tuple[int, int]) -> Box:
    """The usual crop for large images: 8 % to 100 % of the area, proportions 3:4 to 4:3 of the view's, anywhere."""
    a, b = words
    area = 0.08 + 0.92 * (a >> 32) / 2**32
    stretch = (4 / 3) ** (2 * ((a >> 1) & 0x7FFFFFFF) / 2**31 - 1)
    whole = size[0] * size[1] * area
    ratio = stretch * view.width / view.height
    width, height = min(math.sqrt(whole * ratio), size[0]), min(math.sqrt(whole / ratio), size[1])
    left, top = (size[0] - width) * ((b >> 32) / 2**32), (size[1] - height) * ((b & 0xFFFFFFFF) / 2**32)
    return (left, top, left + width, top + height)


def read_image(path: Path | str, shape: tuple[int, ...]) -> Tensor:
    """One image file as the uint8 example [C, H, W] a data set of this shape would hold, for predictions."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(f"{path}: a picture cannot become an example of shape {shape}")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    pixels = decode(data, str(path), View(shape[1], shape[2], shape[0]))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
