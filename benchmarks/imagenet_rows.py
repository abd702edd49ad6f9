"""The paper's ImageNet table on subsets of ImageNet: Imagenette, Imagewoof, Tiny-ImageNet-200, imagenet-mini.

    ATMC_DATA=data python benchmarks/imagenet_rows.py --runs runs/imagenet --out results/imagenet \\
        --time-budget 480 [--rows 'imagenette-*'] [--epochs 40] [--data SET=NAME ...]
    python benchmarks/imagenet_rows.py --list       # names of rows, and the seconds that each should take on an H200

What the rows are: `imagenet_recipes.py`; how they are scored: `imagenet_scores.py`. What is in `table.json` already is
not run again; what the time budget cut short is resumed from `--runs`. `python benchmarks/docs_tables.py` writes the
table into docs/imagenet.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from atmc.common.errors import InputError
from imagenet_recipes import ROWS, SETS, TEMPERATURE, predicted, recipe_of
from imagenet_scores import line, measure


def run_all(rows: list[tuple[str, str]], options: argparse.Namespace) -> None:
    table, began = options.out / "table.json", time.monotonic()
    found: list[dict[str, Any]] = json.loads(table.read_text()) if table.exists() else []
    order = [f"{name}-{kind}" for name, kind in ROWS]
    for name, kind in rows:
        left = options.time_budget - (time.monotonic() - began)
        if any(row["row"] == f"{name}-{kind}" for row in found):
            continue
        if left < options.spare:
            print(f"no time for {name}-{kind}")
            continue
        row = measure(name, kind, options, left - options.spare / 2)
        row |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
        row |= {"torch": torch.__version__}
        print(f"{time.monotonic() - began:5.0f} s  {line(row)}", flush=True)
        if row["status"] == "done" or row["status"].startswith("stopped"):
            found.append(row)
            found.sort(key=lambda each: order.index(each["row"]))
            table.write_text(json.dumps(found, indent=1) + "\n")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/imagenet"), help="run directories, to resume from")
    parser.add_argument("--out", type=Path, default=Path("results/imagenet"))
    parser.add_argument("--rows", nargs="*", default=["*"], help="which rows, as patterns of names")
    parser.add_argument("--time-budget", type=float, default=480.0, help="seconds for all rows together")
    parser.add_argument("--spare", type=float, default=20.0, help="seconds that a row is not begun with")
    parser.add_argument("--data", nargs="*", default=[], metavar="SET=NAME", help="other names of the data sets")
    parser.add_argument("--note", help="what the images are, where they are not those of the named sets")
    parser.add_argument("--root", help="folder of the data sets")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE)
    for name in ("epochs", "crop", "depth", "width", "chains", "batch"):
        parser.add_argument(f"--{name}", type=int, help="instead of each row's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, help="learning rate on the mean loss, instead of each row's own")
    parser.add_argument("--momentum", type=float, default=0.9, help="of chains, at a rate that moves weights as far")
    parser.add_argument("--validation", type=int, default=0, help="score so many held-out training images instead")
    parser.add_argument("--list", action="store_true", help="print the rows and what each should take")
    options = parser.parse_args(words)
    options.data = dict(pair.split("=", 1) for pair in options.data)
    return options


def main(words: list[str] | None = None) -> None:
    options = parse(words)
    rows = [(n, k) for n, k in ROWS if any(fnmatch.fnmatch(f"{n}-{k}", pattern) for pattern in options.rows)]
    if options.list or not rows:
        for name, kind in rows or ROWS:
            seconds = predicted(recipe_of(name, kind, options), SETS[name].train)
            print(f"{name + '-' + kind:28s} about {seconds:4.0f} s on an H200")
        return
    for folder in (options.runs, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    run_all(rows, options)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
