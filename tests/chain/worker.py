"""One of several processes that run recipes together, started by test_parallel.py with torchrun's environment.

Arguments: a folder, then jobs as RECIPE:NAME or RECIPE:NAME:SECONDS, the last with a deadline for the first process.
"""

import importlib.util
import os
import sys
from pathlib import Path

import torch

from atmc.chain.runner import run


def main(folder: Path, jobs: list[str]) -> None:
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("shared", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    torch.distributed.init_process_group("gloo")
    for job in jobs:
        kind, name, seconds = [*job.split(":"), ""][:3]
        # Only one process has a deadline, as clocks differ; they must agree all the same.
        budget = float(seconds) if seconds and os.environ["RANK"] == "0" else None
        print(job, run(shared.RECIPES[kind], folder / name, time_budget=budget, progress=None).status, flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
