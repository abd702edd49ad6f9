"""`torchrun -m atmc`: several processes run one run, and one of them speaks."""

import os
import subprocess
import sys
from pathlib import Path

from atmc.engine.runner import RunResult
from atmc.storage.run_directory import RunDir

RECIPE = """
chains = 3
[data]
name = "synthetic:1x6x6?classes=3&train=90&test=30"
batch_size = 16
[model]
name = "mlp"
depth = 2
width = 8
[target]
prior = "gaussian"
[sampler]
lr = 0.01
mass = 1.0
friction = 10.0
inertia = 0.1
[schedule]
epochs = 10
cycle_epochs = 2
[run]
device = "cpu"
"""


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "atmc"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("ATMC_DEBUG", None)
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


def test_processes_that_share_out_chains_say_once_how_it_ended(tmp_path: Path) -> None:
    """Chains here; the command of processes that share one chain is in test_parallel.py."""
    (tmp_path / "tiny.toml").write_text(RECIPE)
    done = torchrun(tmp_path, "sample", "tiny.toml", "--out", "run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Done:") == 1, done.stdout
    assert "Done: 15 samples in run." in done.stdout
    assert done.stdout.count("Next:") == 1
    assert len(RunDir.open(tmp_path / "run").bank) == 15


def test_one_process_speaks_by_default(tmp_path: Path) -> None:
    assert RunResult("done", tmp_path, 1, 1, 1.0).speaks


def test_the_module_is_the_command_and_does_not_import_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['atmc', '--help']\n"
        "try:\n    runpy.run_module('atmc', run_name='__main__')\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "print('HEAVY', [m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: atmc" in found.stdout
    assert "HEAVY []" in found.stdout
