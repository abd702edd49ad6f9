"""Tar shards in the WebDataset layout: streamed, shuffled, resumable, and faults named."""

import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atmc.common.errors import InputError
from atmc.data import StreamBatches, hold_out, is_streaming, load, open_source
from atmc.data.shards import expand


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def picture(value: int, size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Six training shards of 5 pictures (grey value = number of the example, class = number mod 3), one test shard."""
    where = tmp_path / "shards"
    where.mkdir()
    number = 0
    for shard in range(6):
        with tarfile.open(where / f"train-{shard:03d}.tar", "w") as tar:
            for _ in range(5):
                key = f"pics/{number:05d}"
                add(tar, f"{key}.png", picture(number))
                if number % 2:
                    add(tar, f"{key}.cls", b"%d\n" % (number % 3))
                else:
                    add(tar, f"{key}.json", json.dumps({"label": number % 3, "by": "me"}).encode())
                add(tar, f"{key}.txt", b"a caption")
                number += 1
    with tarfile.open(where / "val-000.tar", "w") as tar:
        for i in range(4):
            add(tar, f"{i}.png", picture(200 + i))
            add(tar, f"{i}.cls", b"1")
    return where


def name(shards: Path, options: str = "size=8") -> str:
    return f"shards:{shards}/{{split}}-*.tar?{options}"


def test_what_is_in_them(shards: Path, tmp_path: Path) -> None:
    assert is_streaming(name(shards))
    source = open_source(name(shards), "train", root=tmp_path)
    assert len(source) == 30
    assert source.labels.tolist() == [i % 3 for i in range(30)]
    assert [int(source.read(i)[4, 4, 0]) for i in (0, 7, 29)] == [0, 7, 29]
    test = open_source(name(shards), "test", root=tmp_path)
    assert len(test) == 4
    assert test.classes == source.classes == ("0", "1", "2")
    assert load(name(shards), "test", root=tmp_path).images[:, 0, 0, 0].tolist() == [200, 201, 202, 203]
    assert load(name(shards), "test", root=tmp_path).mean == load(name(shards), "train", root=tmp_path).mean


def numbers(x: torch.Tensor) -> list[int]:
    """Which examples a batch shows: normalised grey back to the number it stands for."""
    return [round(v) for v in ((x[:, 0, 4, 4] * 0.229 + 0.485) * 255).tolist()]


def test_every_epoch_has_every_example_once_and_reads_few_shards_at_a_time(shards: Path, tmp_path: Path) -> None:
    source = open_source(name(shards, "size=8&window=2"), "train", root=tmp_path)
    stream = StreamBatches(source, 7, seed=3, workers=0)
    seen = [n for step in range(stream.steps_for(3)) for n in numbers(stream.batch(step)[0])]
    for epoch in range(3):
        part = seen[epoch * 30 : (epoch + 1) * 30]
        assert sorted(part) == list(range(30))
        assert [len({n // 5 for n in part[at : at + 10]}) for at in (0, 10, 20)] == [2, 2, 2]
    assert seen[:30] != seen[30:60]


def test_resume_in_the_middle_of_an_epoch(shards: Path, tmp_path: Path) -> None:
    source = open_source(name(shards), "train", root=tmp_path)
    straight = StreamBatches(source, 7, augment="resized-crop-flip", seed=3, workers=0)
    wanted = [straight.batch(step) for step in range(9)]
    again = StreamBatches(open_source(name(shards), "train", root=tmp_path), 7, augment="resized-crop-flip", seed=3)
    for step in range(6, 9):
        got = again.batch(step)
        assert torch.equal(got[0], wanted[step][0])
        assert torch.equal(got[1], wanted[step][1])
    again.close()


def test_the_index_is_kept_and_made_again_when_a_shard_changes(shards: Path, tmp_path: Path) -> None:
    first = open_source(name(shards), "train", root=tmp_path)
    (kept,) = (tmp_path / "shard-index").iterdir()
    stamp = kept.stat().st_mtime_ns
    assert open_source(name(shards), "train", root=tmp_path).digest == first.digest
    assert kept.stat().st_mtime_ns == stamp
    kept.write_bytes(kept.read_bytes()[:100])  # a damaged cache is no cache
    assert open_source(name(shards), "train", root=tmp_path).digest == first.digest
    with tarfile.open(shards / "train-005.tar", "w") as tar:
        add(tar, "x.png", picture(9))
        add(tar, "x.cls", b"2")
    changed = open_source(name(shards), "train", root=tmp_path)
    assert len(changed) == 26
    assert changed.digest != first.digest


def test_a_held_out_part_keeps_its_shards_together(shards: Path, tmp_path: Path) -> None:
    rest, held = hold_out(open_source(name(shards, "size=8&window=2"), "train", root=tmp_path), 6)
    assert torch.bincount(held.labels).tolist() == [2, 2, 2]
    shown = [int(rest.read(int(i))[0, 0, 0]) for i in rest.order(0, 0)]
    assert len(shown) == 24
    assert len({n // 5 for n in shown[:6]}) <= 2
    assert not set(shown) & {int(held.read(i)[0, 0, 0]) for i in range(6)}


def test_a_source_travels_to_another_process(shards: Path, tmp_path: Path) -> None:
    source = open_source(name(shards), "train", root=tmp_path)
    first = source.read(3)
    assert np.array_equal(pickle.loads(pickle.dumps(source)).read(3), first)
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        open_source(name(shards), "train", root=tmp_path).read(0)
    if opened:
        assert len(os.listdir("/proc/self/fd")) <= opened + 1


def test_patterns(shards: Path) -> None:
    assert len(expand(f"{shards}/train-{{000..003}}.tar", "train")) == 4
    assert len(expand(f"{shards}/train-00?.tar", "train")) == 6
    assert expand(f"{shards}/train-*.tar", "test") == ()
    assert len(expand(f"{shards}/{{split}}-{{000..000}}.tar", "test")) == 1


@pytest.mark.parametrize(
    "fault", ["cut", "boundary", "gzip", "nolabel", "noimage", "badlabel", "none", "classes", "text"]
)
def test_faults_are_named(shards: Path, tmp_path: Path, fault: str) -> None:
    path = shards / "train-003.tar"
    whole = path.read_bytes()
    options = "size=8"
    if fault == "cut":
        path.write_bytes(whole[:3000])
    elif fault == "boundary":  # cut between two files: tar itself would not notice
        path.write_bytes(whole[: 6 * 512])
    elif fault == "gzip":
        with tarfile.open(path, "w:gz") as tar:
            add(tar, "a.png", picture(1))
    elif fault in ("nolabel", "noimage", "badlabel"):
        with tarfile.open(path, "w") as tar:
            if fault != "noimage":
                add(tar, "a.png", picture(1))
            if fault != "nolabel":
                add(tar, "a.cls", b"cat" if fault == "badlabel" else b"1")
    elif fault == "classes":
        options = "size=8&classes=2"
    elif fault == "text":
        path.write_text("hello" * 1000)
    target = name(shards / "elsewhere") if fault == "none" else name(shards, options)
    words = {
        "nolabel": r"train-003\.tar: a has no label",
        "noimage": r"train-003\.tar: a has no image",
        "badlabel": r"train-003\.tar: a\.cls holds no label",
        "none": "no shards for the train split",
        "classes": "label 2 does not fit classes = 2",
    }
    with pytest.raises(InputError, match=words.get(fault, r"train-003\.tar is half-finished")):
        open_source(target, "train", root=tmp_path)
    assert not (tmp_path / "shard-index").exists() or fault == "classes"


def test_a_shard_cut_off_after_indexing_is_named(shards: Path, tmp_path: Path) -> None:
    source = open_source(name(shards), "train", root=tmp_path)
    os.truncate(shards / "train-005.tar", 600)
    with pytest.raises(InputError, match=r"train-005\.tar has been cut off since it was indexed"):
        source.read(29)
