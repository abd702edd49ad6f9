"""Any image file to the uint8 tensor a network was trained on, or one line that says why not.

A file named on a command line can be anything, so nothing is assumed: it must be a regular file (a pipe would hang),
of a raster format that Pillow decodes by itself (PostScript would start another program), with a bounded number of
pixels, checked before a single one is decoded (a few kilobytes can unfold into gigabytes).
"""

from __future__ import annotations

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atmc.common.errors import InputError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

MAX_PIXELS = 100_000_000
MAX_BYTES = 1 << 30
# Raster formats that Pillow reads in-process. Left out on purpose: EPS, which runs Ghostscript.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM", "ICO", "TGA", "PCX", "SGI", "QOI")


@dataclass(frozen=True)
class Picture:
    """A decoded image as the network wants it, with what had to be done to it in words."""

    pixels: Tensor  # uint8 [C, H, W]
    size: tuple[int, int]  # width and height in the file
    notes: tuple[str, ...]


def read_picture(path: Path, shape: tuple[int, int, int], *, invert: bool = False) -> Picture:
    """Decode `path` for a network whose inputs are uint8 of `shape` [C, H, W]. Raises `InputError` with one line.

    Transparency is laid on white; only the first frame of an animation counts; 16-bit values keep their scale (65535
    becomes 255); the picture is turned as its EXIF tag says, scaled to cover the network's size, and its middle taken.
    """
    import numpy as np
    import torch

    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError(f"the network takes {channels} channels; an image file has 1 (grey) or 3 (colour)")
    notes: list[str] = []
    with _decoding():
        image = _open(path, notes)
        size = image.size
        image = _fit(_flatten(image, "L" if channels == 1 else "RGB", notes), width, height, notes)
        array = np.array(image, dtype=np.uint8)
    if invert:
        array = 255 - array
        notes.append("inverted")
    pixels = torch.from_numpy(array.reshape(height, width, channels).transpose(2, 0, 1).copy())
    return Picture(pixels, size, tuple(notes))


@contextmanager
def _decoding() -> Iterator[None]:
    """Whatever a decoder raises, as one line."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError("reading images needs Pillow: pip install 'atmc[cli]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(f"not an image in a known format ({', '.join(FORMATS[:7])}, …)") from None
    except Image.DecompressionBombError:
        raise InputError(_too_large()) from None
    except MemoryError:
        raise InputError("there is not enough memory to decode it") from None
    except Exception as error:
        # Decoders meet hostile bytes here and raise almost anything: struct.error, SyntaxError, IndexError, zlib.error…
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"damaged, or cut off: {reason}") from error


def _open(path: Path, notes: list[str]) -> Image.Image:
    """The first frame, fully decoded and turned upright."""
    from PIL import Image, ImageOps

    _check_file(path)
    with Image.open(path, formats=FORMATS) as image:
        _check_pixels(image.size)
        if getattr(image, "is_animated", False):
            notes.append(f"animated: the first of {getattr(image, 'n_frames', 'several')} frames")
            image.seek(0)
        image.load()
        _check_pixels(image.size)
        upright = ImageOps.exif_transpose(image)
        if upright.size != image.size:
            notes.append("turned upright")
        return upright.copy()


def _check_file(path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError("no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError("is a folder; name the image files in it, for example with a *")
    if not stat.S_ISREG(status.st_mode):
        raise InputError("is not a regular file")
    if status.st_size == 0:
        raise InputError("is empty")
    if status.st_size > MAX_BYTES:
        raise InputError(f"has {status.st_size / 1e9:.1f} GB; the limit is {MAX_BYTES / 1e9:.1f} GB")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None


def _check_pixels(size: tuple[int, int]) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise InputError(f"{size[0]:,} × {size[1]:,} pixels: {_too_large()}")


def _too_large() -> str:
    return f"above the limit of {MAX_PIXELS // 1_000_000} megapixels; make it smaller first"


def _flatten(image: Image.Image, mode: str, notes: list[str]) -> Image.Image:
    """To 8-bit grey or colour, without transparency."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        image = _to_eight_bits(image, notes)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        alpha = image.convert("RGBA")
        if alpha.getchannel("A").getextrema() != (255, 255):
            notes.append("transparent: laid on white")
        image = Image.alpha_composite(Image.new("RGBA", alpha.size, "white"), alpha)
    try:
        return image.convert(mode)
    except ValueError:
        return image.convert("RGB").convert(mode)


def _to_eight_bits(image: Image.Image, notes: list[str]) -> Image.Image:
    """16-bit, 32-bit and floating pixels by their own full scale."""
    import numpy as np
    from PIL import Image

    values: Any = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError("has pixels that are not numbers")
    low, high = float(values.min()), float(values.max())
    if image.mode.startswith("I;16"):
        full, said = 65535.0, "16 bit"
    elif image.mode == "F" and low >= 0 and high <= 1:
        full, said = 1.0, "floating point from 0 to 1"
    elif low >= 0 and high <= 255:
        full, said = 255.0, "wide pixels from 0 to 255"
    elif low >= 0 and high <= 65535:
        full, said = 65535.0, "16 bit"
    else:
        raise InputError(f"has values from {low:g} to {high:g}; save it with 8 or 16 bits per channel")
    notes.append(f"{said}: brought to 8 bit")
    return Image.fromarray(np.rint(values * (255 / full)).astype(np.uint8))


def _fit(image: Image.Image, width: int, height: int, notes: list[str]) -> Image.Image:
    """Scale to cover `width` × `height`, then take the middle: nothing is stretched."""
    from PIL import Image

    from atmc.data.image_decoding import View, middle

    if image.size == (width, height):
        return image
    notes.append(f"scaled from {image.width} × {image.height}")
    if max(image.width * height, image.height * width) > 4 * min(image.width * height, image.height * width):
        notes.append("long and thin: only its middle is used")
    # The same middle and the same filter as `atmc.data` uses on training pictures, so that both look alike.
    box = middle(image.size, View(height, width))
    return image.resize((width, height), Image.Resampling.BILINEAR, box=box)
