"""Folders of pictures: classes from sub-folders, sizes made one, splits that stay put."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atmc.common.errors import InputError
from atmc.data import hold_out, is_streaming, load, open_source, read_image
from atmc.data.folder import _is_test


def test_a_folder_without_splits(pictures: Path) -> None:
    train, test = load(f"folder:{pictures}", "train"), load(f"folder:{pictures}", "test")
    assert train.classes == ("ant", "bee")
    assert train.shape == (3, 7, 9)
    assert len(train) + len(test) == 24
    assert len(test) > 0
    assert (train.mean, train.std) == (test.mean, test.std)
    # Ants are 100…111 and bees 0…11: each pixel tells its file, and nothing was resampled.
    values = torch.cat([train.images, test.images])[:, 0, 0, 0]
    assert sorted(values.tolist()) == [*range(12), *range(100, 112)]
    assert torch.equal((train.images[:, 0, 3, 3] < 50).long(), train.labels)
    source = open_source(f"folder:{pictures}", "test")
    assert torch.equal(torch.from_numpy(source.read(0)).permute(2, 0, 1), test.images[0])


def test_adding_pictures_moves_none_across(pictures: Path) -> None:
    before = {int(v) for v in load(f"folder:{pictures}", "test").images[:, 0, 0, 0]}
    Image.fromarray(np.full((7, 9, 3), 200, np.uint8)).save(pictures / "ant" / "00000.png")
    after = {int(v) for v in load(f"folder:{pictures}", "test").images[:, 0, 0, 0]}
    assert after - {200} == before


def test_a_folder_with_splits(pictures: Path) -> None:
    whole = pictures.parent / "whole"
    shutil.copytree(pictures, whole / "train")
    shutil.copytree(pictures / "bee", whole / "val" / "bee")
    assert len(load(f"folder:{whole}", "train")) == 24
    test = load(f"folder:{whole}", "test")
    assert test.labels.tolist() == [1] * 12
    shutil.copytree(pictures / "bee", whole / "val" / "cow")
    with pytest.raises(InputError, match="class 'cow', which has no training pictures"):
        load(f"folder:{whole}", "test")


def test_sizes_are_made_one(pictures: Path) -> None:
    for i in range(3):  # enough for the training split to get one
        Image.fromarray(np.full((40, 20, 3), 7, np.uint8)).save(pictures / "ant" / f"tall{i}.png")
    assert load(f"folder:{pictures}").shape == (3, 7, 7)  # the median shorter side
    assert load(f"folder:{pictures}?size=5x6").shape == (3, 5, 6)
    grey = load(f"folder:{pictures}?size=12&channels=1&crop=0.5")
    assert grey.shape == (1, 12, 12)
    assert len(grey.mean) == 1


def test_the_middle_is_what_is_shown(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 2:6] = 90
    Image.fromarray(pixels).save(tmp_path / "p.png")
    assert torch.equal(read_image(tmp_path / "p.png", (3, 4, 4)), torch.full((3, 4, 4), 90, dtype=torch.uint8))
    assert read_image(tmp_path / "p.png", (1, 4, 8))[0, 0].tolist() == [0, 0, 90, 90, 90, 90, 0, 0]
    for mode in ("L", "RGBA", "P", "1", "I;16"):
        Image.new(mode, (5, 5)).save(tmp_path / "m.png")
        assert read_image(tmp_path / "m.png", (3, 5, 5)).shape == (3, 5, 5)
    Image.fromarray(np.full((3, 3), 128 * 257, np.uint16)).save(tmp_path / "m.png")
    assert read_image(tmp_path / "m.png", (1, 3, 3)).unique().tolist() == [128]


def test_faults_are_named(pictures: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        load(f"folder:{pictures}/nowhere")
    (pictures.parent / "empty").mkdir()
    with pytest.raises(InputError, match="no pictures"):
        load(f"folder:{pictures.parent}/empty")
    with pytest.raises(InputError, match=r"none\.png is no readable image \(no such file\)"):
        read_image(pictures / "none.png", (3, 8, 8))
    with pytest.raises(InputError, match="shape"):
        read_image(pictures / "bee" / "00.png", (8,))
    (pictures / "bee" / "00.png").write_text("not a picture")
    (pictures / "bee" / "00.png").rename(pictures / "bee" / "12.png")
    with pytest.raises(InputError, match=r"bee/12\.png is no readable image"):
        load(f"folder:{pictures}")


@pytest.mark.parametrize("wish", ["", "?size=8"])  # without a size all pictures are opened first, to find a common one
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda whole: b"not a picture", "not in a known image format"),
        (lambda whole: b"", "it is empty"),
        (lambda whole: whole[: len(whole) // 2], "damaged, or cut off: "),
    ],
)
def test_a_broken_picture_is_named_with_a_reason(
    pictures: Path, wish: str, broken: Callable[[bytes], bytes], why: str
) -> None:
    """And without the address of a buffer in memory, which is what the decoder has to say of most."""
    file = next(p for p in sorted(pictures.rglob("*.png")) if not _is_test(p.parent.name, p))
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(whole, "png")
    file.write_bytes(broken(whole.getvalue()))
    with pytest.raises(InputError) as caught:
        load(f"folder:{pictures}{wish}")
    said = str(caught.value)
    assert f"{file} is no readable image ({why}" in said
    assert "BytesIO" not in said
    assert " at 0x" not in said


def test_a_validation_split_of_a_source(pictures: Path) -> None:
    source = open_source(f"folder:{pictures}", "train")
    rest, held = hold_out(source, 6)
    assert (len(rest), len(held)) == (len(source) - 6, 6)
    assert held.split == "validation"
    assert torch.bincount(held.labels).tolist() in ([3, 3], [2, 4], [4, 2])
    pixels = [int(s.read(i)[0, 0, 0]) for s in (rest, held) for i in range(len(s))]
    assert sorted(pixels) == sorted(int(source.read(i)[0, 0, 0]) for i in range(len(source)))
    assert len({rest.digest, held.digest, source.digest}) == 3


def test_a_folder_may_be_streamed(pictures: Path) -> None:
    assert not is_streaming(f"folder:{pictures}?size=8")
    assert is_streaming(f"folder:{pictures}?size=8&stream=1")
    source = open_source(f"folder:{pictures}?size=8&stream=1")
    assert np.array_equal(source.read(3).transpose(2, 0, 1), load(f"folder:{pictures}?size=8").images[3].numpy())
