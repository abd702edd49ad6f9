"""The tables in README and docs/cifar10.md are what results/cifar10 holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .rescored import RESULTS, ROOT, recompute, same, tabling

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = (ROOT / "docs" / "cifar10.md").read_text(encoding="utf-8")
PAGES = {"README.md": README, "docs/cifar10.md": DOCS}


@pytest.fixture(scope="module")
def published() -> list[dict[str, Any]]:
    """The rows of results/cifar10/table.json; none before the first is run."""
    path = RESULTS / "table.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def test_table_is_what_the_probabilities_say(published):
    assert same(tabling.build(RESULTS), published), "run python benchmarks/cifar10.py table"
    for row in published:
        for score, value in recompute(RESULTS, row).items():
            assert row[score] == pytest.approx(value, abs=1e-9), (row["row"], score)


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_that_table(page, published):
    expected = tabling.blocks(published)
    for name, text in tabling.found_blocks(PAGES[page]).items():
        assert text == expected[name], f"run python benchmarks/cifar10.py table --into {page}"


def test_readme_has_the_short_table_and_docs_the_long_one(published):
    shown = {page: tabling.found_blocks(text) for page, text in PAGES.items()}
    assert list(shown["README.md"]) == ["cifar10 main"]
    assert list(shown["docs/cifar10.md"]) == ["cifar10 table", "cifar10 outside"]
    for text in (text for blocks in shown.values() for text in blocks.values()):
        assert bool(text) == bool(published)


def test_every_stored_file_belongs_to_a_row(published):
    listed = {name for row in published for name in row["probabilities"]}
    assert {path.name for path in RESULTS.glob("*.npz")} == listed
