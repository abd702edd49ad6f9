"""The recipe of a run directory: from its recipe.toml or, where that is gone or altered, from its manifest."""

from collections.abc import Sequence
from pathlib import Path

from atmc.common.errors import InputError, RunError
from atmc.recipe.settings import Recipe
from atmc.recipe.toml_files import RECIPE_FILE, load_recipe, parse_recipe
from atmc.storage.files import problem
from atmc.storage.manifest import MIRROR, NAME, Manifest

_MANIFESTS = (NAME, MIRROR)


def load_recipe_or_run(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a run directory (or of a file of it), of a recipe file, or of a recipe that ships."""
    path = Path(name)
    own = recipe_of_run(path) or path
    if own.name in _MANIFESTS:
        return parse_recipe(own, lambda: _text_of_run(own.parent), overrides)
    return load_recipe(own if own.is_file() else name, overrides)


def recipe_of_run(folder: Path) -> Path | None:
    """The file of a run directory that has its recipe; None where it is no run directory.

    That is its manifest, which holds the text too, where recipe.toml is gone or is no longer what was written.
    """
    own, kept = folder / RECIPE_FILE, [folder / name for name in _MANIFESTS if (folder / name).is_file()]
    if own.is_file() and not (kept and _altered(own)):
        return own
    return kept[0] if kept else None


def _altered(own: Path) -> bool:
    """Whether the manifest beside a recipe.toml lists another one."""
    try:
        manifest = Manifest.load(own.parent)
    except (InputError, RunError):  # nothing to compare with; opening the run says what is wrong
        return False
    return RECIPE_FILE in manifest.values["files"] and problem(*manifest.entry(RECIPE_FILE)) is not None


def _text_of_run(folder: Path) -> str:
    """The recipe that the manifest of a run holds; going on with the run puts recipe.toml back."""
    text = Manifest.load(folder).values.get("recipe")
    if not isinstance(text, str) or not text:
        raise InputError(f"{folder} holds no run: its manifest has no recipe")
    return text
