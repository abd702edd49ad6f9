"""`benchmarks/input.py`: it measures every way that there is, keeps to its time, and ends with the table."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import input as benchmark  # noqa: E402
import photographs  # noqa: E402
from atmc.data.resized_crops import resized  # noqa: E402

WORDS = ["--images", "16", "--sizes", "24", "--keep", "32", "--workers", "1", "--seconds", "0.05", "--network", "100"]


def test_every_way_is_measured_and_the_table_comes_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photographs, "DISTINCT", 4)
    monkeypatch.setattr(benchmark, "BATCH", 8)
    benchmark.main([*WORDS, "--out", str(tmp_path)])
    found = json.loads((tmp_path / f"{'cuda' if torch.cuda.is_available() else 'cpu'}.json").read_text())
    ways = {row["way"] for row in found["rows"]}
    assert ways >= {"device", "draft", "kept", "full"}
    assert all(row["rate"] > 0 for row in found["rows"])
    last = capsys.readouterr().out.strip().splitlines()[-len(found["rows"]) :]
    assert {line.split()[0] for line in last} == ways
    share = found["rows"][0]["rate"] / (100 * (224 / 24) ** 2)
    assert any(line.startswith("device") and line.endswith(f"{share:6.2f} of the network") for line in last)


def test_what_there_is_no_time_for_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photographs, "DISTINCT", 1)
    benchmark.main([*WORDS, "--time-budget", "-1", "--out", str(tmp_path)])
    assert "no time for draft at 24 px with 1 workers" in capsys.readouterr().out


def test_crops_made_together_are_those_made_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [(12, 16), (20, 9), (12, 16), (16, 12)]
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator) for size in sizes]
    words = torch.randint(-(2**62), 2**62, (4, 2), generator=generator)
    found = benchmark.crop_together(images, words, 8)
    for i, image in enumerate(images):
        alone = resized(image.permute(1, 2, 0)[None], words[i : i + 1], (8, 8))[0]
        torch.testing.assert_close(found[i], alone.float(), rtol=1e-5, atol=1e-3)
