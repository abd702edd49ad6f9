"""`atmc sample RECIPE`: run a recipe, or resume a run exactly where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atmc.cli.console import command, emit, next_step, printable, say, working
from atmc.cli.folder_recipe import PREFIX, recipe_for
from atmc.cli.main import DONE, INTERRUPTED, OUT_OF_TIME, Told
from atmc.common.errors import InputError
from atmc.common.text import plural

if TYPE_CHECKING:
    from atmc.engine.runner import RunResult


def sample(recipe: str, *, out: Path | None, settings: Sequence[str], time_budget: float | None, as_json: bool) -> int:
    """The command; returns the exit code."""
    if time_budget is not None and not 0 < time_budget < float("inf"):
        raise InputError(f"--time-budget {time_budget:g}: must be a number of seconds above 0")
    if recipe.startswith(PREFIX):
        with working("looking at the pictures"):
            loaded = recipe_for(recipe, settings)
    else:
        from atmc.storage.run_recipe import load_recipe_or_run

        source, out = _where(recipe, out)
        _check_name(source)
        loaded = load_recipe_or_run(source, list(settings))
    if loaded.model.name == "custom":
        raise InputError(
            f"{recipe} samples a custom network, which a recipe cannot name: to resume, call atmc.sample in Python "
            f"again, with the same network and data and out={str(out or recipe)!r}"
        )
    folder = out if out is not None else Path("runs") / _folder_name(loaded.name)
    from atmc.cli.open_runs import run_recipe

    result = run_recipe(loaded, folder, time_budget=time_budget, quiet=as_json)
    return finish(result, folder, as_json)


def _where(recipe: str, out: Path | None) -> tuple[str, Path | None]:
    """The recipe and the run directory; a run directory names its own recipe."""
    folder = Path(recipe)
    if not folder.is_dir():
        return recipe, out
    from atmc.storage.run_recipe import recipe_of_run

    own = recipe_of_run(folder)
    if own is None:
        raise InputError(
            f"{folder} is a folder without a recipe.toml: name a recipe, a run that was started before, or, "
            f"for a folder of pictures, {command(f'{PREFIX}{folder}')}"
        )
    return str(own), out if out is not None else folder


def _check_name(recipe: str) -> None:
    """Raise for an unknown recipe; where no name is similar, list all of them."""
    from atmc.recipe.toml_files import find_recipe, recipe_folders

    try:
        find_recipe(recipe)
    except InputError as error:
        if "did you mean" in str(error):
            raise
        found = {str(p.relative_to(f).with_suffix("")) for f in recipe_folders() for p in f.rglob("*.toml")}
        raise InputError(f"{error}; name a TOML file, or one of {', '.join(sorted(found))}") from None


def _folder_name(name: str) -> str:
    """A recipe's name as the name of one folder."""
    kept = "".join(c if c.isalnum() or c in "-_.+=" else "-" for c in name).strip(".-")
    return kept or "run"


def finish(result: RunResult, folder: Path, as_json: bool) -> int:
    """Print how a run ended and what to type next; returns the exit code."""
    samples = result.samples
    code = Told({"done": DONE, "budget": OUT_OF_TIME, "interrupted": INTERRUPTED}[result.status])
    if not result.speaks:  # another process reports how it ended
        return code
    if as_json:
        emit({"status": result.status, "run": str(folder), "samples": samples})
        return code
    count = plural(samples, "sample")
    if result.status == "done":
        say(f"Done: {count} in {printable(folder)}.", folder)
        next_step(command("atmc", "report", folder))
    else:
        why = "Out of time" if result.status == "budget" else "Stopped"
        say(f"{why}: {count} so far in {printable(folder)}, nothing is lost.", folder)
        next_step(command("atmc", "sample", folder))
    return code
