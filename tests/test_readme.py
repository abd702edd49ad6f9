"""README says what is so: its examples run, and its numbers are those of the results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(first, names)
    assert len(capsys.readouterr().out.splitlines()) == 5  # one line a cycle
    exec(second.replace("epochs=100", "epochs=4"), names)
    assert names["prediction"].probs.shape == (300, 3)
    assert (tmp_path / "mine").is_dir()


def rows(header: str) -> dict[str, list[str]]:
    """The rows of the README table whose header starts so, by first cell."""
    table = README[README.index(header) :].split("\n\n")[0].splitlines()[2:]
    return {cells[0]: cells[1:] for line in table if (cells := [c.strip() for c in line.strip("|").split("|")])}


SHARED = {
    "ATMC, hyperbolic, gradients checked": "ATMC, fused",
    "ATMC, Gaussian": "ATMC Gaussian, fused",
    "SGHMC": "SGHMC Gaussian, fused",
}
TABLES = {
    "cuda": (
        "| | ResNet++-56×32",
        "AdamW, fused",
        {
            **SHARED,
            "SGD with momentum, fused": "SGD momentum, fused",
            "posteriors, sgnht (thousands of launches from the host)": "posteriors sgnht",
        },
    ),
    "cpu": ("| one CPU thread", "posteriors sgnht", {**SHARED, "AdamW, foreach": "AdamW, foreach"}),
}


@pytest.mark.parametrize("device", TABLES)
def test_step_ratios_are_the_measured_ones(device):
    header, reference, contestants = TABLES[device]
    record = json.loads((ROOT / f"results/step/{device}.json").read_text())
    found = rows(header)
    assert len(found) == len(contestants) + 1  # and the reference, in milliseconds
    for row, contestant in contestants.items():
        for cell, times in zip(found[row], record["milliseconds"].values(), strict=True):
            assert cell == f"{times[contestant] / times[reference]:.2f} ×"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_chain_speeds_are_the_measured_ones():
    found = {name: cells[0] for name, cells in rows("| one H200").items()}
    record = json.loads((ROOT / "results/train/cuda-56x32-b128.json").read_text())
    speed = record["speed"]
    networks = json.loads((ROOT / "results/networks/cuda.json").read_text())["rows"]
    assert found == {
        "ATMC, one chain": f"{speed['atmc']:,.0f}",
        "SGD with momentum, the same network": f"{speed['sgd']:,.0f}",
        "ATMC, four chains together": f"{speed['together']['4']:,.0f}",
        "SGD, ResNet-56×32 with BatchNorm (network and optimizer alone)": (
            f"{networks[0]['images_per_second']['resnet']:,.0f}"
        ),
    }
    assert f"takes {speed['ratio']:.3f} of SGD's time" in README
    row = json.loads((ROOT / "results/cifar10/atmc-cold.row.json").read_text())
    epochs, samples = row["chains"] * row["epochs"], row["samples"]
    said = (
        f"The {epochs:,} epochs of the ATMC row below, in four chains, took {row['gpu_seconds']:.0f} s, with start-up,"
    )
    assert f"{said} {samples} samples" in " ".join(README.split())
    assert row["chains"] == 4


def test_the_time_of_the_predictive_is_the_measured_one():
    rows = json.loads((ROOT / "results/predict/cuda.json").read_text())["rows"]
    [loop] = [row for row in rows if row["way"] == "atmc loop"]
    assert f"takes {loop['seconds']:.2f} s, {loop['ratio']:.2f} times 16 passes" in README
