"""What mkdocs does beyond rendering docs/: reference pages made from the code, and copies of linked files."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from cli_reference import cli_page
from outside_files import linked_files, rewritten
from recipe_reference import recipes_page

FOREIGN = "https://unpkg.com/iframe-worker/shim"
GENERATED = {"reference/recipes.md": recipes_page, "reference/cli.md": cli_page}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the files outside docs/ that pages link to."""
    for path, make in GENERATED.items():
        files.append(File.generated(config, path, content=make()))
    for path, source in linked_files(files).items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave docs/ to the copies on the site, and keep a number and its error on one line."""
    lines = rewritten(markdown, page.file.src_uri).split("\n")
    return "\n".join(line.replace(" ± ", "\u00a0±\u00a0") if line.startswith("|") else line for line in lines)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Replace the one script that the theme would fetch from another server, which search without a server needs."""
    up = "../" * page.url.count("/")
    assert FOREIGN in output or "//unpkg.com" not in output, "the theme fetches its script from another address now"
    return output.replace(FOREIGN, f"{up}js/file-worker.js")
