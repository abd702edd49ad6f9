"""One of torchrun's processes that run a recipe on streamed shards (started by test_torchrun_streamed.py).

Arguments: a folder with recipe.toml, then NAME (run to the end), NAME:stop (end with a checkpoint at once) or
NAME:kill (a rank drawn at random is killed at a random step, once). Prints how each run ended.
"""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from atmc.engine import gradient_exchange
from atmc.engine.runner import Runner, run
from atmc.engine.step import Step
from atmc.recipe import load_recipe

step, runner_run = Step.__call__, Runner.run
overlapping = 0


def main(folder: Path, jobs: list[str]) -> None:
    global overlapping
    torch.set_num_threads(1)
    gradient_exchange.BUCKET_BYTES = gradient_exchange.FIRST_BYTES = 256  # several buckets, of a small network too
    gradient_exchange.GradientExchange.__init__.__defaults__ = (256,)  # type: ignore[misc]
    start = gradient_exchange.GradientExchange._start

    def counted(this: Any) -> None:
        global overlapping
        overlapping += this._active  # the backward pass is not over yet
        start(this)

    gradient_exchange.GradientExchange._start = counted  # type: ignore[method-assign]
    recipe = load_recipe(folder / "recipe.toml")
    draw = random.Random(int(os.environ["ATMC_TEST_SEED"]))
    rank, at, marker = draw.randrange(2), draw.randrange(12, 60), folder / "died"

    def deadly(this: Step) -> None:
        step(this)
        if int(this.clock.step) == at and os.environ["RANK"] == str(rank) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def stopping(this: Runner, deadline: float | None) -> str:
        this.stop_asked = os.environ["RANK"] == "1"  # the others are told
        return runner_run(this, deadline)

    for job in jobs:
        name, _, how = job.partition(":")
        Step.__call__ = deadly if how == "kill" else step  # type: ignore[method-assign]
        Runner.run = stopping if how == "stop" else runner_run  # type: ignore[method-assign]
        result = run(recipe, folder / name, progress=None)
        print(f"{name} {os.environ['RANK']} {result.status} overlapping={overlapping > 0}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
