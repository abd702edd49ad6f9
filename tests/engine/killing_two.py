"""Kills one of two processes inside a write and lets both go on, in a process of its own (started by test_kill.py).

The two share out chains, or share one. The other is killed when the first has died, as torchrun does. The writes at
which it happens are spread evenly over the run. After a kill the bank must be whole, and the resumed run must equal one
that was never stopped.
"""

import json
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from killing import Trap, bank_of, in_child, shared_with_tests

from atmc.engine.runner import run


def pair(recipe: Any, place: Path, fatal: dict[int, int], calls: Path) -> list[int]:
    """Both processes to their end; their exit codes. The writes of each are counted in `calls`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    for rank in range(2):
        calls.with_suffix(f".{rank}").write_text("0")

    def work(rank: int) -> None:
        found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {key: str(value) for key, value in found.items()}
        Trap(fatal.get(rank), calls.with_suffix(f".{rank}")).install()
        run(recipe, place, progress=None)

    started = [in_child(lambda rank=rank: work(rank)) for rank in range(2)]  # type: ignore[misc]
    codes = {}
    while len(codes) < 2:
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if len(codes) == 1 and codes[pid] != 0:
            os.kill(sum(started) - pid, signal.SIGKILL)
    return [codes[pid] for pid in started]


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    shared = shared_with_tests()
    recipes = {
        "chains": shared.change(shared.TINY, chains=2),
        "data": shared.change(shared.TINY, run={"parallel": "data"}),
    }
    run(shared.TINY, folder / "warm", progress=None)  # so that no child has much left to import
    rng, calls, told = random.Random(seed), folder / "calls", {}
    for share, recipe in recipes.items():
        whole = folder / share
        assert pair(recipe, whole, {}, calls) == [0, 0]
        counts = {rank: int(calls.with_suffix(f".{rank}").read_text()) for rank in range(2)}
        writing = [rank for rank in range(2) if counts[rank] > 10]
        assert writing == ([0, 1] if share == "chains" else [0]), counts
        for number in range(kills):
            place, rank = folder / f"{share}{number}", writing[number % len(writing)]
            fatal = int((number + rng.random()) / kills * counts[rank]) + 1
            codes = pair(recipe, place, {rank: fatal}, calls)
            assert codes[rank] == -signal.SIGKILL, f"{share}: write {fatal} of {counts[rank]} ended with {codes}"
            before = bank_of(place)
            assert pair(recipe, place, {}, calls) == [0, 0]
            assert set(before) <= set(bank_of(place)), "a complete sample was lost"
            assert shared.fingerprint(place) == shared.fingerprint(whole), f"{place} is another chain"
        told[share] = [kills, len(bank_of(whole))]
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
