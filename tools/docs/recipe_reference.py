"""The reference of recipes: every key with its type, default and comment, and the recipes that ship."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import itertools
import re
import textwrap
import tokenize
from pathlib import Path
from typing import Any

from atmc.recipe.settings import SECTIONS, Recipe

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Recipes

A recipe is a TOML file that says what a run is. `atmc sample NAME` runs one that ships, `atmc sample my.toml` your own.
`--set section.key=value` changes one setting; from Python it is `overrides={"section": {"key": value}}`. A key that is
not set has the default shown here. Every run writes all of its settings to `recipe.toml` in its folder. An unknown key
or a wrong value is an error that names it.
"""


def recipes_page() -> str:
    """The page as Markdown."""
    parts = [HEAD, "## Top level\n", _table(Recipe, leave_out=set(SECTIONS))]
    for name, kind in SECTIONS.items():
        parts += [f"## `[{name}]`\n", inspect.cleandoc(kind.__doc__ or "") + "\n", _table(kind)]
    return "\n".join([*parts, "## Recipes that ship\n", _shipped()])


def comments(kind: type[Any]) -> dict[str, str]:
    """The comment behind each field of a dataclass, by name."""
    source = textwrap.dedent(inspect.getsource(kind))
    by_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found[node.target.id] = next((by_line[line] for line in lines if line in by_line), "")
    return found


def _table(kind: type[Any], leave_out: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    said = comments(kind)
    lines = ["| key | default | values | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(kind):
        if field.name not in leave_out:
            cells = (f"`{field.name}`", _default(field), _values(field.type), said.get(field.name, ""))
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    return "not set" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:g}" if isinstance(value, float) else str(value).replace("'", '"')


def _values(kind: Any) -> str:
    """The type as a reader of TOML understands it: the choices, or what sort of value."""
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    if not isinstance(kind, str):
        if getattr(kind, "__args__", None) and all(isinstance(arg, str) for arg in kind.__args__):
            return ", ".join(f"`{arg}`" for arg in kind.__args__)
        text = str(kind) if "|" in str(kind) or "[" in str(kind) else text
    text = text.removesuffix(" | None").split("[")[0]
    words = {"str": "text", "int": "whole number", "float": "number", "bool": "true, false", "dict": "table"}
    return words.get(text, text)


def _shipped() -> str:
    lines = ["| recipe | what it is |", "| --- | --- |"]
    for path in sorted((ROOT / "recipes").rglob("*.toml")):
        lines.append(f"| `{path.relative_to(ROOT / 'recipes').with_suffix('')}` | {_about(path)} |")
    return "\n".join(lines) + "\n"


def _about(path: Path) -> str:
    """The first sentence of a recipe's comment."""
    rows = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(row.lstrip("# ") for row in itertools.takewhile(lambda row: row.startswith("# "), rows))
    return re.split(r"(?<=[.:]) (?=[A-Z(])", comment)[0].rstrip(":").replace("|", chr(92) + "|")
