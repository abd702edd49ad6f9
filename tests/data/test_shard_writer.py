"""Shards from folders and published layouts: counted, checksummed, resumable; named sets verified."""

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atmc.cli.main import run as command
from atmc.common.errors import InputError
from atmc.data import fetch, load, open_source
from atmc.data.fetch import image_sets
from atmc.data.image_layouts import find_images
from atmc.data.shard_writer import faults_of, read_record, write_shards

CLASSES = ("n01", "n02", "n03")


def jpeg(number: int, size: int = 12) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def label_of(split: str, number: int) -> int:
    return (number + (split == "val")) % 3


def image_folder(where: Path, train: int = 30, val: int = 6) -> Path:
    for split, count in (("train", train), ("val", val)):
        for i in range(count):
            file = where / split / CLASSES[label_of(split, i)] / f"{split}_{i}.a.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg(i + 1000 * (split == "val")))
    return where


def pack(entries: dict[str, bytes], mode: Any = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def contents(folder: Path, split: str) -> list[tuple[int, str]]:
    """(label, hash of the image) of each example, sorted."""
    source: Any = open_source(f"shards:{folder}/{{split}}-*.tar?size=8", split, root=folder / "index")
    raw = (source.raw(i)[0] for i in range(len(source)))
    return sorted((int(y), hashlib.sha256(data).hexdigest()) for y, data in zip(source.labels, raw, strict=True))


def expected(count: int, split: str) -> list[tuple[int, str]]:
    first = 1000 * (split == "val")
    return sorted((label_of(split, i), hashlib.sha256(jpeg(i + first)).hexdigest()) for i in range(count))


def test_a_folder_becomes_shards_with_every_image_once(tmp_path: Path, capsys: Any) -> None:
    folder, out = image_folder(tmp_path / "pictures"), tmp_path / "out"
    assert command(["data", "shard", str(folder), str(out), "--megabytes", "0.02", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["splits"]["train"]["images"] == 30
    assert said["splits"]["train"]["shards"] == len(list(out.glob("train-*.tar"))) > 2
    assert all(path.stat().st_size <= 30_000 for path in out.glob("*.tar"))  # tar files end in up to 10 KB of zeros
    assert contents(out, "train") == expected(30, "train")
    assert contents(out, "test") == expected(6, "val")
    assert (out / "classes.txt").read_text().split() == list(CLASSES)
    labels = open_source(f"shards:{out}/{{split}}-*.tar?size=8", "train", root=tmp_path).labels
    assert labels.tolist() != sorted(labels.tolist())  # a shard has all classes


def test_a_stop_is_resumed_and_damage_is_repaired(tmp_path: Path) -> None:
    splits, classes = find_images(image_folder(tmp_path / "pictures"))
    whole = write_shards(tmp_path / "whole", splits, classes, 0.02)

    class Stop(Exception):
        pass

    def stop_at_the_third(stage: str, done: int, total: int | None) -> None:
        if len(list((tmp_path / "parts").glob("train-*.tar"))) == 3:
            raise Stop

    with pytest.raises(Stop):
        write_shards(tmp_path / "parts", splits, classes, 0.02, stop_at_the_third)
    assert read_record(tmp_path / "parts") is None
    first = (tmp_path / "parts" / "train-00000.tar").stat().st_mtime_ns
    second = tmp_path / "parts" / "train-00001.tar"
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    record = write_shards(tmp_path / "parts", splits, classes, 0.02)
    assert record == whole
    assert (tmp_path / "parts" / "train-00000.tar").stat().st_mtime_ns == first  # kept
    assert faults_of(tmp_path / "parts", record, deep=True) == []  # and the damaged one written again
    with pytest.raises(InputError, match="shards of other images or of another size"):
        write_shards(tmp_path / "parts", splits, classes, 0.03)
    second.unlink()
    assert "train-00001.tar is missing" in faults_of(tmp_path / "parts", record)[0]


@pytest.mark.parametrize("labels", ["devkit", "csv"])
def test_imagenet_from_its_official_files(tmp_path: Path, labels: str) -> None:
    """A stand-in with the layout of ILSVRC 2012: a tar of tars, a flat tar, and labels in an order of their own."""
    official = tmp_path / "official"
    official.mkdir()
    numbers = {wnid: [i for i in range(30) if label_of("train", i) == c] for c, wnid in enumerate(CLASSES)}
    inner = {f"{wnid}.tar": pack({f"{wnid}_{i}.JPEG": jpeg(i) for i in mine}) for wnid, mine in numbers.items()}
    (official / "ILSVRC2012_img_train.tar").write_bytes(pack(inner))
    val = {f"ILSVRC2012_val_{i + 1:08d}.JPEG": jpeg(1000 + i) for i in range(6)}
    (official / "ILSVRC2012_img_val.tar").write_bytes(pack(val))
    if labels == "csv":
        rows = [f"ILSVRC2012_val_{i + 1:08d},{CLASSES[label_of('val', i)]} 1 2 3 4 " for i in range(6)]
        (official / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows]) + "\n")
    else:
        from scipy.io import savemat

        ids = {"n01": 3, "n02": 1, "n03": 2}  # not in the order of the names
        kinds = [("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("num_children", "i4")]
        synsets = np.array([(n, wnid, 0) for wnid, n in ids.items()] + [(4, "n00", 3)], dtype=kinds)
        meta = io.BytesIO()
        savemat(meta, {"synsets": synsets})
        truth = "\n".join(str(ids[CLASSES[label_of("val", i)]]) for i in range(6))
        top = "ILSVRC2012_devkit_t12/data"
        files = {f"{top}/meta.mat": meta.getvalue(), f"{top}/ILSVRC2012_validation_ground_truth.txt": truth.encode()}
        (official / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(pack(files, "w:gz"))
    splits, classes = find_images(official)
    assert classes == CLASSES
    write_shards(tmp_path / "out", splits, classes, 0.02)
    assert contents(tmp_path / "out", "train") == expected(30, "train")
    assert contents(tmp_path / "out", "test") == expected(6, "val")
    for name in ("ILSVRC2012_devkit_t12.tar.gz", "LOC_val_solution.csv"):
        (official / name).unlink(missing_ok=True)
    with pytest.raises(InputError, match="the validation images have no labels"):
        find_images(official)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases of 30 and 6 images."""
    from atmc.data import catalogue

    for entry in (image_sets.IMAGENETTE, image_sets.TINY):
        release = image_sets.Release(
            entry.name, {"train": 30, "val": 6}, 12, (), "http://127.0.0.1:9/x.tgz", archives={"official.tgz": "0" * 32}
        )
        monkeypatch.setitem(catalogue.NAMED, entry.name, image_sets._entry(release, "small", 3))


@pytest.mark.parametrize("way", ["files", "shards", "tgz", "zip"])
def test_a_named_set_is_taken_from_every_layout(small: None, tmp_path: Path, way: str) -> None:
    name = "tiny-imagenet" if way == "zip" else "imagenette"
    source = image_folder(tmp_path / "pictures")
    if way == "shards":
        splits, classes = find_images(source)
        write_shards(tmp_path / "shards", splits, classes, 0.02)
        source = tmp_path / "shards"
    elif way == "tgz":
        files = {f"imagenette2/{f.relative_to(source)}": f.read_bytes() for f in source.rglob("*.JPEG")}
        source = tmp_path / "imagenette2-x.tgz"
        source.write_bytes(pack({**files, "imagenette2/../../evil.jpg": b"x"}, "w:gz"))
    elif way == "zip":  # Tiny-ImageNet: an images folder in each class, and validation labels in a table
        target = tmp_path / "tiny.zip"
        with zipfile.ZipFile(target, "w") as archive:
            rows = []
            for file in sorted(source.rglob("*.JPEG")):
                split, wnid, _ = file.relative_to(source).parts
                inside = f"{wnid}/images" if split == "train" else "images"
                archive.writestr(f"tiny-imagenet-200/{split}/{inside}/{file.name}", file.read_bytes())
                rows += [f"{file.name}\t{wnid}\t0\t0\t9\t9"] if split == "val" else []
            archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "\n".join(rows))
        source = target
    said: list[str] = []
    where = fetch(name, tmp_path / "root", source=source, progress=lambda stage, done, total: said.append(stage))
    assert where == tmp_path / "root" / name
    assert contents(where, "train") == expected(30, "train")
    assert contents(where, "test") == expected(6, "val")
    assert "verified by its counts alone" in said[-1]
    train = load(name, "train", tmp_path / "root")
    assert train.images.shape == (30, 3, 12, 12)
    assert train.classes == CLASSES
    streamed = open_source(f"{name}?stream=1", "train", tmp_path / "root")
    assert torch.equal(torch.from_numpy(streamed.read(7)).permute(2, 0, 1), train.images[7])
    assert load(f"{name}?size=6", "test", tmp_path / "root").images.shape == (6, 3, 6, 6)
    assert not list(tmp_path.rglob("evil.jpg"))
    next(where.glob("train-*.tar")).write_bytes(b"x")
    with pytest.raises(InputError, match="incomplete or altered"):
        load(name, "train", tmp_path / "root")


def test_what_is_not_the_set_is_refused(small: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"29 train images, and imagenette has 30"):
        fetch("imagenette", tmp_path / "root", source=image_folder(tmp_path / "pictures", train=29))
    (tmp_path / "official.tgz").write_bytes(b"half of it")
    with pytest.raises(InputError, match="half-finished or altered: MD5"):
        fetch("imagenette", tmp_path / "root", source=tmp_path / "official.tgz")
    with pytest.raises(InputError, match="run `atmc data get imagenette --from PATH`"):
        load("imagenette", "train", tmp_path / "root")


def test_a_set_without_a_home_page_asks_for_its_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="imagenet-mini cannot be downloaded: run `atmc data get imagenet-mini --from"):
        fetch("imagenet-mini", tmp_path)
    assert not (tmp_path / "imagenet-mini").exists()
