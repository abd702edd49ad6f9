"""`benchmarks/imagenet_pages.py`: rows with their scores, the paper's numbers marked, what was reached and what not."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import imagenet_figures as figures  # noqa: E402
import imagenet_pages as pages  # noqa: E402
import imagenet_recipes as recipes  # noqa: E402
import imagenet_speed_pages as speed  # noqa: E402

LABELS = np.arange(40) % 10


def row(name: str, kind: str, accuracy: float, nll: float, folder: Path, **more: Any) -> dict[str, Any]:
    """A finished row whose stored probabilities give the label e^−nll."""
    probs = np.full((2, 40, 10), (1 - np.exp(-nll)) / 9)
    probs[:, np.arange(40), LABELS] = np.exp(-nll)
    np.savez(folder / f"{name}-{kind}.npz", probs=probs, labels=LABELS)
    return {
        "row": f"{name}-{kind}",
        "set": name,
        "kind": kind,
        "status": "done",
        "temperature": None if kind.startswith("ensemble") else 0.02,
        "data": recipes.SETS[name].data,
        "images": None,
        "crop": 176,
        "batch": 64,
        "chains": 4,
        "epochs": 256,
        "seeds": [0],
        "gpu_seconds": 200.0,
        "device": "a GPU",
        "accuracy": accuracy,
        "nll": nll,
        "ece": nll / 10,
        "top5": 0.99,
        "single": {"accuracy": accuracy - 0.01, "nll": nll + 0.1},
        "ood": {"auroc": 0.9},
        "probabilities": [f"{name}-{kind}.npz"],
        **more,
    }


@pytest.fixture
def table(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        row("imagenette", "atmc", 0.956, 0.15, tmp_path),
        row("imagenette", "ensemble-bn", 0.95, 0.16, tmp_path),
        row("imagenette", "ensemble-gn", 0.951, 0.14, tmp_path),
        row("imagewoof", "atmc", 0.91, 0.3, tmp_path),
        {"row": "imagewoof-zero", "set": "imagewoof", "kind": "zero", "status": "stopped: chain 0 diverged"},
    ]


def test_rows_are_in_the_papers_order_with_its_numbers_marked(table: list[dict[str, Any]]) -> None:
    head, _, *lines = pages.scores("imagenette", table).splitlines()
    assert "*paper, ImageNet-1k*" in head
    assert [line.split(" | ")[0].strip("| ") for line in lines[:3]] == [
        pages.NAMES[kind] for kind in ("ensemble-gn", "ensemble-bn", "atmc")
    ]
    assert lines[1].endswith("| 76.2 / 0.947 → – |")
    assert "| **95.60** | 0.150 | 0.015 |" in lines[2]
    assert "| **0.140** |" in lines[0]
    assert "4 × 64 epochs" in lines[-1]
    assert "imagewoof-zero stopped: chain 0 diverged." in pages.scores("imagewoof", table)
    assert pages.scores("tiny-imagenet", table) == pages.NOT_RUN


def test_images_that_were_coded_anew_are_said(table: list[dict[str, Any]]) -> None:
    table[0]["images"] = table[1]["images"] = table[2]["images"] = "squashed to 128 × 128, WebP at quality 85"
    assert pages.scores("imagenette", table).endswith("Images: squashed to 128 × 128, WebP at quality 85.")


def test_differences_are_those_of_the_stored_probabilities(table: list[dict[str, Any]], tmp_path: Path) -> None:
    lines = pages.paired(table, tmp_path).splitlines()[2:]
    assert len(lines) == 2
    assert "deep ensemble, BatchNorm | +0.00 ± 0.00 | +0.0100 ± 0.0000 | +0.001 |" in lines[0]
    assert "deep ensemble, GroupNorm | +0.00 ± 0.00 | −0.0100 ± 0.0000 | −0.001 |" in lines[1]


def test_targets_are_reached_or_not(table: list[dict[str, Any]]) -> None:
    said = pages.targets(table)
    assert "| Imagenette | accuracy ≥ 95.5 % | 95.60 % | reached |" in said
    assert "| Imagenette | NLL below that of the deep ensemble, GroupNorm | 0.150 against 0.140 | not reached |" in said
    assert "| Imagewoof | accuracy ≥ 91.5 % | 91.00 % | not reached |" in said
    assert pages.targets([]) == pages.NOT_RUN


def test_every_kind_has_a_name_and_every_number_of_the_paper_a_kind() -> None:
    assert set(pages.NAMES) == set(recipes.KINDS)
    assert set(pages.PAPER) <= set(recipes.KINDS)
    assert {kind for kind in recipes.KINDS if not kind.endswith(recipes.LONG)} <= set(figures.NAMES)


def test_a_figure_for_each_set(table: list[dict[str, Any]], tmp_path: Path) -> None:
    assert pages.calibration(tmp_path) == ""
    (tmp_path / "table.json").write_text(json.dumps(table))
    figures.main(["--folder", str(tmp_path)])
    assert {path.name for path in tmp_path.glob("*.svg")} == {"calibration-imagenette.svg", "calibration-imagewoof.svg"}
    assert "deep ensemble, BatchNorm" in (tmp_path / "calibration-imagenette.svg").read_text()
    assert pages.calibration(tmp_path).count("![") == 2


def test_the_table_of_input_speed_has_a_column_for_each_size_and_number_of_workers() -> None:
    rows = [{"way": "draft", "size": 224, "workers": count, "rate": 300 * count} for count in (1, 16)]
    rows += [{"way": "device", "size": 224, "workers": 0, "rate": 90_000}]
    record = {"device": "a GPU", "cores": 16, "images": "photographs", "network": 7_774.0, "rows": rows}
    head, _, *lines = speed.input_speed([record]).splitlines()
    assert head == "| images/s (a GPU, 16 cores, photographs) | 224 px, 1 worker | 224 px, 16 workers |"
    assert lines[0].endswith("| 300 | 4,800 |")
    assert lines[1].endswith("| 90,000 | 90,000 |")
    assert lines[2].endswith("| 7,774 | 7,774 |")
    assert speed.input_speed([]) == pages.NOT_RUN


def test_the_page_shows_what_was_run_and_names_what_was_not(table: list[dict[str, Any]], tmp_path: Path) -> None:
    said = pages.every_set(table)
    assert said.index("| Imagenette |") < said.index("| Imagewoof |")
    assert said.endswith("Not run yet: Tiny-ImageNet, imagenet-mini.")
    assert pages.every_set([]) == "Not run yet: Imagenette, Imagewoof, Tiny-ImageNet, imagenet-mini."
    whole = pages.comparison(table, tmp_path)
    assert "What was to be reached:" in whole
    assert "one seed" in whole
    assert "Calibration" not in whole
    assert pages.comparison([], tmp_path) == ""
