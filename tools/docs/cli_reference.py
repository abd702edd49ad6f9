"""The reference of the command line: every verb with its arguments and options, from the typer application."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from atmc.cli.app import app

HEAD = """# Command line

Every verb has `--help`. Exit codes: 0 done, 1 failed, 2 wrong input (one line says what), 3 stopped on its time budget,
130 interrupted.
"""


def cli_page() -> str:
    """The page as Markdown."""
    group: Any = typer.main.get_command(app)
    return "\n".join([HEAD, *(_verb(command, words) for words, command in verbs(group, "atmc"))])


def verbs(group: Any, path: str) -> list[tuple[str, Any]]:
    """All commands below a group, by what a person types."""
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        words = f"{path} {name}"
        found += verbs(command, words) if hasattr(command, "commands") else [(words, command)]
    return found


def _verb(command: Any, words: str) -> str:
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    usage = " ".join([words, *(_usage(p) for p in shown)])
    parts = [f"## `{words}`\n", inspect.cleandoc(command.help or ""), "", "```text", usage, "```", ""]
    if shown:
        parts += ["| | default | meaning |", "| --- | --- | --- |"]
        parts += [f"| {_name(p)} | {_default(p)} | {_escaped(p.help or '')} |" for p in shown]
        parts.append("")
    if command.epilog:
        parts += [f"{command.epilog.replace('Example: ', 'Example: `')}`\n"]
    return "\n".join(parts)


def _is_option(param: Any) -> bool:
    return str(param.opts[0]).startswith("-")


def _metavar(param: Any) -> str:
    """What stands for a value; where the option names none, by its default."""
    return param.metavar or ("N" if isinstance(param.default, int) else "TEXT")


def _usage(param: Any) -> str:
    if not _is_option(param):
        return str(_metavar(param)) if param.required else f"[{_metavar(param)}]"
    if param.is_flag:
        return f"[{'/'.join([*param.opts, *param.secondary_opts])}]"
    return f"[{param.opts[0]} {_metavar(param)}]" + ("..." if param.multiple else "")


def _name(param: Any) -> str:
    if not _is_option(param):
        return f"`{_metavar(param)}`"
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    return names if param.is_flag else f"{names} `{_metavar(param)}`"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if param.default is None or param.default in ([], ()) or (_is_option(param) and param.is_flag):
        return "–" if not (_is_option(param) and param.is_flag and param.default) else f"`{param.opts[0]}`"
    return f"`{param.default}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
