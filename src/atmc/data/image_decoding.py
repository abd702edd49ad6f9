"""Decode image files to bytes of one size, for training, evaluation and `atmc predict`.

Files are untrusted: only regular files (a pipe would hang), raster formats that Pillow decodes in-process (PostScript
would start another program), and a bounded number of pixels, checked before decoding. Pillow is imported when needed.
"""

from __future__ import annotations

import io
import math
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
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
# Raster formats that Pillow reads in-process. Left out on purpose: EPS, which runs Ghostscript.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM", "ICO", "TGA", "PCX", "SGI", "QOI")
MAX_PIXELS = 100_000_000
TOO_LARGE = f"it has more pixels than the limit of {MAX_PIXELS // 1_000_000} megapixels; make it smaller first"
MAX_BYTES = 1 << 30
ORIENTATION = 0x0112  # EXIF tag
Box = tuple[float, float, float, float]
Words = tuple[int, int]  # random bits of an augmentation
LEAST_AREA = 0.08  # of a random crop, as is usual for ImageNet


class Unreadable(InputError):
    """What is wrong with an image; `naming` adds its name."""


@dataclass(frozen=True)
class View:
    """How an image becomes an example: size, channels (1 grey, 3 RGB), and the share of the middle that is used."""

    height: int
    width: int
    channels: int = 3
    crop: float = 1.0

    @classmethod
    def of(cls, shape: tuple[int, ...], crop: float = 1.0) -> View:
        """The view that gives examples of `shape` [C, H, W]."""
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise InputError(f"a picture has 1 (grey) or 3 (colour) channels and cannot become one of shape {shape}")
        return cls(shape[1], shape[2], shape[0], crop)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


def decode(
    source: bytes | Path,
    view: View,
    words: Words | None = None,
    notes: list[str] | None = None,
    least: float = LEAST_AREA,
) -> npt.NDArray[np.uint8]:
    """The image as [H, W, C]: its middle, or with random `words` a random crop and flip.

    Transparency becomes white, an animation its first frame, 16-bit pixels keep their scale (65535 becomes 255), and
    the EXIF orientation is applied. The middle is the largest window of the view's proportions, times `view.crop`.
    What was done is added to `notes`. Raises `Unreadable`.
    """
    with _opened(source) as opened:
        if notes is not None and getattr(opened, "is_animated", False):
            notes.append(f"animated: the first of {getattr(opened, 'n_frames', 'several')} frames")
        if words is None or opened.format not in ("JPEG", "MPO"):  # a crop needs those at a fraction of their size
            opened.load()
            _check_pixels(opened)  # some formats know only now
        picture = _upright(opened)
        done = [] if picture.size == opened.size else ["turned upright"]
        box = middle(picture.size, view) if words is None else random_box(picture.size, view, words, least)
        pixels = _cut(picture, view, box, words is not None, opened.format, done)
    if notes is not None:
        notes += done
    return np.ascontiguousarray(pixels[:, ::-1]) if words is not None and words[0] & 1 else pixels


def recut(
    pixels: npt.NDArray[np.uint8], view: View, words: Words | None = None, least: float = LEAST_AREA
) -> npt.NDArray[np.uint8]:
    """The same of an image that is decoded already, [H, W, C]: its middle, or a random crop and flip."""
    from PIL import Image

    if words is None and view.crop == 1.0 and pixels.shape[:2] == (view.height, view.width):
        return pixels
    picture = Image.fromarray(pixels if view.channels == 3 else pixels[:, :, 0])
    box = middle(picture.size, view) if words is None else random_box(picture.size, view, words, least)
    cut = _cut(picture, view, box, False, None, [])
    return np.ascontiguousarray(cut[:, ::-1]) if words is not None and words[0] & 1 else cut


def read_image(path: Path | str, shape: tuple[int, ...]) -> Tensor:
    """One image file as the uint8 example [C, H, W] a data set of this shape would hold, for predictions."""
    view = View.of(shape)
    with naming(path):
        return as_example(decode(Path(path), view))


def as_example(pixels: npt.NDArray[np.uint8]) -> Tensor:
    """Decoded pixels [H, W, C] as a tensor [C, H, W]."""
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def upright_size(path: Path) -> tuple[int, int]:
    """Width and height of an image after its EXIF orientation, without decoding it."""
    with _opened(path) as opened:
        turned = opened.getexif().get(ORIENTATION, 1) >= 5 and opened.format != "TIFF"  # where Pillow has done it
        return (opened.height, opened.width) if turned else opened.size


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Turn `Unreadable` into an `InputError` with the file's name and what to do."""
    try:
        yield
    except Unreadable as error:
        raise InputError(f"{where} is no readable image ({error}): fix or remove the file") from error


