"""Links of docs pages to files elsewhere in the repository, such as `../results/step/cuda.json`.

They work as they stand where the repository is browsed. The site has a copy of each such file under `files/`; a link to
a folder or to a large file becomes plain text there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)\)")
LARGEST = 2_000_000  # bytes


def linked_files(files: Iterable[Any]) -> dict[str, Path]:
    """Where on the site to put which file."""
    found: dict[str, Path] = {}
    for file in files:
        if file.src_uri.endswith(".md") and file.abs_src_path:
            text = Path(file.abs_src_path).read_text(encoding="utf-8")
            for match in LINK.finditer(text):
                path = _outside(match["target"], file.src_uri)
                if path is not None and _brought_along(ROOT / path):
                    found[f"files/{path}"] = ROOT / path
    return found


def rewritten(markdown: str, page: str) -> str:
    """The page with its links out of docs/ changed to what the site has."""

    def change(match: re.Match[str]) -> str:
        path = _outside(match["target"], page)
        if path is None or not (ROOT / path).exists():  # what does not exist mkdocs complains of
            return match[0]
        if not _brought_along(ROOT / path):
            return f"`{path}`" if match["text"].strip("`") in (path, f"{path}/") else f"{match['text']} (`{path}`)"
        here = posixpath.relpath(f"files/{path}", posixpath.dirname(page) or ".")
        return f"{match['image']}[{match['text']}]({here})"

    return LINK.sub(change, markdown)


def _outside(target: str, page: str) -> str | None:
    """The path in the repository that a link leads to, or None where it stays within docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith(("docs/", "..")) else path


def _brought_along(path: Path) -> bool:
    return path.is_file() and path.suffix != ".md" and path.stat().st_size <= LARGEST
