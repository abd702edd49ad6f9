"""A run that is killed is the run that was never killed, in one process and in two."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def killed(script: str, folder: Path, kills: int) -> Any:
    """What the script says at its end. A file that a process has written survives its death on any file system."""
    command = [sys.executable, str(Path(__file__).with_name(script)), str(folder), str(kills), "20240607"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_fifty_kills_change_nothing(tmp_path: Path) -> None:
    told = killed("killing.py", tmp_path, 50)
    assert told["kills"] >= 50
    assert told["inside"] >= 10
    assert told["samples"] == [5, 10]


@pytest.mark.slow
def test_kills_of_one_of_two_processes_change_nothing(tmp_path: Path) -> None:
    assert killed("killing_two.py", tmp_path, 3) == {"chains": [3, 10], "data": [3, 5]}