@contextmanager
def _opened(source: bytes | Path) -> Iterator[Image]:
    """Open an image file; whatever its decoder raises, then or later, becomes `Unreadable`."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError("image files need Pillow: pip install 'atmc[cli]'") from error
    if isinstance(source, Path):
        _check_file(source)
    elif not source:
        raise Unreadable("it is empty")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats()) as opened:
            _check_pixels(opened)
            yield opened
    except (Unreadable, MemoryError):
        raise
    except UnidentifiedImageError:  # whose own words are the address of a buffer in memory
        raise Unreadable(f"not in a known image format: {', '.join(FORMATS[:7])}, …") from None
    except Image.DecompressionBombError:
        raise Unreadable(TOO_LARGE) from None
    except Exception as error:  # decoders meet hostile bytes here and raise almost anything
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise Unreadable(f"damaged, or cut off: {reason}") from error


@cache
def _formats() -> tuple[str, ...]:
    """The formats that this Pillow knows; one that it does not know makes it fail on every file."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _check_file(path: Path) -> None:
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):  # to open a pipe would wait for its writer
            path.open("rb").close()
    except FileNotFoundError:
        raise Unreadable("no such file") from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise Unreadable("is a folder; name the image files in it, for example with a *")
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("is not a regular file")
    if status.st_size == 0:
        raise Unreadable("it is empty")
    if status.st_size > MAX_BYTES:
        raise Unreadable(f"has {status.st_size / 1e9:.1f} GB; the limit is {MAX_BYTES / 1e9:.1f} GB")


def _check_pixels(picture: Image) -> None:
    if math.prod(picture.size) > MAX_PIXELS:
        raise Unreadable(TOO_LARGE)


def _upright(picture: Image) -> Image:
    from PIL import ImageOps

    if picture.getexif().get(ORIENTATION, 1) == 1:
        return picture
    return ImageOps.exif_transpose(picture)


def _cut(
    picture: Image, view: View, box: Box, reduce: bool, kind: str | None, notes: list[str]
) -> npt.NDArray[np.uint8]:
    from PIL.Image import Resampling

    mode = "RGB" if view.channels == 3 else "L"
    width, height = picture.size
    if reduce:
        # A JPEG can be decoded at a fraction of its size; ask for no less than the crop needs.
        need = (math.ceil(view.width * width / (box[2] - box[0])), math.ceil(view.height * height / (box[3] - box[1])))
        picture.draft(mode, need)
        x, y = picture.size[0] / width, picture.size[1] / height
        box = (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
    flat = _flattened(picture, mode, kind, notes)
    if (width, height) != (view.width, view.height):
        notes.append(f"scaled from {width} × {height}")
        if max(width * view.height, height * view.width) > 4 * min(width * view.height, height * view.width):
            notes.append("long and thin: only its middle is used")
    cut = flat.resize((view.width, view.height), Resampling.BILINEAR, box=box)
    return np.array(cut, dtype=np.uint8).reshape(view.height, view.width, view.channels)


def _flattened(picture: Image, mode: str, kind: str | None, notes: list[str]) -> Image:
    """To 8-bit grey or colour, without transparency."""
    from PIL import Image

    if picture.mode.startswith("I") or picture.mode == "F":
        picture = _eight_bits(picture, kind, notes)
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        alpha = picture.convert("RGBA")
        if alpha.getchannel("A").getextrema() != (255, 255):
            notes.append("transparent: laid on white")
        picture = Image.alpha_composite(Image.new("RGBA", alpha.size, "white"), alpha)
    try:
        return picture.convert(mode)
    except ValueError:
        return picture.convert("RGB").convert(mode)


def _eight_bits(picture: Image, kind: str | None, notes: list[str]) -> Image:
    """Scale 16-bit, 32-bit and floating pixels by the full scale of their type."""
    from PIL import Image

    values = np.asarray(picture, dtype=np.float64)
    if not np.isfinite(values).all():
        raise Unreadable("it has pixels that are not numbers")
    low, high = float(values.min()), float(values.max())
    if picture.mode.startswith("I;16") or (picture.mode == "I" and kind in ("PNG", "PPM")):  # which have no wider ones
        full, said = 65535.0, "16 bit"
    elif picture.mode == "F" and low >= 0 and high <= 1:
        full, said = 1.0, "floating point from 0 to 1"
    elif low >= 0 and high <= 255:
        full, said = 255.0, "wide pixels from 0 to 255"
    elif low >= 0 and high <= 65535:
        full, said = 65535.0, "16 bit"
    else:
        raise Unreadable(f"it has values from {low:g} to {high:g}; save it with 8 or 16 bits per channel")
    notes.append(f"{said}: brought to 8 bit")
    return Image.fromarray(np.rint(values * (255 / full)).astype(np.uint8))


def middle(size: tuple[int, int], view: View) -> Box:
    """The largest centred window of the view's proportions, scaled by `view.crop`."""
    scale = min(size[0] / view.width, size[1] / view.height) * view.crop
    width, height = view.width * scale, view.height * scale
    # Rounding can make the window wider than the image by a part in 10^16, and Pillow refuses a negative offset.
    left, top = max(0.0, (size[0] - width) / 2), max(0.0, (size[1] - height) / 2)
    return (left, top, left + width, top + height)


def random_box(size: tuple[int, int], view: View, words: Words, least: float = LEAST_AREA) -> Box:
    """Random resized crop: a share from `least` to 1 of the area, proportions 3:4 to 4:3 of the view's."""
    a, b = words
    area = least + (1 - least) * (a >> 32) / 2**32
    stretch = (4 / 3) ** (2 * ((a >> 1) & 0x7FFFFFFF) / 2**31 - 1)
    whole = size[0] * size[1] * area
    ratio = stretch * view.width / view.height
    width, height = min(math.sqrt(whole * ratio), size[0]), min(math.sqrt(whole / ratio), size[1])
    left, top = (size[0] - width) * ((b >> 32) / 2**32), (size[1] - height) * ((b & 0xFFFFFFFF) / 2**32)
    return (left, top, left + width, top + height)
