"""`benchmarks/image_packs.py`: the same images in the same order on the other side, or one clear line."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import image_packs as packs  # noqa: E402
from atmc.common.errors import InputError  # noqa: E402
from atmc.data import load  # noqa: E402
from atmc.data.image_layouts import find_images  # noqa: E402
from atmc.data.shard_writer import read_record, write_shards  # noqa: E402


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of 40 JPEG files, and ten more of each for validation."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 10)):
        for c in "ab":
            folder = tmp_path / "pictures" / split / c
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (24, 32, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.JPEG", quality=90)
    return tmp_path / "pictures"


def name_of(folder: Path) -> str:
    return f"shards:{folder}/{{split}}-*.tar?size=24&memory=1"


def test_packs_bring_the_images_that_shards_of_the_folder_have(pictures: Path, tmp_path: Path) -> None:
    packs.main(["pack", str(pictures), "small", str(tmp_path / "packs"), "--megabytes", "0.06"])
    parts = sorted((tmp_path / "packs").glob("small-*.npz"))
    assert len(parts) > 2
    assert all(part.stat().st_size <= 60_000 for part in parts)
    packs.main(["unpack", str(tmp_path / "packs"), str(tmp_path / "root")])
    splits, classes = find_images(pictures)
    write_shards(tmp_path / "direct", splits, classes)
    for split in ("train", "test"):
        there, here = (load(name_of(folder), split) for folder in (tmp_path / "root" / "small", tmp_path / "direct"))
        assert torch.equal(there.images, here.images)
        assert torch.equal(there.labels, here.labels)
    assert (tmp_path / "root" / "small" / packs.ENCODING).read_text().strip() in (packs.UNCHANGED, packs.SAME_PIXELS)


def test_squashed_images_say_so(pictures: Path, tmp_path: Path) -> None:
    packs.main(["pack", str(pictures), "small", str(tmp_path / "packs"), "--side", "16", "--quality", "80"])
    packs.main(["unpack", str(tmp_path / "packs"), str(tmp_path / "root")])
    said = (tmp_path / "root" / "small" / packs.ENCODING).read_text()
    assert said == "squashed to 16 × 16, WebP at quality 80\n"
    record = read_record(tmp_path / "root" / "small")
    assert record is not None
    assert [record["splits"][split]["images"] for split in ("train", "val")] == [80, 20]
    image = Image.open(io.BytesIO(packs.squashed((pictures / "val" / "a" / "0.JPEG").read_bytes(), 16, 80)))
    assert (image.format, image.size) == ("WEBP", (16, 16))


def test_a_pack_that_is_altered_or_missing_is_named(pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    packs.pack(pictures, "small", folder, 0.06)
    first, second, *_ = sorted(folder.glob("*.npz"))
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"small-01\.npz is altered"):
        packs.unpack(folder, tmp_path / "root")
    first.unlink()
    with pytest.raises(InputError, match=r"small-00\.npz is missing"):
        packs.unpack(folder, tmp_path / "root")
    assert not (tmp_path / "root").exists()
    with pytest.raises(InputError, match=r"has no NAME\.json"):
        packs.unpack(tmp_path, tmp_path / "root")


def test_a_jpeg_is_only_replaced_by_one_of_the_same_pixels(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (pictures / "train" / "a" / "0.JPEG").read_bytes()
    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).save(buffer, "JPEG", quality=50)

    class Fake:
        answer = b""

        def optimize(self, given: bytes) -> bytes:
            return self.answer

    fake = Fake()
    monkeypatch.setattr(packs.importlib, "import_module", lambda name: fake)
    fake.answer = buffer.getvalue()  # smaller, with other pixels
    assert len(fake.answer) < len(data)
    assert packs.smaller(data) == data
    fake.answer = data
    with_comment = data[:2] + b"\xff\xfe\x00\x06abcd" + data[2:]
    assert packs.smaller(with_comment) == data
    assert packs.smaller(b"RIFF") == b"RIFF"


def test_the_record_lists_every_pack(pictures: Path, tmp_path: Path) -> None:
    packs.pack(pictures, "small", tmp_path / "packs", 1.0)
    record = json.loads((tmp_path / "packs" / "small.json").read_text())
    assert list(record["packs"]) == ["small-00.npz"]
    assert record["images"] == {"train": 80, "val": 20}
    assert record["classes"] == ["a", "b"]
