"""Files are whole under their name or not there; links are not followed, and what is no file is not read."""

import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atmc.common import atomic_files
from atmc.common.atomic_files import ForeignFileError, append, read_file, remove, sweep, sync, write_file, writing


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.bin"
    write_file(target, b"old")
    with pytest.raises(TypeError):
        write_file(target, "no bytes")  # type: ignore[arg-type]
    with contextlib.suppress(KeyboardInterrupt), writing(target) as handle:
        os.write(handle, b"half")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == ["a.bin"]
    write_file(target, b"new")
    assert target.read_bytes() == b"new"


def test_the_name_beside_cannot_be_foreseen(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with writing(tmp_path / "a") as handle:
            seen += [name for name in os.listdir(tmp_path) if name != "a"]
            os.write(handle, b"x")
    assert len(set(seen)) == 2


def test_sweep_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    (tmp_path / ".a.safetensors.0123.tmp").write_bytes(b"half")
    (tmp_path / "b.safetensors").write_bytes(b"whole")
    sweep(tmp_path)
    sweep(tmp_path / "none")
    assert os.listdir(tmp_path) == ["b.safetensors"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a file and something that looks like a leftover, none of which may change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(b"precious")
    (folder / ".left.tmp").write_bytes(b"precious")
    return folder


def test_no_link_below_the_root_is_followed(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "samples").symlink_to(outside)
    (root / "log").symlink_to(outside / "file")
    inside = root / "samples" / "file"
    for work in (
        lambda: write_file(inside, b"x", root=root),
        lambda: write_file(root / "samples" / "deep" / "file", b"x", root=root),
        lambda: append(inside, b"x", root=root),
        lambda: append(root / "log", b"x", root=root),
        lambda: sync(root / "log", root=root),
        lambda: remove(inside, root=root),
        lambda: sweep(root / "samples", root=root),
        lambda: read_file(root / "log"),
    ):
        with pytest.raises(ForeignFileError, match=r"is a link"):
            work()
    write_file(root / "log", b"new", root=root)  # in the place of the link itself
    remove(root / "samples", root=root)
    assert (root / "log").read_bytes() == b"new"
    assert sorted(os.listdir(outside)) == [".left.tmp", "file"]
    assert {path.read_bytes() for path in outside.iterdir()} == {b"precious"}


def test_a_root_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    write_file(tmp_path / "runs" / "a" / "b", b"x", root=tmp_path / "runs")
    assert (tmp_path / "disk" / "a" / "b").read_bytes() == b"x"


def test_what_is_no_file_is_named_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "hole").open("wb") as stream:
        stream.truncate(6 << 30)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path, said in (
            (tmp_path / "fifo", "is a FIFO"),
            (tmp_path / "folder", "is a folder"),
            (tmp_path / "hole", "is a hole of 6,442,450,944 bytes"),
            (tmp_path / "socket", "socket"),
            (Path("/dev/zero"), "is a device"),
        ):
            with pytest.raises(ForeignFileError, match=said):
                read_file(path)
    with pytest.raises(ForeignFileError, match="FIFO"):
        append(tmp_path / "fifo", b"x")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    for _ in range(5):
        write_file(tmp_path / "a" / "b" / "c", b"x", root=tmp_path)
        for work in (
            lambda: read_file(tmp_path / "fifo"),
            lambda: write_file(tmp_path / "link" / "x", b"", root=tmp_path),
        ):
            with pytest.raises(ForeignFileError):
                work()
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_our_own_names_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "notes").symlink_to("/etc")
    (tmp_path / "samples" / "deep").mkdir(parents=True)
    atomic_files.refuse_foreign(tmp_path, frozenset({"samples"}))
    atomic_files.refuse_foreign(tmp_path / "none", frozenset({"samples"}))
    (tmp_path / "samples" / "deep" / "x").symlink_to("/etc/hostname")
    with pytest.raises(ForeignFileError, match="samples/deep/x: is a link"):
        atomic_files.refuse_foreign(tmp_path, frozenset({"samples"}))


def test_only_what_stays_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing takes most of a short run's time, and a temporary folder is gone after a crash anyway."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    def put(folder: Path) -> int:
        synced.clear()
        write_file(folder / "file", b"x")
        sync(folder / "file")
        return len(synced)

    assert put(tmp_path) == 3  # the file, its folder, and once more
    with contextlib.suppress(ZeroDivisionError), atomic_files.temporary_folder() as folder:
        assert put(Path(folder)) == 0
        with ThreadPoolExecutor(1) as pool:  # another thread's run may be one that stays
            assert pool.submit(put, tmp_path).result() == 3
        raise ZeroDivisionError
    assert not Path(folder).exists()
    assert put(tmp_path) == 3
