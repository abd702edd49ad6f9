"""The labels of the evaluation sets are part of a run: written once, checked, mended, and never mixed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.common.errors import InputError
from atmc.engine.progress import Progress
from atmc.engine.run_data import RunData, load_data
from atmc.engine.runner import run
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir


class Listen(Progress):
    """Remembers the notes a person would have seen."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("chains", [1, 2])
def test_labels_are_kept_in_the_order_of_the_predictions(tiny: Any, tmp_path: Path, chains: int) -> None:
    recipe = replace(tiny, chains=chains)
    run(recipe, tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    labels = found.labels("test")
    assert labels is not None
    assert torch.equal(labels, load_data(recipe).evaluate["test"].labels)
    assert found.predictions("test").shape[1] == len(labels)
    assert found.labels("train") is None


def test_damaged_labels_are_named_and_written_again(tiny: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(tiny, folder, time_budget=1e-3, progress=None)
    path = folder / "labels" / "test.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    listen = Listen()
    run(tiny, folder, time_budget=1e-3, progress=listen)
    assert "test.safetensors: is torn" in listen.notes[0]
    assert path.read_bytes() == whole


def test_a_run_that_was_begun_without_them_gets_them(tiny: Any, tmp_path: Path, change: Any) -> None:
    folder = tmp_path / "run"
    run(change(tiny, run={"evaluate": []}), folder, progress=None)
    assert RunDir.open(folder).labels("test") is None
    run(tiny, folder, progress=None)
    found = RunDir.open(folder)
    labels = found.labels("test")
    assert labels is not None
    assert found.predictions("test").shape[1] == len(labels)
    assert "test" in Manifest.load(folder).values["data"]["digests"]


def test_other_test_data_are_refused_when_a_run_goes_on(tiny: Any, tmp_path: Path) -> None:
    """Otherwise early samples would be judged by other examples than late ones."""
    folder = tmp_path / "run"
    run(tiny, folder, time_budget=1e-3, progress=None)
    data = load_data(tiny)
    fewer = data.evaluate["test"].subset(torch.arange(20), "test")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="begun with other test data"):
        run(tiny, folder, progress=None, data=RunData(data.train, {"test": fewer}))
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
