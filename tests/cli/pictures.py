"""Image files of every kind a person might name, made on the spot."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 255, (20, 30), dtype=np.uint8)


def encoded(image, kind, **how):
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


def colour():
    return Image.fromarray(RNG.integers(0, 255, (20, 30, 3), dtype=np.uint8))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side=60_000):
    """A valid PNG of a few hundred kilobytes at most that would unfold into gigabytes of pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(10_000)))
        + chunk(b"IEND", b"")
    )


def good():
    """Name → bytes of files that must be predicted."""
    frames = [colour() for _ in range(3)]
    exif = Image.Exif()
    exif[0x0112] = 6
    half = Image.merge("RGBA", (*colour().split(), Image.fromarray(GREY)))
    palette = colour().convert("P")
    return {
        "grey.png": encoded(Image.fromarray(GREY), "png"),
        "colour.png": encoded(colour(), "png"),
        "photo.jpg": encoded(colour(), "jpeg"),
        "turned.jpg": encoded(colour(), "jpeg", exif=exif),
        "cmyk.jpg": encoded(colour().convert("CMYK"), "jpeg"),
        "half.png": encoded(half, "png"),
        "grey-alpha.png": encoded(half.convert("LA"), "png"),
        "palette.png": encoded(palette, "png", transparency=3),
        "bilevel.png": encoded(Image.fromarray(GREY > 127), "png"),
        "16bit.png": encoded(Image.fromarray(GREY.astype(np.uint16) * 257), "png"),
        "16bit.tiff": encoded(Image.fromarray(GREY.astype(np.uint16) * 257), "tiff"),
        "float.tiff": encoded(Image.fromarray((GREY / 255).astype(np.float32)), "tiff"),
        "int32.tiff": encoded(Image.fromarray(GREY.astype(np.int32)), "tiff"),
        "animated.gif": encoded(frames[0], "gif", save_all=True, append_images=frames[1:]),
        "animated.webp": encoded(frames[0], "webp", save_all=True, append_images=frames[1:]),
        "one-pixel.bmp": encoded(Image.new("RGB", (1, 1), "red"), "bmp"),
        "thin.png": encoded(Image.new("L", (3000, 1), 90), "png"),
        "icon.ico": encoded(colour().resize((32, 32)), "ico"),
        "wrong-suffix.txt": encoded(colour(), "png"),
    }


def bad():
    """Name → bytes, and a word that the line about it must hold."""
    whole = encoded(colour(), "png")
    nan = GREY.astype(np.float32)
    nan[0, 0] = np.nan
    return {
        "empty.png": (b"", "empty"),
        "text.png": (b"this is not an image at all", "known image format"),
        "cut.png": (whole[: len(whole) // 2], "damaged"),
        "cut.jpg": (encoded(colour(), "jpeg")[:200], "damaged|known image format"),
        "bomb.png": (bomb(), "megapixels"),
        "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) show\n", "known image format"),
        "nan.tiff": (encoded(Image.fromarray(nan), "tiff"), "not numbers"),
        "wild.tiff": (encoded(Image.fromarray(GREY.astype(np.int32) * 70_000 - 5), "tiff"), "8 or 16 bits"),
        "zeros.bin": (bytes(5000), "known image format|damaged"),
    }
