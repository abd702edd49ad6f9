"""Several processes: two that share a chain are one with the same batch; chains shared out are those of one process."""

import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import InputError
from atmc.engine import processes
from atmc.engine.runner import run
from atmc.storage.run_directory import RunDir

JOBS = ["data:data", "long:whole", "long:parts:0.4", "long:parts", "batchnorm:batchnorm", "chains:chains"]
JOBS += ["chains:thesis", "data:thesis", "broken:broken", "broken:broken", "command:batchnorm"]


def recipes() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("shared", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    found: dict[str, Any] = shared.RECIPES
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """The folder in which two processes have done all jobs (torch is imported once each), and what each said."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.tex").write_text("x")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), *JOBS]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = []
    try:
        for process in started:
            told, complaint = process.communicate(timeout=240)
            assert process.returncode == 0, complaint[-3000:]
            said.append(told.splitlines())
    finally:
        for process in started:
            process.kill()
    return folder, said


def test_two_processes_equal_one_with_the_same_batch(two: Any, tmp_path: Path) -> None:
    run(recipes()["data"], tmp_path / "one", progress=None)
    one, other = RunDir.open(tmp_path / "one"), RunDir.open(two[0] / "data")
    assert len(one.bank) == len(other.bank) == 11
    for k in range(10):  # the tenth sample comes after 50 steps
        assert one.bank.meta(k)["step"] == 5 * (k + 1)
        for name, tensor in one.bank[k].items():
            torch.testing.assert_close(other.bank[k][name], tensor, rtol=1e-3, atol=1e-4, msg=f"sample {k}, {name}")
    losses = [[row["loss"] for row in found.metrics() if row["event"] == "log"] for found in (one, other)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4, atol=1e-5)


def test_processes_agree_on_stopping_and_go_on_exactly(two: Any, fingerprint: Any) -> None:
    folder, said = two
    for lines in said:
        assert lines[2].startswith("long:parts:0.4 budget")
        assert lines[3].startswith("long:parts done")
    assert fingerprint(folder / "parts")["samples"] == fingerprint(folder / "whole")["samples"]


def test_batchnorm_statistics_are_averaged_over_processes(two: Any, tmp_path: Path) -> None:
    """A running mean is linear in the batch, so the mean over processes of the first step's is the whole batch's."""
    run(recipes()["batchnorm"], tmp_path / "one", progress=None)
    one, other = RunDir.open(tmp_path / "one").bank[0], RunDir.open(two[0] / "batchnorm").bank[0]
    torch.testing.assert_close(one["stem_norm.running_mean"], other["stem_norm.running_mean"], rtol=1e-4, atol=1e-6)
    assert not torch.equal(one["stem_norm.running_mean"], torch.zeros_like(one["stem_norm.running_mean"]))


def test_chains_shared_out_are_those_of_one_process(two: Any, tmp_path: Path, fingerprint: Any) -> None:
    run(recipes()["chains"], tmp_path / "one", progress=None)
    assert fingerprint(two[0] / "chains") == fingerprint(tmp_path / "one")


def test_all_processes_know_the_samples_and_one_speaks(two: Any) -> None:
    first, second = two[1]
    assert first[0] == "data:data done 11 True"
    assert second[0] == "data:data done 11 False"
    assert first[5] == "chains:chains done 15 True"
    assert second[5] == "chains:chains done 15 False"


def test_the_command_of_processes_that_share_a_chain_says_once_how_it_ended(two: Any) -> None:
    folder, (first, second) = two
    samples = len(RunDir.open(folder / "batchnorm").bank)
    assert json.loads("".join(first[10:])) == {"status": "done", "run": str(folder / "command"), "samples": samples}
    assert second[10:] == []


def test_what_one_process_finds_out_all_say(two: Any) -> None:
    """Only the first looks into the folder; the second must not wait for it for ever, nor die of its death."""
    for lines in two[1]:
        for line in lines[6:8]:
            assert "InputError" in line
            assert "not empty and not a run" in line


def test_a_chain_that_gives_up_in_one_process_leaves_the_others_alone(two: Any) -> None:
    folder, said = two
    for lines in said:
        for line in lines[8:10]:  # a second call ends at once with the same line
            assert "DivergedError: chain 1 diverged at step 26" in line
            assert "2 of 3 chains are done, and the run has 12 samples" in line
    found = RunDir.open(folder / "broken")
    assert [sum(found.bank.chain_of(i) == c for i in range(len(found.bank))) for c in range(3)] == [5, 2, 5]


def test_impossible_sharing_is_one_line() -> None:
    recipe = recipes()["data"]
    odd = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, batch_size=15))
    with pytest.raises(InputError, match=r"data\.batch_size = 15 is no multiple of the 2 processes"):
        processes.check_sharing(odd, "data", 2)
    with pytest.raises(InputError, match=r"chains = 3 is fewer than the 4 processes"):
        processes.check_sharing(recipes()["chains"], "chains", 4)
