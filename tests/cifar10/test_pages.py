"""What README and docs/ show of CIFAR-10 is what results/cifar10 holds: generating it again changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .rescored import RESULTS, paging, recompute, same, showing, tabling


@pytest.fixture(scope="module")
def published() -> list[dict[str, Any]]:
    return json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))


def test_generating_again_changes_nothing(published):
    rows = tabling.build(RESULTS)
    assert same(rows, published), "run python benchmarks/cifar10.py table"
    blocks = showing.blocks(RESULTS, rows)
    shown = set()
    for page in paging.pages():
        text = page.read_text(encoding="utf-8")
        assert paging.fill(text, blocks) == text, f"{page.name}: run python benchmarks/cifar10.py table"
        shown |= {name for name in blocks if f"<!-- {name} -->" in text}
    assert shown == set(blocks), "a passage that no page shows"


def test_every_row_follows_from_its_files_by_plain_numpy(published):
    for row in published:
        scores = recompute(RESULTS, row)
        calibrated = scores.pop("calibrated_nll")
        assert row["calibrated_nll"] == pytest.approx(calibrated, abs=1e-5), row["row"]
        assert {score: row[score] for score in scores} == pytest.approx(scores, abs=1e-9), row["row"]


def test_every_stored_file_belongs_to_a_row_and_all_are_slim(published):
    listed = {name for row in published for name in row["probabilities"]}
    assert {path.name for path in RESULTS.glob("*.npz")} == listed
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 15e6


def test_tables_have_at_most_eight_columns(published):
    for name, text in showing.blocks(RESULTS, published).items():
        assert all(line.count(" | ") < 8 for line in text.splitlines()), name
