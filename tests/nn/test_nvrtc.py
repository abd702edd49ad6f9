"""What is kept of compiled kernels: whole files, found again; no place for them is no disaster. Needs no GPU."""

import os
import threading
from types import SimpleNamespace

import pytest

from atmc.nn.kernels import nvrtc

CODE = b"\x7fELF" + bytes(range(256)) * 40


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The calls of a compiler that always makes `CODE`."""
    calls = []
    monkeypatch.setattr(nvrtc, "_compiler", lambda: SimpleNamespace(nvrtcVersion=lambda *_: 0))
    monkeypatch.setattr(nvrtc, "_compile", lambda *args: (calls.append(args), CODE)[1])
    monkeypatch.setenv("ATMC_CACHE", str(tmp_path / "cache"))
    return calls


def kept(tmp_path):
    return sorted((tmp_path / "cache" / "kernels").iterdir())


def test_compiled_once(compiled, tmp_path):
    assert [nvrtc._cached("source", ["-DC=1"]) for _ in range(2)] == [CODE, CODE]
    assert len(compiled) == 1
    assert len(kept(tmp_path)) == 1
    nvrtc._cached("source", ["-DC=2"])
    nvrtc._cached("other", ["-DC=1"])
    assert len(compiled) == 3


@pytest.mark.parametrize("left", [0, 10, 32, 1000, -1], ids=str)
def test_a_damaged_file_is_compiled_again(compiled, tmp_path, left):
    nvrtc._cached("source", [])
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    assert nvrtc._cached("source", []) == CODE
    assert len(compiled) == 2
    assert file.read_bytes() == whole
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert nvrtc._cached("source", []) == CODE
    assert len(compiled) == 3


def test_no_place_to_keep_it(compiled, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert nvrtc._cached("source", []) == CODE


def test_a_failed_write_leaves_nothing(compiled, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    assert nvrtc._cached("source", []) == CODE
    assert kept(tmp_path) == []


@pytest.mark.parametrize("cache", ["", None])
def test_the_usual_place(compiled, tmp_path, monkeypatch, cache):
    """An empty variable is as good as none; nothing is written where the program happens to run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATMC_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if cache is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    nvrtc._cached("source", [])
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert len(list((tmp_path / "home/.cache/atmc/kernels").iterdir())) == 1


def test_no_home(compiled, tmp_path, monkeypatch):
    """A container's user without a home compiles every time, and leaves no folder called ~."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATMC_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert nvrtc._cached("source", []) == CODE
    assert list(tmp_path.iterdir()) == []


def test_ahead_compiles_side_by_side_and_each_once(compiled, tmp_path, monkeypatch):
    """Every compilation waits until all have begun: in turns they would never end."""
    together = threading.Barrier(3, timeout=10)
    monkeypatch.setattr(nvrtc, "_compile", lambda *args: (together.wait(), compiled.append(args), CODE)[2])
    monkeypatch.setattr(nvrtc.torch.cuda, "get_device_capability", lambda _: (9, 0))
    device = nvrtc.torch.device("cuda", 0)
    nvrtc.ahead([("source", {"C": n}) for n in range(3)], device)
    options = [nvrtc._options({"C": n}, device) for n in range(3)]
    assert [nvrtc._begun.pop(("source", *each)).result() for each in options] == [CODE] * 3
    assert len(compiled) == 3
    assert not nvrtc._begun
