"""What the two README commands install is pinned and hashed, and nothing reaches for the network by itself."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNHASHED = {"torch"}  # its build depends on the machine; and what it pins itself


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    """Name → version in requirements.lock, every entry with a hash."""
    found = {}
    for entry in (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines():
        if entry.startswith("#"):
            continue
        name, version, hashes = re.fullmatch(r"([\w.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)", entry).groups()
        assert hashes
        found[name] = version
    return found


def pinned() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    return {canonical(name): version for name, version in (line.split("==") for line in lines)}


def test_every_pin_is_locked():
    lock = locked()
    assert {name: lock.get(name) for name in pinned() if name not in UNHASHED} == {
        name: version for name, version in pinned().items() if name not in UNHASHED
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(item for extra in project["optional-dependencies"].values() for item in extra)]
    names = {canonical(re.match(r"[\w.-]+", item)[0]) for item in asked} - {"atmc"}
    assert names <= set(pinned())


def test_what_the_locked_packages_need_is_locked_too():
    """As it is installed here, in its locked version and extras aside: nothing comes in by the back door."""
    from packaging.requirements import Requirement

    lock, missing = locked(), {}
    for name in [*lock, "torch"]:
        try:
            needed = importlib.metadata.requires(name) or []
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version != lock.get(name, version):  # `make oldest` has others
            continue
        for text in needed:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            other = canonical(requirement.name)
            if other not in lock and other not in UNHASHED and not re.match(r"nvidia-|cuda-|triton", other):
                missing[other] = name
    assert missing == {}


def test_the_makefile_installs_nothing_else():
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t$(PIP)")]
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        "--require-hashes -r requirements.lock",
        "-c constraints.txt torch",
        "--no-deps --no-build-isolation -e .",
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_another_python_has_an_environment_of_its_own():
    """`make test PYTHON=python3.13 VENV=.venv-3.13` leaves .venv alone."""
    words = ["make", "--dry-run", "--always-make", "test", "docs", "PYTHON=python3.99", "VENV=elsewhere"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "python3.99 -m venv elsewhere" in said
    assert "elsewhere/bin/pytest" in said
    assert ".venv" not in said


def test_the_pythons_that_are_claimed_are_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={claimed[0]}"
    others = re.search(r"^OTHERS = (.*?)  #", (ROOT / ".ci" / "lock.py").read_text(), re.MULTILINE)
    assert others is not None
    assert tuple(claimed[1:]) == ast.literal_eval(others[1])  # and the whole suite has passed on each


OFFLINE = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        raise SystemExit(f"reached for the network: {event} {arguments}")
sys.addaudithook(watch)
import importlib, pkgutil, atmc
for found in pkgutil.walk_packages(atmc.__path__, "atmc."):
    if not found.name.endswith(("__main__", "._step", "._step_avx2", "._step_avx512")):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if not error.name.startswith(("triton", "fastapi")):
                raise
from atmc.cli.main import run
words = ["--set", "schedule.epochs=2", "--set", "schedule.burn_in_epochs=0", "--set", "schedule.cycle_epochs=1"]
assert run(["sample", "digits-atmc", "--out", "run", *words, "--json"]) == 0
for words in (["evaluate", "run"], ["doctor", "run"], ["report", "run"], ["data", "list"]):
    assert run(words) == 0, words
print("offline")
"""


@pytest.mark.slow
def test_no_network_at_import_or_run_time(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["offline"], done.stdout[-1000:] + done.stderr[-2000:]
