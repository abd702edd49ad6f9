"""The paper's CIFAR-10 table, from run directories to the numbers and figures in README.

    python benchmarks/cifar10.py collect RUN [RUN ...] --row NAME --out DIR   where the runs are (a GPU is used)
    python benchmarks/cifar10.py keep RUN --row NAME --called WORDS           how its run went, to exploration.json
    python benchmarks/cifar10.py join DIR [DIR ...] --row NAME                rows of several days as one
    python benchmarks/cifar10.py table [--into README.md docs/cifar10.md]     anywhere, from results/cifar10
    python benchmarks/cifar10.py figures

`collect` stores each sample's probabilities on the 10,000 test images, the recipe and the versions; copied into
results/cifar10 they are all that `table` and `figures` need. docs/cifar10.md has the command for each row.
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
        outside=options.outside,
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
    size = sum((folder / file).stat().st_size for file in row["probabilities"])
    return (
        f"{row['row']}: samples {row['samples']}, {row['epochs']:g} epochs ({row['status']}), seeds {row['seeds']}; "
        f"predictive {100 * row['accuracy']:.2f} %, NLL {row['nll']:.4f}, ECE {row['ece']:.4f}; "
        f"{row['gpu_seconds']:.0f} s; {size / 2**20:.2f} MiB in {len(row['probabilities'])} file(s)"
    )


def table(options: argparse.Namespace) -> None:
    """Recompute everything, write table.json, print the Markdown, and fill the pages that were named."""
    from cifar10_table import blocks, build, fill, save

    rows = build(options.results)
    if not rows:
        raise InputError(f"{options.results} holds no rows yet: begin with python benchmarks/cifar10.py collect")
    save(options.results, rows)
    print("\n\n".join(text for text in blocks(rows).values() if text))
    for page in options.into:
        page.write_text(fill(page.read_text(encoding="utf-8"), rows), encoding="utf-8")


def figures(options: argparse.Namespace) -> None:
    """Draw, and name what was drawn."""
    from cifar10_figures import save_figures

    for path in save_figures(options.results, options.results):
        print(path)


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
    other = "data to tell CIFAR-10 from: data sets, scrambled, noise, letters (default: fashion-mnist mnist noise)"
    verb.add_argument("--outside", nargs="*", help=other)
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
    how = "in the long table only, not in README's and the figures (otherwise as before)"
    verb.add_argument("--aside", action=argparse.BooleanOptionalAction, help=how)
    how = "what is averaged to one predictor: each by itself (then they are seeds), or all together (an ensemble)"
    verb.add_argument("--average", choices=("run", "all"), default="run", help=how)
    verb = verbs.add_parser("table", help="stored rows to table.json and Markdown")
    verb.set_defaults(do=table)
    verb.add_argument("--results", type=Path, default=RESULTS)
    verb.add_argument("--into", nargs="*", type=Path, default=[], help="pages whose cifar10 blocks are filled")
    verb = verbs.add_parser("figures", help="stored rows to SVG and PNG")
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
