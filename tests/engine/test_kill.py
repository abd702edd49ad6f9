"""A run that is killed fifty times is the run that was never killed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


@pytest.mark.slow
def test_fifty_kills_change_nothing(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killing.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # What a process has written survives its death on any file system; in memory, fsync does not take the time.
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as folder:
        done = subprocess.run(
            [sys.executable, str(script), folder, "50", "20240607"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] >= 50
    assert told["inside"] >= 10
    assert told["samples"] == [5, 10]
