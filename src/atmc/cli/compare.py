"""`atmc compare RECIPE|TABLE.csv`: is sampling ahead of the usual baselines on these data, at equal compute?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atmc.cli.console import emit, printable, remark, say, table, working
from atmc.cli.folder_recipe import PREFIX, recipe_for
from atmc.common.errors import InputError

if TYPE_CHECKING:
    from atmc.comparison.compare import Comparison

WIDTH = 50  # of the network for a table: one hidden layer, as is usual for UCI's regressions


def compare(
    source: str,
    *,
    target: str | None,
    settings: Sequence[str],
    epochs: int | None,
    methods: Sequence[str],
    repeats: int,
    seed: int,
    as_json: bool,
) -> int:
    """The command; returns the exit code."""
    if not 1 <= repeats <= 20:
        raise InputError(f"--repeats {repeats}: must be from 1 to 20")
    is_table = Path(source).suffix.lower() in (".csv", ".tsv")
    if not is_table and target is not None:
        raise InputError("--target is for a table: name a .csv file")
    with working("reading the data"):
        call = _of_table(Path(source), target, seed, settings) if is_table else _of_recipe(source, settings)
        from atmc.comparison.compare import METHODS
        from atmc.comparison.compare import compare as run

    if epochs is not None:
        call["epochs"] = epochs
    said = call.pop("said")
    if not as_json:
        say(printable(said))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of short chains: the table says what they are worth
        found = run(**call, methods=methods or METHODS, repeats=repeats, seed=seed, tell=None if as_json else remark)
    if as_json:
        emit(
            {
                "rows": found.table(),
                "verdict": list(found.verdict),
                "task": found.task,
                "examples": found.examples,
                "left_out": found.left_out,
            }
        )
        return 0
    _print(found)
    return 0


def _print(found: Comparison) -> None:
    from atmc.posterior.intervals import clearly_best
    from atmc.posterior.metric_entries import columns

    shown = columns(found.task)
    rows, strong = [], [[False] * (len(shown) + 4) for _ in found.rows]
    for row in found.rows:
        scores = [metric.shown(row.score(metric.name)) for metric in shown]
        rows.append((row.method, *scores, str(row.networks), f"{row.gradients:,}", f"{row.seconds:.0f} s"))
    if len(found.rows[0].spreads) == 1:
        for at, metric in enumerate(shown, start=1):
            first = clearly_best(metric, [row.spreads[0].get(metric.name) for row in found.rows])
            if first is not None:
                strong[first][at] = True
    say()
    heads = [f"{metric.label} {metric.unit}".strip() for metric in shown]
    table(("Method", *heads, "Networks", "Gradients", "Time"), rows, strong)
    say()
    for method, why in found.left_out.items():
        say(printable(f"Left out: {method}, because {why}."))
    for sentence in found.verdict:
        say(printable(sentence))


def _of_recipe(source: str, settings: Sequence[str]) -> dict[str, Any]:
    """Network, data and sampler of a recipe, or of a folder of pictures."""
    from atmc import data
    from atmc.recipe.build import build_model
    from atmc.storage.run_recipe import load_recipe_or_run

    recipe = recipe_for(source, settings) if source.startswith(PREFIX) else load_recipe_or_run(source, list(settings))
    if recipe.sampler.name == "sgd":
        raise InputError(f"{source} has no sampler, only SGD, which is compared anyway: name a recipe that samples")
    if recipe.model.name == "custom":
        raise InputError(f"{source} is of a network of your own: in Python, use atmc.compare(model, data)")
    train, test = (data.load(recipe.data.name, split, root=recipe.data.root) for split in ("train", "test"))
    model = build_model(recipe, train.shape, len(train.classes))
    size = f"{len(train):,} training and {len(test):,} test examples of {len(train.classes)} classes"
    said = (
        f"{recipe.data.name}: {size}; {recipe.model.name} of depth {recipe.model.depth} and width {recipe.model.width}."
    )
    return {"model": model, "data": train, "test": test, "recipe": recipe, "said": said}


def _of_table(path: Path, target: str | None, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """A table with a small network: one hidden layer of WIDTH units."""
    if settings:
        raise InputError("--set is for recipes; of a table --epochs can be set")
    import torch
    from torch import nn

    from atmc.comparison.table_file import read_table

    found = read_table(path, target, seed)
    outputs = len(found.classes) or 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(found.columns, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))
    what = f"{outputs} classes" if found.classes else "a number, whose noise is learned"
    dropped = f" ({found.dropped} rows with missing values are left out)" if found.dropped else ""
    size = f"{len(found.train[0]):,} training and {len(found.test[0]):,} test rows of {found.columns} columns{dropped}"
    said = f"{path}: {size}, to predict {what}; one hidden layer of {WIDTH} units."
    return {"model": model, "data": found.train, "test": found.test, "said": said}
