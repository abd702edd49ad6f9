"""torchrun on streamed shards: a killed rank is restarted to the same samples; a run goes on with more processes."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atmc.data.shard_writer import Item, write_shards
from atmc.engine.runner import run
from atmc.recipe import load_recipe
from atmc.storage.run_directory import RunDir

RECIPE = """
[data]
name = "shards:SHARDS/{split}-*.tar?size=8&classes=3&window=2"
root = "SHARDS"
batch_size = 16
augment = "resized-crop-flip"
workers = 1
[model]
name = "resnet-v2"
depth = 8
width = 4
[target]
prior = "normalised"
[sampler]
lr = 0.001
speed = 0.01
max_speed = 0.03
momentum = 0.9
temperature = 0.1
[schedule]
epochs = 8
cycle_epochs = 2
[run]
device = "cpu"
checkpoint_minutes = 0.01
"""


WORKER = str(Path(__file__).with_name("streamed_worker.py"))


def call(command: list[str], folder: Path, *jobs: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ATMC_TEST_SEED": str(len(jobs)), "ATMC_TEST_FORK": "4"}
    done = subprocess.run(
        [sys.executable, *command, WORKER, str(folder), *jobs],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("streamed")
    rng = np.random.default_rng(0)
    splits: dict[str, list[Item]] = {"train": [], "val": []}
    for i in range(112):
        pixels = (rng.integers(0, 120, (12, 12, 3)) + 45 * (i % 3)).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        data = buffer.getvalue()
        items = splits["train" if i < 100 else "val"]
        items.append(Item(f"{i}.png", i % 3, len(data), lambda data=data: data))  # type: ignore[misc]
    write_shards(where, splits, ["a", "b", "c"], 0.02)
    recipe = RECIPE.replace("SHARDS", str(where))
    (where / "recipe.toml").write_text(recipe)
    (where / "chains.toml").write_text("chains = 4\n" + recipe.replace("epochs = 8", "epochs = 2"))
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    said = call(two, where, "whole", "killed:kill", "more:stop")
    assert (where / "died").exists(), "no rank was killed"
    for rank in range(2):  # of the second attempt: the first ended with the kill
        assert f"whole {rank} done" in said
        assert f"killed {rank} done overlapping=True" in said
        assert f"more {rank} interrupted" in said
    return where


def test_a_killed_rank_is_restarted_and_ends_with_the_same_hashes(folder: Path, fingerprint: Any) -> None:
    whole, killed = fingerprint(folder / "whole"), fingerprint(folder / "killed")
    assert len(whole["samples"]) == 4
    assert killed["samples"] == whole["samples"]
    assert killed["predictions"] == whole["predictions"]


def test_a_run_of_two_processes_goes_on_with_four_and_chains_are_spread_over_them(
    folder: Path, tmp_path: Path, fingerprint: Any
) -> None:
    """Batches, noise and schedule are the same; sums are of other parts, so weights agree to rounding alone."""
    assert len(RunDir.open(folder / "more").bank) < 4
    said = call([], folder, "more", "spread:chains")
    assert said.count("done") == 8
    whole, more = RunDir.open(folder / "whole"), RunDir.open(folder / "more")
    assert [entry.step for entry in more.bank.entries] == [entry.step for entry in whole.bank.entries]
    for one, other in zip(whole.bank, more.bank, strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-2, atol=1e-3, msg=name)
    run(load_recipe(folder / "chains.toml"), tmp_path / "one", progress=None)
    assert fingerprint(folder / "spread") == fingerprint(tmp_path / "one")
