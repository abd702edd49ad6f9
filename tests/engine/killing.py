"""Kills runs at random moments and lets them go on, in a process of its own (started by test_kill.py).

Torch is imported once; every run is a forked child. Half of the kills come from outside at a random time, half from
inside a write: at a random call of write, fsync or rename, with half of the bytes written. After every kill the bank
must hold what it held before, whole; at the end all runs must equal one that was never stopped.
"""

import contextlib
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from atmc.engine.runner import run
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir


def in_child(work: Callable[[], None]) -> int:
    """Fork, run `work`, and return the child's process number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid


class Trap:
    """Counts write, fsync and rename; at call number `fatal` it does half of it and dies."""

    def __init__(self, fatal: int | None, report: Path | None = None) -> None:
        self.calls, self.fatal, self.report = 0, fatal, report
        self.write, self.fsync, self.replace = os.write, os.fsync, os.replace

    def install(self) -> None:
        os.write, os.fsync, os.replace = self._write, self._fsync, self._replace  # type: ignore[assignment]

    def _due(self) -> bool:
        self.calls += 1
        if self.report is not None:
            self.report.write_text(str(self.calls))
        return self.calls == self.fatal

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, handle: int, data: Any) -> int:
        if self._due():
            self.write(handle, bytes(data)[: len(data) // 2])
            self._die()
        return self.write(handle, data)

    def _fsync(self, handle: int) -> None:
        if self._due():
            self._die()
        self.fsync(handle)

    def _replace(self, a: Any, b: Any, **folders: int) -> None:
        if self._due():
            self._die()
        self.replace(a, b, **folders)


def bank_of(folder: Path) -> list[str]:
    """Hashes of the samples in the bank, every file checked; empty before there is a run."""
    if not Manifest.exists(folder):
        return []
    found = RunDir.open(folder)
    if not found.parts:
        return []
    assert found.notes == [], found.notes
    assert found.bank.problems() == [], "a sample in the bank is damaged"
    return found.bank.hashes()


def shared_with_tests() -> Any:
    """The module conftest.py, outside pytest."""
    spec = importlib.util.spec_from_file_location("shared", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    return shared


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    shared = shared_with_tests()
    # Checkpoints every few steps, so that a random moment often falls into a write.
    recipes = {n: shared.change(shared.TINY, chains=n, run={"checkpoint_minutes": 0.0005}) for n in (1, 2)}
    rng = random.Random(seed)
    run(recipes[1], folder / "warm", progress=None)  # so that no child has anything left to import
    calls = folder / "calls"

    def uninterrupted(chains: int) -> None:
        Trap(None, calls).install()
        run(recipes[chains], folder / f"whole{chains}", progress=None)

    lengths, counts = {}, {}
    for chains in recipes:
        began = time.monotonic()
        pid = in_child(lambda chains=chains: uninterrupted(chains))  # type: ignore[misc]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lengths[chains], counts[chains] = time.monotonic() - began, int(calls.read_text())

    done, runs, inside = 0, 0, 0
    while done < kills:
        place, chains = folder / f"run{runs}", 2 if runs % 3 == 2 else 1
        recipe, length, writes = recipes[chains], lengths[chains], counts[chains]
        runs += 1
        for _ in range(6):  # a few kills each, so that late moments of a run are met too
            before = bank_of(place)
            from_inside = rng.random() < 0.5
            fatal = rng.randint(1, max(2, writes // 3)) if from_inside else None

            def work(place: Path = place, fatal: int | None = fatal, recipe: Any = recipe) -> None:
                if fatal is not None:
                    Trap(fatal).install()
                run(recipe, place, progress=None)

            pid = in_child(work)
            if not from_inside:
                time.sleep(rng.uniform(0, length * 0.6))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            after = bank_of(place)
            assert set(before) <= set(after), "a complete sample was lost"
            if code == 0:
                break
            assert code == -signal.SIGKILL, f"the child failed with {code}"
            done += 1
            inside += from_inside
        pid = in_child(lambda place=place, recipe=recipe: run(recipe, place, progress=None))  # type: ignore[misc]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert shared.fingerprint(place) == shared.fingerprint(folder / f"whole{chains}"), f"{place} is another chain"
    samples = [len(bank_of(folder / f"whole{chains}")) for chains in recipes]
    print(json.dumps({"kills": done, "inside": inside, "runs": runs, "samples": samples}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
