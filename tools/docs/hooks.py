"""What mkdocs does beyond rendering docs/: reference pages made from the code, and copies of linked files."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from cli_reference import cli_page
from outside_files import linked_files, rewritten
from recipe_reference import recipes_page

GENERATED = {"reference/recipes.md": recipes_page, "reference/cli.md": cli_page}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the files outside docs/ that pages link to."""
    for path, make in GENERATED.items():
        files.append(File.generated(config, path, content=make()))
    for path, source in linked_files(files).items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave docs/ to the copies on the site."""
    return rewritten(markdown, page.file.src_uri)
