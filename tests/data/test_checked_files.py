"""Files are whole under their name or not there, and a download knows when to give up."""

import os
import socket
import time
from pathlib import Path

import pytest

from atmc.common.errors import RunError
from atmc.data.checked_files import Expected, faults, sweep
from atmc.data.fetch.download import download
from atmc.data.fetch.packages import npm_pack


def test_faults_name_each_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"y")
    (tmp_path / "d").mkdir()
    md5 = "9dd4e461268c8034f5c8564e155c67a6"  # of "x"
    wrong = faults(tmp_path, [Expected(name, 1, md5) for name in "abcd"])
    assert list(wrong) == ["b", "c", "d"]
    assert "b is altered" in wrong["b"]
    assert "missing" in wrong["c"]
    assert "cannot be read" in wrong["d"]


def test_leftovers_of_a_killed_fetch_are_swept_when_old(tmp_path: Path) -> None:
    (tmp_path / ".fetch-1").mkdir()
    (tmp_path / ".fetch-1" / "half.tgz").write_bytes(b"half")
    (tmp_path / ".a.bin.xyz.tmp").write_bytes(b"half")
    (tmp_path / "a.bin").write_bytes(b"whole")
    sweep(tmp_path)
    assert len(os.listdir(tmp_path)) == 3  # young: another fetch may be at work
    for leftover in tmp_path.iterdir():
        os.utime(leftover, (time.time() - 10**6,) * 2)
    sweep(tmp_path)
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_silent_server_is_left_after_the_timeout(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts and never answers
        started = time.monotonic()
        with pytest.raises(RunError, match="timed out"):
            download(f"http://127.0.0.1:{server.getsockname()[1]}/x.tar.gz", tmp_path, timeout=0.3)
        assert time.monotonic() - started < 10
    assert os.listdir(tmp_path) == []


def test_an_endless_page_is_left(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(5000))
    with pytest.raises(RunError, match="more than 100 bytes"):
        download((tmp_path / "x.bin").as_uri(), tmp_path / "to", largest=100)
    assert os.listdir(tmp_path / "to") == []


def test_a_client_that_is_missing_or_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="npm pack a@1: npm is not installed"):
        npm_pack("a@1", tmp_path)
    program = tmp_path / "npm"
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(RunError, match="npm pack a@1: gave up after 0 s"):
        npm_pack("a@1", tmp_path, timeout=0.1)


def test_a_package_arrives_in_a_relative_folder_and_the_clients_error_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client runs inside the folder, so a relative path given to it would be looked for once more in there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "data").mkdir()
    program = tmp_path / "bin" / "npm"
    program.write_text(
        """#!/bin/sh
target=.
quiet=no
for word in "$@"; do
    [ "$word" = --silent ] && quiet=yes
    [ "$last" = --pack-destination ] && target=$word
    last=$word
done
if [ "$2" = missing@1 ]; then
    [ $quiet = no ] && echo "npm error 404 Not Found - missing" >&2
    exit 1
fi
echo x > "$target/a-1.tgz"
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    assert npm_pack("a@1", Path("data")).name == "a-1.tgz"
    with pytest.raises(RunError, match="404 Not Found"):
        npm_pack("missing@1", Path("data"))
