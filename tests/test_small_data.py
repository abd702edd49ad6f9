"""`benchmarks/small_data.py`: splits that are kept apart, and the table of what was fitted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import small_data_sets
import small_data_table


@pytest.fixture
def uci(tmp_path: Path) -> Path:
    """A set in the published layout, whose only feature is the number of the row."""
    folder = tmp_path / "yacht" / "data"
    folder.mkdir(parents=True)
    rows = np.arange(50.0)
    np.savetxt(folder / "data.txt", np.column_stack([rows, 2 * rows]))
    np.savetxt(folder / "index_features.txt", [0])
    np.savetxt(folder / "index_target.txt", [1])
    order = np.random.default_rng(0).permutation(50)
    np.savetxt(folder / "index_train_3.txt", order[:45])
    np.savetxt(folder / "index_test_3.txt", order[45:])
    return tmp_path


def test_a_validation_part_comes_from_the_training_part_alone(uci: Path) -> None:
    whole = small_data_sets.uci(uci, "yacht", 3)
    assert (len(whole.x), len(whole.test_x)) == (45, 5)
    assert abs(float(whole.x.mean())) < 1e-5
    assert abs(float(whole.x.std(unbiased=False)) - 1) < 1e-5
    held = small_data_sets.uci(uci, "yacht", 3, validation=True)
    test, tried = set(whole.test_y.tolist()), {*held.y.tolist(), *held.test_y.tolist()}
    assert len(held.test_x) == 9
    assert tried == set(whole.y.tolist())
    assert not test & tried
    assert torch.equal(held.y, small_data_sets.uci(uci, "yacht", 3, validation=True).y)


def test_the_table_has_means_over_splits(tmp_path: Path) -> None:
    out = tmp_path / "small_data"
    nll = {"atmc": (1.0, 3.0), "ensemble": (2.0, 1.0)}
    (out / "fits" / "yacht").mkdir(parents=True)
    for split in (0, 1):
        for row in nll:
            fit = {"row": row, "nll": nll[row][split], "rmse": 1.0, "coverage90": 0.9, "seconds": 5.0, "samples": 4}
            kept = {"set": "yacht", "split": split, "validation": False, "settings": {}, "warnings": [], **fit}
            (out / "fits" / "yacht" / f"{row}-{split}.json").write_text(json.dumps(kept))
    earlier = {"set": "digits", "row": "ensemble", "splits": [0], "nll": [0.1], "accuracy": [0.9], "ece": [0.0]}
    earlier |= {"seconds": [1.0], "guess": [2.3]}
    old = [{**earlier, "set": "yacht", "row": "atmc"}, earlier]
    (out / "table.json").write_text(json.dumps(old))
    small_data_table.write(out)
    assert json.loads((out / "table.json").read_text())[-1] == earlier  # made elsewhere: it has no fit here, and stays
    rows = {row["row"]: row for row in json.loads((out / "table.json").read_text()) if row["set"] == "yacht"}
    assert rows["atmc"]["nll"] == [1.0, 3.0]  # in place of the earlier one
    assert rows["ensemble"]["nll"] == [2.0, 1.0]
    said = (out / "table.md").read_text()
    assert "| yacht | -0.500 ± 1.061 (2) |" in said  # atmc less ensemble: 1 and -2
    assert "| yacht | 2 of 20 | -2.000 ± 0.707 | -1.500 ± 0.354 | -1.25 ± 0.01 | -1.18 ± 0.21 |" in said


def test_the_page_shows_the_kept_tables() -> None:
    root = Path(__file__).parents[1]
    rows = json.loads((root / "results" / "small_data" / "table.json").read_text())
    page = (root / "docs" / "tutorials" / "small-data.md").read_text()
    for mark, made in (("uci", small_data_table.uci_page(rows)), ("classes", small_data_table.class_page(rows))):
        assert page.split(f"<!-- {mark} -->\n")[1].split(f"<!-- /{mark} -->")[0] == made
