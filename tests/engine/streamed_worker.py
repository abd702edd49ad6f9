"""One of torchrun's processes that run a recipe on streamed shards (started by test_torchrun_streamed.py).

Arguments: a folder with recipe.toml, then NAME (run to the end), NAME:stop (end with a checkpoint at once) or
NAME:kill (a rank drawn at random is killed at a random step, once) or NAME:chains (chains.toml instead). Prints how
each run ended. Where torchrun has not said how many processes there are, ATMC_TEST_FORK says it: they are forked here,
which imports torch once for all of them.
"""

import os
import random
import signal
import socket
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
    gradient_exchange.BUCKET_BYTES = gradient_exchange.FIRST_BYTES = 4096  # several buckets, of a small network too
    gradient_exchange.GradientExchange.__init__.__defaults__ = (4096,)  # type: ignore[misc]
    start = gradient_exchange.GradientExchange._start

    def counted(this: Any) -> None:
        global overlapping
        overlapping += this._active  # the backward pass is not over yet
        start(this)

    gradient_exchange.GradientExchange._start = counted  # type: ignore[method-assign]
    draw = random.Random(int(os.environ["ATMC_TEST_SEED"]))
    rank, at, marker = draw.randrange(2), draw.randrange(10, 45), folder / "died"

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
        recipe = load_recipe(folder / ("chains.toml" if how == "chains" else "recipe.toml"))
        result = run(recipe, folder / name, progress=None)
        print(f"{name} {os.environ['RANK']} {result.status} overlapping={overlapping > 0}", flush=True)


def fork(size: int) -> None:
    """Become one of `size` processes; the first one waits here for all and exits."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = []
    for rank in range(size):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        child = os.fork()
        if child == 0:
            return
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(abs(code) for code in codes))


if __name__ == "__main__":
    if "RANK" not in os.environ:
        fork(int(os.environ["ATMC_TEST_FORK"]))
    main(Path(sys.argv[1]), sys.argv[2:])
