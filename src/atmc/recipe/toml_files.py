"""Recipes as TOML: read, override, check, and write out with every default.

A person meets recipes through this file, so each mistake ends in one line that names the key, says what is wrong with
it, and offers the nearest valid one.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atmc.common.errors import InputError
from atmc.common.suggest import close_matches
from atmc.recipe.error_messages import explain
from atmc.recipe.settings import SECTIONS, Recipe
from atmc.recipe.unused_keys import left_behind
from atmc.recipe.validation import check_recipe

RECIPE_FILE = "recipe.toml"


def recipe_folders() -> list[Path]:
    """Where a recipe's bare name is looked for: here first, then beside the package."""
    package = Path(__file__).resolve().parents[1]
    return [Path("recipes"), package / "recipes", package.parents[1] / "recipes"]


def find_recipe(name: str | Path) -> Path:
    """The file of `name`: a path, or the bare name of a recipe that ships (`digits-atmc`, `cifar10/sgd`)."""
    path = Path(name)
    if path.is_file():
        return path
    bare = str(name).removesuffix(".toml").removeprefix("recipes/")
    shipped: list[str] = []
    for folder in recipe_folders():
        candidate = folder / f"{bare}.toml"
        if candidate.is_file():
            return candidate
        shipped += [str(p.relative_to(folder).with_suffix("")) for p in sorted(folder.rglob("*.toml"))]
    raise InputError(f"no recipe {name}{_instead(str(name), bare, shipped)}")


def _instead(name: str, bare: str, shipped: Sequence[str]) -> str:
    """What follows on "no recipe NAME": that there is no such file, and names that are like it in any case."""
    said = ": there is no such file" if name.lower().endswith(".toml") else ""
    if near := close_matches(bare, shipped, count=1):
        return f"{said}; did you mean {near[0]}?"
    return said


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = (), typed: Sequence[str] | None = None) -> Recipe:
    """Read and check a recipe; `overrides` are `key=value` with the value as TOML writes it (quotes optional).

    A mistake is said of the override that made it, otherwise of the file. `typed` are the overrides that a person knows
    of, where that is not all of them.
    """
    path = find_recipe(path_or_name)
    return parse_recipe(path, lambda: path.read_text(encoding="utf-8"), overrides, typed)


def parse_recipe(
    path: Path, read: Callable[[], str], overrides: Sequence[str] = (), typed: Sequence[str] | None = None
) -> Recipe:
    """The recipe in the text that `read` gives; `path` is what mistakes are said of."""
    try:
        values = tomllib.loads(read())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: not a recipe: its values are nested too deeply") from None
    values.setdefault("name", path.stem)
    try:
        return recipe_from_values(values, overrides)
    except InputError as error:
        raise InputError(_blaming(str(error), path, overrides if typed is None else typed)) from None


def _blaming(line: str, path: Path, typed: Sequence[str]) -> str:
    """A mistake with where it was made: in what was typed, if it is about a setting named there, or in the file."""
    if line.startswith("--set "):
        return line
    said = re.split("; (?:did you mean|there are) ", line)[0]  # names that are suggested have done nothing
    keys = {setting.partition("=")[0].strip(): setting for setting in typed}  # the last one counts
    to_blame = [f"--set {keys[key]}" for key in keys if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", said)]
    return f"{' '.join(to_blame) or path}: {line}"


def recipe_from_values(values: dict[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A checked recipe from nested values and overrides.

    Settings that belonged to a kind of schedule which an override replaces go with it, and those of heat where an
    override sets the temperature to 0, unless an override sets them: they cannot be left out in any other way.
    """
    before = {**values, **{key: dict(part) for key, part in values.items() if isinstance(part, dict)}}
    given = {_set(values, override) for override in overrides}
    recipe = validated(values)
    if idle := left_behind(recipe, before, given):
        for key in idle:
            section, _, name = key.partition(".")
            del values[section][name]
        recipe = validated(values)
    return check_recipe(recipe)


def validated(values: dict[str, Any]) -> Recipe:
    """The recipe of nested values whose keys and types are right."""
    try:
        from pydantic import TypeAdapter, ValidationError
    except ImportError:
        raise InputError("recipe files need pydantic: pip install 'atmc[cli]'") from None
    try:
        # Through JSON: there pydantic's strict mode takes tables for sections and still no "3" for 3.
        return TypeAdapter(Recipe).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        raise InputError(explain(error.errors(include_url=False)[0])) from None
    except RecursionError:
        raise InputError("a value is nested too deeply") from None


def _set(values: dict[str, Any], override: str) -> str:
    """Put one `key=value` into nested `values`; returns the key."""
    key, sign, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not sign or not key:
        raise InputError(f"--set {override}: must be key=value, for example sampler.temperature=0.5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise InputError(f"--set {override[:60]}…: nested too deeply") from None
    except tomllib.TOMLDecodeError:
        # A bare word is a string, so that a shell needs no second pair of quotes; .5 and 5. are numbers to people.
        value = float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.I) else text
    *sections, last = key.split(".")
    place = values
    for part in sections:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise InputError(f"--set {override}: {part} is not a section")
    place[last] = value
    return key


def without_unset(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe's values as a file would hold them: keys that are not set are left out."""
    kept = {key: value for key, value in values.items() if value is not None}
    return {key: without_unset(value) if isinstance(value, dict) else value for key, value in kept.items()}


def recipe_to_toml(recipe: Recipe) -> str:
    """The resolved recipe: every key with its value, what is not set as a comment."""
    lines: list[str] = []
    for key, value in recipe.to_dict().items():
        if key in SECTIONS:
            lines += ["", f"[{key}]"]
            lines += [_line(inner, item) for inner, item in value.items()]
        else:
            lines.append(_line(key, value))
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    return f"# {key} is not set" if value is None else f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    """A value as TOML writes it. Floats keep all their digits, so that reading back gives the same run."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    return repr(value)


def override_words(overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Overrides as `key=value` words: nested or dotted keys of a mapping become the words that `--set` takes."""
    if not isinstance(overrides, Mapping):
        return list(overrides)
    words: list[str] = []
    for key, value in overrides.items():
        inner = value if isinstance(value, Mapping) and key in SECTIONS else None
        pairs = {key: value} if inner is None else {f"{key}.{name}": item for name, item in inner.items()}
        words += [f"{name}={_toml(item)}" for name, item in pairs.items()]
    return words
