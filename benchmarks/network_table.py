"""Networks side by side on held-out images of CIFAR-10: accuracy and NLL under SGD, stability under ATMC.

    ATMC_DATA=data python benchmarks/network_table.py --runs runs/networks --out results/networks \\
        --time-budget 480 --jobs 2 [--rows 'sgd60-*' 'atmc30-gn-ws'] [--list]

Rows (`network_rows.py`) are run in the order of how much each is wanted, `--jobs` at a time, each in a process of its
own. What is in `table.json` already is not run again, and what the time budget cut short is resumed from `--runs`.
`table.json` is written after every row. `--better` leaves out rows of 200 epochs with the weight decay that was less
accurate after 60. Speeds of rows that ran side by side are not those of a network by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from network_rows import HELD_OUT, ROWS, Row, is_worse, measure, needs, recipe_of

SPARE = 20.0  # seconds: no row is begun with less time than that
CLOSING = 8.0  # seconds for a child to write its last checkpoint and its row


def load(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return rows


def is_done(row: dict[str, Any]) -> bool:
    """Whether a row needs no more time: its run ended, or it diverged for good."""
    status = str(row["status"])
    return status == "done" or status.startswith("stopped")


def keep(path: Path, row: dict[str, Any]) -> None:
    """Put a row into the table, in the order of ROWS."""
    order = [each.name for each in ROWS]
    rows = [each for each in load(path) if each["row"] != row["row"]] + [row]
    rows.sort(key=lambda each: order.index(each["row"]) if each["row"] in order else len(order))
    path.write_text(json.dumps(rows, indent=1) + "\n")


def line(row: dict[str, Any]) -> str:
    text = f"{row['row']:22s} {row['status'][:60]:8s}"
    if row.get("accuracy") is not None:
        text += f"  {100 * row['accuracy']:.2f} % / {row['nll']:.3f}"
    if row.get("jump") is not None:
        text += f"  loss {row['loss']:.3f}  largest jump {row['jump']:.2f} ({row['jumps']} above 2)"
        text += f"  {row['rollbacks']} rollbacks"
    if row.get("kinetic_temperature") is not None:
        text += f"  T {row['kinetic_temperature']:.3f}"
    if row.get("lengths"):
        ends = row["lengths"][0], row["lengths"][-1]
        text += "  length² " + " → ".join(f"{end['mean_square']:.3f}" for end in ends)
        text += f" (2T = {row['expected_mean_square']:g}), step × {ends[1]['step']:.2f}"
    for tuned in row.get("tuned", []):
        text += f"  after {tuned['epochs']}: {100 * tuned['accuracy']:.2f} %"
    return text + (f"  {row['gpu_seconds']:.0f} s" if row.get("gpu_seconds") else "")


def child(row: Row, options: argparse.Namespace) -> None:
    """Run one row and leave what it says in the folder of runs."""
    import torch

    row = row if options.epochs is None else dataclasses.replace(row, epochs=options.epochs)
    recipe = recipe_of(row, options.data, options.validation)
    found = measure(row, recipe, options.runs, options.out, options.time_budget)
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found |= {"torch": torch.__version__, "side_by_side": options.jobs}
    (options.runs / f"{row.name}.row.json").write_text(json.dumps(found) + "\n")


def start(row: Row, left: float, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    (options.runs / f"{row.name}.row.json").unlink(missing_ok=True)
    words = ["--runs", options.runs, "--out", options.out, "--data", options.data, "--jobs", options.jobs]
    words += ["--validation", options.validation, "--time-budget", max(1.0, left - CLOSING), "--child", row.name]
    words += [] if options.epochs is None else ["--epochs", options.epochs]
    with (options.runs / f"{row.name}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=log, stderr=log)


def finish(name: str, process: subprocess.Popen[bytes], options: argparse.Namespace) -> dict[str, Any]:
    """The row of a process that has ended."""
    path = options.runs / f"{name}.row.json"
    if process.returncode or not path.exists():
        last = (options.runs / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
        return {"row": name, "status": f"failed: {last[0] if last else process.returncode}"}
    row: dict[str, Any] = json.loads(path.read_text())
    return row


def run_all(rows: list[Row], options: argparse.Namespace) -> None:
    table, began = options.out / "table.json", time.monotonic()
    done = {row["row"] for row in load(table) if is_done(row)}
    waiting = [row for row in rows if row.name not in done]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        left = options.time_budget - (time.monotonic() - began)
        ready = [row for row in waiting if not {*needs(row)} & {*running, *(each.name for each in waiting)}]
        if ready and len(running) < options.jobs and left > SPARE:
            row = ready[0]
            waiting.remove(row)
            if options.better and is_worse(row, load(table)):
                continue
            running[row.name] = start(row, left, options)
            continue
        if not running:
            break
        time.sleep(0.2)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                found = finish(name, process, options)
                print(f"{time.monotonic() - began:5.0f} s  {line(found)}", flush=True)
                if is_done(found):
                    keep(table, found)
    if waiting:
        print(f"no time for {', '.join(row.name for row in waiting)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/networks"), help="run directories, to resume from")
    parser.add_argument("--out", type=Path, default=Path("results/networks"))
    parser.add_argument("--rows", nargs="*", default=["*"], help="which rows, as patterns of names")
    parser.add_argument("--time-budget", type=float, default=480.0, help="seconds for all rows together")
    parser.add_argument("--jobs", type=int, default=2, help="rows at a time")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--validation", type=int, default=HELD_OUT, help="training images held out")
    parser.add_argument("--epochs", type=int, help="instead of each row's own number")
    parser.add_argument("--better", action="store_true", help="200 epochs with the better weight decay alone")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(next(row for row in ROWS if row.name == options.child), options)
        return
    rows = [row for row in ROWS if any(fnmatch.fnmatch(row.name, pattern) for pattern in options.rows)]
    if options.list or not rows:
        print("\n".join(row.name for row in ROWS))
        return
    for folder in (options.runs, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    run_all(rows, options)


if __name__ == "__main__":
    main()
