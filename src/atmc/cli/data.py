"""`atmc data list`, `atmc data get NAME` and `atmc data shard FOLDER OUT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atmc.cli.console import command, emit, next_step, printable, say, table, working
from atmc.common.errors import InputError
from atmc.common.suggest import did_you_mean


def data_list(*, as_json: bool) -> int:
    """Print every data set with its size and state."""
    from atmc.data import available

    with working("looking at the data sets"):
        infos = available()
    if as_json:
        emit([_plain(info) for info in infos])
        return 0
    rows = []
    for info in infos:
        if info.state == "pattern":
            continue
        shape = "–" if info.shape is None else " × ".join(str(n) for n in info.shape)
        sizes = "–" if info.train is None else f"{info.train:,} / {'–' if info.test is None else f'{info.test:,}'}"
        rows.append((info.name, sizes, shape, info.state, info.summary))
    table(("name", "train / test", "shape", "state", "what it is"), rows, left=(0, 3, 4))
    say()
    say("Also, with a path or a shape of your own:")
    for info in infos:
        if info.state == "pattern":  # not in a column, where they would wrap and could not be copied
            say(f"  {printable(info.detail)}", info.detail)
            say(f"      {printable(info.summary)}")
    missing = next((info.name for info in infos if info.state == "absent"), None)
    next_step(command("atmc", "data", "get", missing) if missing else "atmc sample digits-atmc")
    return 0


def _plain(info: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(info).items()}


def data_get(name: str, *, source: str | None, root: Path | None, as_json: bool) -> int:
    """Fetch `name`, with progress on stderr."""
    from atmc.data import available, fetch

    known = [info.name for info in available() if info.state != "pattern"]
    if name not in known:
        raise InputError(f"no data set is called {name!r}; {did_you_mean(name, known)}")
    where = fetch(name, root, source=source, progress=_progress())
    if as_json:
        emit({"name": name, "path": None if where is None else str(where)})
        return 0
    if where is None:
        say(f"{name} needs no fetching.")
    else:
        say(f"{name} is here and verified: {printable(where)}", where)
    next_step(_sample_it(name))
    return 0


def data_shard(folder: Path, out: Path, *, megabytes: float, as_json: bool) -> int:
    """Write tar shards from the images of a folder, with progress on stderr."""
    from atmc.data.image_layouts import find_images
    from atmc.data.shard_writer import write_shards

    with working("looking for images"):
        splits, classes = find_images(folder)
    record = write_shards(out, splits, classes, megabytes, _progress())
    counts = {split: {"images": p["images"], "shards": len(p["shards"])} for split, p in record["splits"].items()}
    if as_json:
        emit({"path": str(out), "classes": len(classes), "splits": counts})
        return 0
    for split, found in counts.items():
        say(f"{split}: {found['images']:,} images of {len(classes):,} classes in {found['shards']:,} shards")
    say(f"The shards are in {printable(out)}, with their checksums in shards.json.", out)
    name = f"shards:{out}/{{split}}-*.tar?size=224&classes={len(classes)}"
    next_step(command("atmc", "sample", "imagenet/atmc", "--set", f"data.name={name}"))
    return 0


def _sample_it(name: str) -> str:
    """A command that samples with this data set, by its own recipe or that of a similar set."""
    from atmc.recipe.toml_files import find_recipe

    own = name.partition("?")[0]
    for recipe in (f"{own}-atmc", f"{own}/atmc-settled", f"{own}/atmc"):  # README's, where there are several
        try:
            find_recipe(recipe)
        except InputError:
            continue
        return command("atmc", "sample", recipe)
    recipe, data = ("imagenette/atmc", f"{own}?size=224") if own == "imagewoof" else ("fashion-atmc", name)
    return command("atmc", "sample", recipe, "--set", f"data.name={data}", "--out", f"runs/{own}")


def _progress() -> Callable[[str, int, int | None], None]:
    """Print a line for every tenth of a stage."""
    last: list[object] = [None]

    def show(stage: str, done: int, total: int | None) -> None:
        step = (stage, 10 * done // total if total else done // (10 << 20))
        if step == last[0]:
            return
        last[0] = step
        size = f"{done / 1e6:.0f}" + (f" of {total / 1e6:.0f}" if total else "")
        said = printable(stage) if total == 0 else f"{printable(stage)}: {size} MB"
        print(said, file=sys.stderr, flush=True)

    return show
