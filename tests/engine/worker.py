"""One of several processes that run recipes together, started by test_parallel.py with torchrun's environment.

Arguments: a folder, then jobs as RECIPE:NAME or RECIPE:NAME:SECONDS, the last with a deadline for the first process;
command:NAME is `atmc sample --json` with the recipe of run NAME, and what is printed then is the command's own.
In the recipe "broken" the chain of the second process diverges whenever it comes to step 26.
"""

import importlib.util
import os
import sys
from pathlib import Path

import torch

from atmc.cli.main import run as command
from atmc.common.errors import InputError, RunError
from atmc.engine.runner import run
from atmc.engine.step import Step

step = Step.__call__


def broken(this: Step) -> None:
    step(this)
    if int(this.clock.step) == 26:
        with torch.no_grad():
            this.params[0].fill_(float("nan"))


def main(folder: Path, jobs: list[str]) -> None:
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("shared", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    torch.distributed.init_process_group("gloo")
    for job in jobs:
        kind, name, seconds = [*job.split(":"), ""][:3]
        if kind == "command":
            assert command(["sample", str(folder / name / "recipe.toml"), "--out", str(folder / kind), "--json"]) == 0
            continue
        # Only one process has a deadline, as clocks differ; they must agree all the same.
        budget = float(seconds) if seconds and os.environ["RANK"] == "0" else None
        if kind == "broken" and os.environ["RANK"] == "1":
            Step.__call__ = broken  # type: ignore[method-assign]
        try:
            result = run(shared.RECIPES[kind], folder / name, time_budget=budget, progress=None)
            print(job, result.status, result.samples, result.speaks, flush=True)
        except (InputError, RunError) as error:
            print(job, f"{type(error).__name__}: {error}", flush=True)
        Step.__call__ = step  # type: ignore[method-assign]
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
