"""README and the guide say what is so: their examples run, and their numbers are those of the results."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch

from atmc import likelihoods, priors
from atmc.cli.main import run
from atmc.samplers import speed_settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs/guide.md").read_text()


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = snippets(README)
    names: dict = {}
    exec(first, names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13  # one line a cycle after burn-in
    assert all(0.8 < float(line.split()[2]) < 1.25 for line in lines)  # at its temperature
    exec(second.replace("epochs=100", "epochs=4"), names)
    assert names["prediction"].probs.shape == (300, 3)
    assert (tmp_path / "mine").is_dir()
    for verb in ("evaluate", "report", "doctor"):  # the commands that are named beside it
        assert f"`atmc {verb}" in README
        assert run([verb, "runs/mine"]) == 0


def test_the_guide_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for snippet in snippets(GUIDE):
        exec(snippet, names)
    loop, prediction, estimate = names["samples"], names["prediction"], names["estimate"]
    assert len(loop) == 13
    assert names["scores"]["predictive"]["accuracy"] > 0.8
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.epistemic)
    torch.testing.assert_close(estimate.std.square(), estimate.aleatoric + estimate.epistemic)
    assert names["best"] == 15, "the noise of the targets"
    assert float(estimate.epistemic[2]) > 2 * float(estimate.epistemic[1]), "150 is far from all ages seen"
    assert (tmp_path / "runs/guide/recipe.toml").read_text().count("burn_in_epochs") == 1
    commands = re.findall(r"^    atmc (.*?) +#", GUIDE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert run(shlex.split(command)) == 0


def test_the_guides_numbers_follow_from_its_formulas():
    settings = speed_settings(lr=1e-3, speed=1.0, momentum=0.9)
    assert f"D is {settings['noise']:.0f}" in GUIDE
    assert (settings["friction"] / 3) ** -2 == pytest.approx(1e-3, rel=0.25)
    counts = GUIDE[GUIDE.index("| K |") :].splitlines()[0].strip("|").split("|")[1:]
    errors = [f"{100 * math.sqrt(2 / (int(k) - 1)):.0f} %" for k in counts]
    assert rows("| K |", GUIDE) == {"error of an epistemic variance": errors}
    about = GUIDE[GUIDE.index("## Priors") : GUIDE.index("## `atmc.sample`")]
    named = re.findall(r"`([A-Z]\w+)(?:\([a-z_, ]*\))?`", about)
    assert {"Normal", "Horseshoe", "Categorical", "Gaussian"} <= set(named)
    assert all(hasattr(priors, name) or hasattr(likelihoods, name) for name in named), named


def rows(header: str, page: str = README) -> dict[str, list[str]]:
    """The rows of the table whose header starts so, by first cell."""
    table = page[page.index(header) :].split("\n\n")[0].splitlines()[2:]
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
    "cpu": (
        "| one CPU thread",
        "posteriors sgnht",
        {
            **SHARED,
            "drawing the noise alone, `torch.randn`": "torch.randn alone",
            "AdamW, foreach": "AdamW, foreach",
            "AdamW, fused": "AdamW, fused",
            "SGD with momentum, foreach": "SGD momentum, foreach",
        },
    ),
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


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings as the web writes them."""
    heads = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
    for target, part in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        to = page.parent / target if target else page
        assert to.exists(), target
        assert not part or part in anchors(to), (target, part)


def test_readme_begins_with_the_guide():
    assert "docs/guide.md" in README[: README.index("## ")]


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
    row = json.loads((ROOT / "results/cifar10/atmc-settled.row.json").read_text())
    epochs, samples = row["chains"] * row["epochs"], row["samples"]
    said = f"row below with the lowest NLL, in four chains, took {row['gpu_seconds']:.0f} s, with start-up,"
    assert f"The {epochs:,} epochs of the ATMC {said} {samples} samples" in " ".join(README.split())
    assert row["chains"] == 4
    table = json.loads((ROOT / "results/cifar10/table.json").read_text())
    lowest = sorted((other for other in table if other["kind"] != "network"), key=lambda other: other["nll"])
    assert next(other for other in lowest if other["row"].startswith("ATMC"))["run"] == "atmc-settled"


def test_the_time_of_the_predictive_is_the_measured_one():
    rows = json.loads((ROOT / "results/predict/cuda.json").read_text())["rows"]
    [loop] = [row for row in rows if row["way"] == "atmc loop"]
    assert f"takes {loop['seconds']:.2f} s, {loop['ratio']:.2f} times 16 passes" in README
    [plain] = [row for row in rows if row["way"] == "plain loop over networks"]
    assert f"A plain loop over 16 networks has the same {plain['ratio']:.2f}" in " ".join(README.split())
    assert plain["ratio"] == loop["ratio"]
