"""Write requirements.lock: every package that `make test` and `make demo` install, with its version and its hashes.

    make lock

The direct ones have the versions of constraints.txt; pip resolves what they need in turn. All wheels of a version that
the index has for CPython 3.11 to 3.13 are listed, so that the file serves on other machines too. Not in it are atmc
itself and torch with the libraries that torch pins by itself: which build of torch is right depends on the machine, so
constraints.txt has its version and nobody its hash.
"""

import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from html import unescape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
BUILD = ["setuptools"]  # for `pip install --no-build-isolation`
LEFT_OUT = re.compile(r"atmc|torch|triton|nvidia-.*|cuda-.*|pip")
WHEEL = re.compile(r"(.+?)-(.+?)(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl")
PYTHONS = re.compile(r"cp31[123]|py3|py2\.py3")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve() -> list[tuple[str, str, str]]:
    """Name, version and the hash of the file that pip would take here, of every package."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        report = Path(folder) / "report.json"
        words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        command = [f"{folder}/bin/python", "-m", "pip", *words, "-c", "constraints.txt", ".[dev]", *BUILD]
        subprocess.run(command, cwd=ROOT, check=True)
        found = json.loads(report.read_text())["install"]
    packages = []
    for item in found:
        name, version = canonical(item["metadata"]["name"]), item["metadata"]["version"]
        if not LEFT_OUT.fullmatch(name):
            packages.append((name, version, item["download_info"]["archive_info"]["hashes"]["sha256"]))
    return sorted(packages)


def hashes(name: str, version: str) -> set[str]:
    """SHA-256 of every wheel of a version that the index has for our Pythons."""
    try:
        with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
            page = unescape(answer.read().decode())
    except (urllib.error.URLError, TimeoutError):
        return set()
    found = set()
    for file, digest in re.findall(r"([^/\"<>]+\.whl)#sha256=([0-9a-f]{64})", page):
        parts = WHEEL.fullmatch(file)
        if parts and parts[2] == version and PYTHONS.fullmatch(parts[3].split(".")[0]):
            found.add(digest)
    return found


def main() -> None:
    lines = ["# Made by `make lock` (.ci/lock.py) from constraints.txt and pyproject.toml; do not edit."]
    for name, version, own in resolve():
        known = sorted({own} | hashes(name, version))
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in known)]))
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")
    print(f"requirements.lock: {len(lines) - 1} packages")


if __name__ == "__main__":
    main()
