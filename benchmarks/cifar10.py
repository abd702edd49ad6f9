"""The CIFAR-10 table, from run directories to the numbers and figures in the docs.

    python benchmarks/cifar10.py collect RUN [RUN ...] --row NAME --out DIR   where the runs are (a GPU is used)
    python benchmarks/cifar10.py keep RUN --row NAME --called WORDS           how its run went, to exploration.json
    python benchmarks/cifar10.py join DIR [DIR ...] --row NAME                rows of several days as one
    python benchmarks/cifar10.py table                                        anywhere, from results/cifar10
    python benchmarks/cifar10.py figures

`collect` stores the probabilities on the 10,000 test images, averaged by chain, the scores of each sample, the recipe
and the versions; copied into results/cifar10 they are all that `table` and `figures` need. `table` also fills the
generated passages of README and docs/. docs/cifar10.md has the command for each row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atmc.common.errors import InputError, RunError

RESULTS = Path(__file__).resolve().parents[1] / "results" / "cifar10"


def collect(options: argparse.Namespace) -> None:
    """Store a row, and say how large it is and how good."""
    from cifar10_collect import collect

    row = collect(
        options.runs,
        options.row,
        options.out,
        label=options.label,
        average=options.average,
        ood=options.ood,
        root=options.data,
        device=options.device,
    )
    print(said(row, options.out))


def keep(options: argparse.Namespace) -> None:
    """Put the readings of a row's run beside those that looked for settings."""
    from cifar10_keep import keep

    found = keep(options.run, options.row, options.called, options.out)
    print(f"{found['name']}: {len(found['samples'])} samples, {found['seconds']:.0f} s")


def join(options: argparse.Namespace) -> None:
    """Put stored rows together, as seeds or as an ensemble."""
    from cifar10_join import join

    together = options.average == "all"
    row = join(
        options.folders,
        options.row,
        options.out,
        into=options.name,
        label=options.label,
        aside=options.aside,
        all_in_one=together,
    )
    print(said(row, options.out))


def said(row: dict[str, Any], folder: Path) -> str:
    """A stored row in one line: what it is, how good, how large."""
    files = [*row["probabilities"], *(file for last in row["last"] for file in last)]
    size = sum((folder / file).stat().st_size for file in files)
    return (
        f"{row['row']}: samples {row['samples']}, {row['epochs']:g} epochs ({row['status']}), seeds {row['seeds']}; "
        f"predictive {100 * row['accuracy']:.2f} %, NLL {row['nll']:.4f}, ECE {row['ece']:.4f}; "
        f"{row['gpu_seconds']:.0f} s; {size / 2**20:.2f} MiB in {len(files)} file(s)"
    )


def table(options: argparse.Namespace) -> None:
    """Recompute everything, write table.json, and fill the generated passages of the pages."""
    from cifar10_pages import blocks
    from cifar10_table import save
    from pages import fill_pages, pages

    rows = rows_in(options.results)
    save(options.results, rows)
    found = blocks(options.results, rows)
    print("\n\n".join(found[f"cifar10 {name}"] for name in ("predictions", "last", "cost")))
    for page in fill_pages(found, pages() if options.into is None else options.into):
        print(f"filled {page}", file=sys.stderr)


def figures(options: argparse.Namespace) -> None:
    """Draw, and name what was drawn."""
    from cifar10_figures import save_figures

    for path in save_figures(options.results, rows_in(options.results), options.results):
        print(path)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder of results; an error where there are none."""
    from cifar10_table import build

    if rows := build(folder):
        return rows
    raise InputError(f"{folder} holds no rows yet: begin with python benchmarks/cifar10.py collect")


def parser() -> argparse.ArgumentParser:
    """The five commands."""
    whole = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = whole.add_subparsers(required=True, metavar="collect | keep | join | table | figures")
    verb = verbs.add_parser("collect", help="run directories to a stored row")
    verb.set_defaults(do=collect)
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    verb.add_argument("--row", required=True, help="name of the row and of its files, for example atmc")
    verb.add_argument("--out", type=Path, default=RESULTS)
    verb.add_argument("--label", help="what the table calls it (otherwise sampler and network)")
    how = "what is averaged to one predictor: each chain or run (then they are seeds), or all together (an ensemble)"
    verb.add_argument("--average", choices=("chain", "run", "all"), default="run", help=how)
    other = "OOD inputs: data sets, scrambled, noise, letters (default: fashion-mnist mnist noise)"
    verb.add_argument("--ood", nargs="*", help=other)
    verb.add_argument("--data", help="where data sets are kept (otherwise where the run had them)")
    verb.add_argument("--device", help="cpu, cuda or cuda:N (otherwise CUDA where there is one)")
    verb = verbs.add_parser("keep", help="how the run of a row went, to exploration.json")
    verb.set_defaults(do=keep)
    verb.add_argument("run", type=Path, metavar="RUN", help="its folder; manifests and metrics are enough")
    verb.add_argument("--row", required=True, help="name of the row")
    verb.add_argument("--called", required=True, help="the settings in words, for example 'T0.02 after 0, one chain'")
    verb.add_argument("--out", type=Path, default=RESULTS)
    verb = verbs.add_parser("join", help="rows stored one by one to one row: seeds, or an ensemble")
    verb.set_defaults(do=join)
    verb.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders that hold the row")
    verb.add_argument("--row", required=True, help="what it is called there")
    verb.add_argument("--name", help="what it is to be called (otherwise the same)")
    verb.add_argument("--out", type=Path, default=RESULTS)
    verb.add_argument("--label", help="what the table calls it (otherwise as before)")
    how = "in the tables only, not in the figures (otherwise as before)"
    verb.add_argument("--aside", action=argparse.BooleanOptionalAction, help=how)
    how = "what is averaged to one predictor: each by itself (then they are seeds), or all together (an ensemble)"
    verb.add_argument("--average", choices=("run", "all"), default="run", help=how)
    verb = verbs.add_parser("table", help="stored rows to table.json and Markdown")
    verb.set_defaults(do=table)
    verb.add_argument("--results", type=Path, default=RESULTS)
    verb.add_argument("--into", nargs="*", type=Path, help="pages to fill (otherwise README and docs/)")
    verb = verbs.add_parser("figures", help="stored rows to SVG")
    verb.set_defaults(do=figures)
    verb.add_argument("--results", type=Path, default=RESULTS)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as those of `atmc`: 0 done, 1 failed, 2 bad input."""
    options = parser().parse_args(arguments)
    try:
        options.do(options)
    except (InputError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
