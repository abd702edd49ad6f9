"""One decoder: a picture means the same pixels in a training folder and to `atmc predict`."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atmc.cli.predict import read_picture
from atmc.common.errors import InputError
from atmc.data import load
from atmc.data.image_decoding import View, decode, middle

RNG = np.random.default_rng(5)
GREY = RNG.integers(0, 256, (20, 30), dtype=np.uint8)
COLOUR = Image.fromarray(RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8))


def saved(image: Image.Image, kind: str, turn: int = 1, **how: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = turn
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"exif": exif} if turn != 1 else {}), **how)
    return buffer.getvalue()


FILES = {
    "plain.png": saved(COLOUR, "png"),
    "photo.jpg": saved(COLOUR, "jpeg"),
    "turned.jpg": saved(COLOUR, "jpeg", 6),
    "turned.png": saved(COLOUR, "png", 8),
    "turned.tif": saved(COLOUR, "tiff", 6),
    "cmyk.jpg": saved(COLOUR.convert("CMYK"), "jpeg"),
    "lab.tif": saved(COLOUR.convert("LAB"), "tiff"),
    "alpha.png": saved(Image.merge("RGBA", (*COLOUR.split(), Image.fromarray(GREY))), "png"),
    "palette.png": saved(COLOUR.convert("P"), "png", transparency=3),
    "moving.gif": saved(COLOUR, "gif", save_all=True, append_images=[COLOUR.rotate(180)]),
    "deep.png": saved(Image.fromarray(GREY.astype(np.uint16) * 250), "png"),
    "deep.pgm": b"P5 30 20 65535\n" + (GREY.astype(">u2") * 250).tobytes(),
    "float.tif": saved(Image.fromarray((GREY / 255).astype(np.float32)), "tiff"),
    "wide.tif": saved(Image.fromarray(GREY.astype(np.int32) * 250), "tiff"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        (tmp_path / split / "thing").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("wish", ["size=20x30&channels=1", "size=30x20", "size=8&crop=0.7"])
@pytest.mark.parametrize("name", FILES)
def test_training_and_prediction_read_the_same_pixels(folder: Path, name: str, wish: str) -> None:
    file = folder / "train" / "thing" / name
    file.write_bytes(FILES[name])
    trained = load(f"folder:{folder}?{wish}", "train").images[0]
    view = View.of(tuple(trained.shape), 0.7 if "crop" in wish else 1.0)
    predicted = read_picture(file, view).pixels
    assert torch.equal(trained, predicted)
    assert len(trained.unique()) > 20, "a picture, not one flat colour"


@pytest.mark.parametrize("wish", ["", "?size=8", "?size=8&stream=1"])
def test_no_program_is_started_for_an_eps_called_png(folder: Path, monkeypatch, wish: str) -> None:
    """Pillow hands PostScript to Ghostscript; here that is a script that leaves a mark."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) show\n%%EOF\n"
    for split in ("train", "test"):
        (folder / split / "thing" / "00.png").write_bytes(eps)
    gs = folder / "bin" / "gs"
    gs.parent.mkdir()
    gs.write_text(f"#!/bin/sh\ntouch {folder}/started\n")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", str(gs.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    with pytest.raises(InputError, match=r"00\.png is no readable image \(not in a known image format"):
        load(f"folder:{folder}{wish}", "train")
    assert not (folder / "started").exists()
    with pytest.raises(OSError, match=r"."), Image.open(folder / "train" / "thing" / "00.png") as opened:
        opened.load()
    assert (folder / "started").exists(), "what Pillow does without a list of formats"


def test_the_common_size_is_that_of_the_upright_pictures(folder: Path) -> None:
    for i, (kind, turn) in enumerate((("jpeg", 6), ("png", 8), ("tiff", 5), ("jpeg", 7))):
        name = f"{i}.{kind.replace('jpeg', 'jpg')}"
        (folder / "train" / "thing" / name).write_bytes(saved(COLOUR, kind, turn))
    assert load(f"folder:{folder}", "train").shape == (3, 30, 20)


def test_a_picture_beyond_the_limit_is_named_before_it_is_decoded(folder: Path, monkeypatch) -> None:
    (folder / "train" / "thing" / "large.png").write_bytes(FILES["plain.png"])
    monkeypatch.setattr("atmc.data.image_decoding.MAX_PIXELS", 599)
    with pytest.raises(InputError, match=r"large\.png is no readable image \(it has more pixels"):
        load(f"folder:{folder}", "train")


def test_the_middle_lies_inside_images_of_every_size() -> None:
    for side in (176, 224):
        view = View(side, side)
        for width in range(1, 800):
            for size in ((width, 500), (500, width)):
                assert min(middle(size, view)) >= 0, (side, size)
    view = View(224, 224)
    assert decode(saved(Image.new("L", (116, 375), 9), "png"), view).max() == 9  # its offset was -7e-15
