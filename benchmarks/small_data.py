"""Small data: nine UCI regressions on their published splits, and small classification sets.

    python benchmarks/small_data.py --uci DIR --classes FILE.npz --jobs 16 [--sets boston yacht] [--rows atmc ensemble]
                                    [--splits 3] [--out results/small_data]
    python benchmarks/small_data.py --table                  # the table of what is there, also in the documentation

Each fit has one thread and leaves one file in OUT/fits/, so that the same command goes on where it was stopped, and
several commands, as one on CUDA and one with CUDA_VISIBLE_DEVICES= beside it, share the work. Nothing is chosen on a
test part: settings were compared with `--validation`, which scores a fifth of each training part. `small_data_sets.py`
says where the data come from. The row `laplace` needs laplace-torch, which is no dependency of atmc.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import small_data_sets as sets  # noqa: E402

ROWS = ("atmc", "ensemble", "ensemble-heteroscedastic", "laplace")
CLASS_ROWS = ("atmc-auto", "atmc", "ensemble")
STALE = 900.0  # seconds
FITS = 5  # of a process, before a new one: torch.compile gives up on a function that it has compiled 8 times


def one(
    name: str, row: str, split: int, data: str, validation: bool, settings: dict[str, Any], file: str
) -> dict[str, Any] | None:
    """Make one fit and keep what it found; None where another process has it."""
    import torch

    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() or not _claimed(path.with_suffix(".claim")):
        return None

    torch.set_num_threads(1)
    from small_data_fits import fit

    load = sets.uci if name in sets.FOLDERS else sets.classes
    found = fit(name, row, load(Path(data), name, split, validation), split, settings)
    found |= {"validation": validation, "settings": settings}
    path.with_suffix(".tmp").write_text(json.dumps(found) + "\n")
    path.with_suffix(".tmp").replace(path)
    path.with_suffix(".claim").unlink(missing_ok=True)
    return found


def _claimed(claim: Path) -> bool:
    """Whether this process is the one to make a fit. A claim that is STALE is that of a process which was stopped."""
    if claim.exists() and time.time() - claim.stat().st_mtime > STALE:
        claim.unlink(missing_ok=True)
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uci", type=Path)
    parser.add_argument("--classes", type=Path)
    parser.add_argument("--sets", nargs="+", default=[])
    parser.add_argument("--rows", nargs="+", default=[], help="those of ROWS or CLASS_ROWS unless named")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "small_data")
    parser.add_argument("--validation", action="store_true", help="score a fifth of the training part")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, for comparisons on --validation")
    parser.add_argument("--reverse", action="store_true", help="the last splits first")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--time-budget", type=float, default=float("inf"), help="seconds; no fit begins after it")
    asked = parser.parse_args()
    if not asked.table:
        work(asked)
    from small_data_table import refresh, write

    write(asked.out)
    if asked.out.resolve() == (HERE.parent / "results" / "small_data").resolve():
        rows = json.loads((asked.out / "table.json").read_text())
        refresh(HERE.parent / "docs" / "tutorials" / "small-data.md", rows)


def work(asked: argparse.Namespace) -> None:
    """All fits that are not there yet: split by split, and each in the order of sets and rows that was asked for."""
    began = time.monotonic()
    names = asked.sets or [*(sets.FOLDERS if asked.uci else ()), *(sets.CLASS_SPLITS if asked.classes else ())]
    tasks = []
    for name in names:
        regression = name in sets.FOLDERS
        data, most = (asked.uci, sets.SPLITS[name]) if regression else (asked.classes, sets.CLASS_SPLITS[name])
        rows = ROWS if regression else CLASS_ROWS[:1] if name == sets.RANDOM else CLASS_ROWS
        wanted = [row for row in asked.rows if regression or row in CLASS_ROWS] if asked.rows else rows
        for row in wanted:
            for split in range(min(asked.splits, most)):
                file = asked.out / "fits" / name / f"{row}-{split}.json"
                if not file.exists():
                    tasks.append((name, row, split, str(data), asked.validation, asked.settings, str(file)))
    tasks.sort(key=lambda task: -task[2] if asked.reverse else task[2])
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    done = 0
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn"), max_tasks_per_child=FITS) as pool:
        waiting = iter(tasks)
        running = {}
        for task in waiting:
            running[pool.submit(one, *task)] = task
            if len(running) >= asked.jobs + 1:
                done += _take(running)
            if time.monotonic() - began > asked.time_budget:
                break
        while running:
            done += _take(running)
    print(f"{done} of {len(tasks)} fits in {time.monotonic() - began:.0f} s")


def _take(running: dict[Any, Any]) -> int:
    """Wait for one fit and say how it went; a fit that fails is told and left out."""
    future = next(as_completed(running))
    name, row, split, *_ = running.pop(future)
    try:
        found = future.result()
    except Exception as error:
        print(f"{name} {row} {split} failed: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        return 0
    if found is None:
        return 0
    shown = "  ".join(f"{key} {found[key]:.3f}" for key in ("rmse", "accuracy", "nll", "coverage90") if key in found)
    print(f"{name} {row} {split}: {shown}  {found['seconds']:.0f} s", flush=True)
    return 1


if __name__ == "__main__":
    main()
