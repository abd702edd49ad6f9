"""docs/tutorials/lora.md says what results/lora holds, and the benchmark measures it."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names
tool = importlib.import_module("lora")
PAGE = (ROOT / "docs" / "tutorials" / "lora.md").read_text(encoding="utf-8")
KEPT = json.loads((ROOT / "results" / "lora" / "cpu.json").read_text(encoding="utf-8"))


def test_the_page_has_what_was_measured():
    few, all_of_it = KEPT["rows"]["adapters"], KEPT["rows"]["all"]
    assert KEPT["config"] == tool.CONFIG
    assert (
        f"| **adapters and head** | {few['sampled']:,} | **{few['peak_mib']:,.0f}** | **{few['sample_mib']:.2f}** | "
        f"**{few['folder_mib']:.0f}** |"
    ) in PAGE
    assert (
        f"| all | {all_of_it['sampled']:,} | {all_of_it['peak_mib']:,.0f} | {all_of_it['sample_mib']:.2f} | "
        f"{all_of_it['folder_mib']:.0f} |"
    ) in PAGE
    assert f"peak memory {few['peak_mib']:,.0f} MiB instead of {all_of_it['peak_mib']:,.0f} MiB" in PAGE


@pytest.mark.filterwarnings("ignore")
def test_the_benchmark_measures_a_run():
    tiny = {"vocabulary": 20, "width": 16, "heads": 2, "layers": 1, "length": 4, "classes": 2}
    few, all_of_it = (tool.measure(which, tiny) for which in ("adapters", "all"))
    assert few["parameters"] == all_of_it["parameters"] == all_of_it["sampled"]
    assert few["sampled"] == 4 * tool.RANK * 16 + 2 * 17
    assert few["sample_mib"] < all_of_it["sample_mib"]
