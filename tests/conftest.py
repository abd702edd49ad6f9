"""Shared by all tests: one thread, a terminal of eighty columns, and small runs of a fraction of a second."""

import dataclasses
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.recipe.settings import (
    DataSection,
    ModelSection,
    Recipe,
    RunSection,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)
from atmc.storage.run_directory import RunDir

MEMORY = Path("/dev/shm")
IN_MEMORY = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """All temporary folders into memory, where there is room: else fsync takes as long as everything else together.

    The same calls are made there; that they survive a loss of power is nothing that a test could see.
    """
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or config.option.basetemp or not os.access(MEMORY, os.W_OK):
        return  # a worker's are its parent's
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize >= 4 << 30 and not room.f_flag & os.ST_NOEXEC:
        config.stash[IN_MEMORY] = folder = tempfile.mkdtemp(prefix="atmc-tests-", dir=MEMORY)
        os.environ |= {"TMPDIR": folder, "PYTEST_DEBUG_TEMPROOT": folder}  # of child processes, too
        tempfile.tempdir = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Memory is given back, unless a test has failed, whose files one may want to see."""
    if folder := session.config.stash.get(IN_MEMORY, None):
        if exitstatus == 0:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"\nthe tests' files are in {folder}")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Networks and chains here are too small for two threads, which take a third longer on an idle machine.

    Where another process has one of the cores, they wait for each other at every operation, ten times as long. Forked
    children must not inherit a thread pool either. What is about threads sets their number itself.
    """
    torch.set_num_threads(1)


@pytest.fixture
def in_a_terminal() -> Callable[..., str]:
    """Runs a command with a pseudo-terminal of eighty columns as stdout; what it wrote, without colours and moves."""

    def shown(words: list[str], env: dict[str, str], stderr: int | None = None) -> str:
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        own: dict[str, Any] = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "CI")} | env
        both = inner if stderr is None else stderr
        process = subprocess.Popen(words, stdin=inner, stdout=inner, stderr=both, env={**own, "TERM": "xterm"})
        os.close(inner)
        said = b""
        while True:
            try:
                part = os.read(outer, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        os.close(outer)
        assert process.wait(60) == 0, said.decode()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())

    return shown


TINY = Recipe(
    name="tiny",
    seed=3,
    data=DataSection(name="synthetic:1x6x6?classes=3&train=90&test=30", batch_size=16),
    model=ModelSection(name="mlp", depth=2, width=8),
    target=TargetSection(prior="gaussian"),
    sampler=SamplerSection(name="atmc", lr=1e-2, mass=1.0, friction=10.0, inertia=0.1),
    schedule=ScheduleSection(epochs=10, cycle_epochs=2),
    run=RunSection(device="cpu"),
)


def change(recipe: Recipe, **sections: dict[str, Any] | Any) -> Recipe:
    """`recipe` with some keys of some sections replaced."""
    parts = {
        name: dataclasses.replace(getattr(recipe, name), **value) if isinstance(value, dict) else value
        for name, value in sections.items()
    }
    return dataclasses.replace(recipe, **parts)


def fingerprint(path: Path) -> dict[str, Any]:
    """All that must be equal for two runs to be the same: samples, predictions, losses, when what happened."""
    run = RunDir.open(path)
    rows = [
        {key: value for key, value in row.items() if key not in ("seconds", "images_per_second")}
        for row in run.metrics()
        if row["event"] != "damage"
    ]
    files = {
        k: v["sha256"] for part in run.parts for k, v in part.values["files"].items() if k.startswith("predictions")
    }
    return {"samples": run.bank.hashes(), "predictions": files, "rows": rows}


# What of TINY's sampler has no meaning for SGD and SGLD.
WITHOUT_SPEED: dict[str, Any] = {"mass": None, "friction": None, "inertia": None}

# Runs that several processes share (worker.py); 57 steps each.
RECIPES = {
    "data": change(TINY, run={"parallel": "data"}, schedule={"sample_every_steps": 5}),
    "batchnorm": change(
        TINY,
        model={"name": "resnet", "depth": 8, "width": 4, "norm": "bn"},
        target={"prior": "none"},
        sampler={"name": "sgd", "lr": 0.02, "momentum": 0.9, **WITHOUT_SPEED},
        schedule={"kind": "cosine", "cycle_epochs": None, "epochs": 3, "sample_every_steps": 1},
    ),
    "long": change(TINY, run={"parallel": "data"}, schedule={"epochs": 60, "cycle_epochs": 20}),
    "chains": change(TINY, chains=3),
    "broken": change(TINY, chains=3, run={"max_rollbacks": 1}),
}


@pytest.fixture
def tiny() -> Recipe:
    return TINY


# Triton 3.6 takes arrays of one number for an index, which NumPy refuses since 2.4.
INTERPRETER = """
import runpy, sys
from triton.runtime import interpreter
patch = interpreter._patch_lang_tensor
def patched(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = patched
globals().update(runpy.run_path(sys.argv[1]))
"""


@pytest.fixture
def in_interpreter(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Run statements with the names of the test's own file in Triton's interpreter.

    In a process of its own, because Triton decides at import whether it interprets.
    """

    def run(statements: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", INTERPRETER + statements, str(request.path)],
            env=os.environ | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(name="change")
def change_fixture() -> Callable[..., Recipe]:
    return change


@pytest.fixture(name="fingerprint")
def fingerprint_fixture() -> Callable[[Path], dict[str, Any]]:
    return fingerprint
