"""Write requirements.lock: every package that the make targets install, with its version and its hashes.

    make lock

The direct ones have the versions of constraints.txt; pip resolves what they need in turn, and says which file it would
take for this Python, 3.12 and 3.13. Not in it are atmc itself and torch with the libraries that torch pins by itself:
which build of torch is right depends on the machine, so constraints.txt has its version and nobody its hash.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ["setuptools"]  # for `pip install --no-build-isolation`
OTHERS = ("3.12", "3.13")  # beside the one that runs this
LEFT_OUT = re.compile(r"atmc|torch|triton|nvidia-.*|cuda-.*|pip")


def would_install(python: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    """What pip would install for these words, without doing so."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        shared = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([str(python), "-m", "pip", *shared, *words], cwd=ROOT, check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return found


def main() -> None:
    hashes: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        everything = would_install(python, ["-c", "constraints.txt", ".[dev,docs]", *BUILD])
        pinned = []
        for item in everything:
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            if not LEFT_OUT.fullmatch(name):
                pinned.append(f"{name}=={item['metadata']['version']}")
                hashes[pinned[-1]] = {item["download_info"]["archive_info"]["hashes"]["sha256"]}
        for version in OTHERS:
            how = ["--no-deps", "--only-binary=:all:", "--python-version", version, "--target", f"{folder}-other"]
            for pin in pinned:
                with suppress(subprocess.CalledProcessError):  # no wheel for that Python
                    for item in would_install(python, [*how, pin]):
                        hashes[pin].add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = ["# Made by `make lock` (.ci/lock.py) from constraints.txt and pyproject.toml; do not edit."]
    for pin, digests in sorted(hashes.items()):
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(digests))]))
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")
    print(f"requirements.lock: {len(lines) - 1} packages")


if __name__ == "__main__":
    main()
