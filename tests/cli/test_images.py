"""Every kind of image file becomes a tensor or one clear line."""

import io
import os
import re

import numpy as np
import pictures
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from atmc.cli import predict
from atmc.common.errors import InputError
from atmc.data.image_decoding import View

GOOD, BAD = pictures.good(), pictures.bad()


def read_picture(path, shape, **how):
    return predict.read_picture(path, View.of(shape), **how)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)], ids=["grey", "colour"])
@pytest.mark.parametrize("name", GOOD)
def test_good_files_become_tensors(tmp_path, name, shape):
    (tmp_path / name).write_bytes(GOOD[name])
    picture = read_picture(tmp_path / name, shape)
    assert tuple(picture.pixels.shape) == shape
    assert str(picture.pixels.dtype) == "torch.uint8"
    assert picture.pixels.is_contiguous()


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(tmp_path, name):
    content, word = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_picture(tmp_path / name, (3, 32, 32))
    assert re.search(word, str(caught.value))
    assert "\n" not in str(caught.value)


def test_what_is_not_a_file_is_said(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_picture(tmp_path / "none.png", (1, 8, 8))
    with pytest.raises(InputError, match="folder"):
        read_picture(tmp_path, (1, 8, 8))
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match="regular"):
        read_picture(tmp_path / "pipe.png", (1, 8, 8))


def read(tmp_path, image, kind="png", shape=(1, 20, 30), **how):
    path = tmp_path / f"x.{kind}"
    path.write_bytes(pictures.encoded(image, kind) if not isinstance(image, bytes) else image)
    return read_picture(path, shape, **how)


def test_sixteen_bits_keep_their_scale(tmp_path):
    for kind in ("png", "tiff"):
        picture = read(tmp_path, Image.fromarray(pictures.GREY.astype(np.uint16) * 257), kind)
        np.testing.assert_array_equal(picture.pixels[0].numpy(), pictures.GREY)
        assert "16 bit: brought to 8 bit" in picture.notes
    # A dark 16-bit image stays dark: its scale is that of its type, not of its brightest pixel.
    dark = read(tmp_path, Image.fromarray(np.full((20, 30), 300, np.uint16)))
    assert int(dark.pixels.max()) == 1


def test_transparency_is_laid_on_white_and_said(tmp_path):
    clear = Image.new("RGBA", (30, 20), (0, 0, 0, 0))
    picture = read(tmp_path, clear)
    assert int(picture.pixels.min()) == 255
    assert "transparent: laid on white" in picture.notes
    opaque = read(tmp_path, Image.new("RGBA", (30, 20), (0, 0, 0, 255)))
    assert opaque.notes == []


def test_grey_for_colour_and_back(tmp_path):
    grey = read(tmp_path, Image.fromarray(pictures.GREY), shape=(3, 20, 30))
    assert all((grey.pixels[c].numpy() == pictures.GREY).all() for c in range(3))


def test_only_the_first_frame_counts_and_is_said(tmp_path):
    frames = [Image.new("L", (30, 20), value) for value in (10, 200)]
    data = pictures.encoded(frames[0], "gif", save_all=True, append_images=frames[1:])
    picture = read(tmp_path, data)
    assert picture.notes[0] == "animated: the first of 2 frames"
    assert int(picture.pixels.max()) == 10


def test_exif_orientation_turns_the_picture(tmp_path):
    image = Image.new("L", (30, 20))
    image.paste(255, (0, 0, 15, 20))  # left half white; turned by 90° it is the top half
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    image.save(buffer, "jpeg", exif=exif, quality=95)
    picture = read(tmp_path, buffer.getvalue(), shape=(1, 30, 20))
    assert picture.pixels[0, :10].float().mean() > 240
    assert picture.pixels[0, -10:].float().mean() < 15


def test_nothing_is_stretched(tmp_path):
    wide = Image.new("L", (300, 100), 0)
    wide.paste(255, (100, 0, 200, 100))
    picture = read(tmp_path, wide, shape=(1, 8, 8))
    assert int(picture.pixels.min()) > 200, "the middle square is all that fits"


def test_a_sixteen_bit_portable_map_keeps_its_scale_however_dark(tmp_path):
    dark = b"P5 30 20 65535\n" + np.full((20, 30), 200, ">u2").tobytes()
    assert int(read(tmp_path, dark, "pgm").pixels.max()) == 1


def test_invert(tmp_path):
    picture = read(tmp_path, Image.new("L", (30, 20), 255), invert=True)
    assert int(picture.pixels.max()) == 0
    assert "inverted" in picture.notes


def check(path, shape):
    """A tensor of the right shape or one line; any other exception is a failure."""
    try:
        assert tuple(read_picture(path, shape).pixels.shape) == shape
        line = "ok"
    except InputError as error:
        line = str(error)
    assert line
    assert "\n" not in line


@settings(
    max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(sorted(GOOD)),
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6),
    cut=st.floats(0, 1),
)
def test_flipped_and_cut_files_never_break_out(tmp_path, name, flips, cut):
    content = bytearray(GOOD[name])
    for place, value in flips:
        content[place % len(content)] = value
    path = tmp_path / "fuzzed"
    path.write_bytes(bytes(content[: max(1, int(len(content) * cut))]))
    check(path, (3, 8, 8))


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"\xff\xd8\xff\xe0", b"P6 ", b"RIFF"]),
    st.binary(max_size=300),
)
def test_random_bytes_behind_any_signature(tmp_path, start, rest):
    path = tmp_path / "fuzzed"
    path.write_bytes(start + rest)
    check(path, (1, 8, 8))
