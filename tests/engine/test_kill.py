"""A run that is killed fifty times is the run that was never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_fifty_kills_change_nothing(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killing.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # What a process has written survives its death on any file system, so memory will do.
    command = [sys.executable, str(script), str(tmp_path), "50", "20240607"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] >= 50
    assert told["inside"] >= 10
    assert told["samples"] == [5, 10]
