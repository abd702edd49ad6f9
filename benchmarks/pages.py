"""Generated passages of the docs: a benchmark writes what stands between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pages(root: Path = ROOT) -> list[Path]:
    """README and everything in docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """A page with its blocks replaced; a page without any is returned as it is."""
    for name, body in blocks.items():
        pattern = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)"
        text = re.sub(pattern, lambda found, body=body: f"{found[1]}{body}\n{found[2]}", text, flags=re.DOTALL)
    return text


def fill_pages(blocks: Mapping[str, str], files: Sequence[Path]) -> list[Path]:
    """Fill the blocks of some files; returns those that changed."""
    changed = []
    for file in files:
        before = file.read_text(encoding="utf-8")
        after = fill(before, blocks)
        if after != before:
            file.write_text(after, encoding="utf-8")
            changed.append(file)
    return changed


def friction(row: Mapping[str, object]) -> str:
    """What balances the gradient noise in a row, besides thermostats."""
    if row.get("noise_examples") or row["noise_rank"] == "examples":
        return "each example"
    rank = f"rank {row['noise_rank']}" if row["noise_rank"] else "–"
    return f"{rank}, Kronecker" if row.get("noise_kronecker") else rank


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
