"""`benchmarks/networks.py`: contestants that exist, and what is not timed again keeps its numbers."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import imagenet_speed_pages as pages  # noqa: E402
import networks  # noqa: E402
from atmc.nn import build  # noqa: E402


@pytest.mark.parametrize("name", networks.CONTESTANTS)
def test_contestants_are_networks(name: str) -> None:
    with torch.device("meta"):
        model = build(**networks.CONTESTANTS[name], depth=50, width=64, classes=10)
    assert hasattr(model, "compile_blocks") == (name != "gn-ws")


def test_what_is_not_timed_again_keeps_its_numbers() -> None:
    before = {"images_per_second": {"resnetpp": 8_000.0, "resnet": 6_000.0}}
    row = networks.joined(before, "50 at 224 px", {"gn-ws": [17.0, 16.0, 15.0], "resnet": [20.0]})
    assert row["images_per_second"] == {"resnetpp": 8_000.0, "resnet": 6_400.0, "gn-ws": 8_000.0}
    assert row["ratio"] == pytest.approx(1.25)
    assert "ratio" not in networks.joined(None, "50 at 176 px", {"gn-ws": [6.4]})
    said = pages.networks({"device": "a GPU", "rows": [row]}).splitlines()[-1]
    assert said == "| 224 px, batch 128 | 8,000 | 8,000 | 6,400 |"
