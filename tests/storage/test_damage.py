"""Damage: each kind is noticed, named, and costs no sample that was complete."""

import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from atmc.common.errors import InputError, RunError
from atmc.engine.progress import Progress
from atmc.engine.runner import run
from atmc.storage.files import DamagedFileError
from atmc.storage.manifest import Manifest
from atmc.storage.run_directory import RunDir


class Listen(Progress):
    """Remembers the notes a person would have seen."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.notes: list[str] = []
        self.stop_at = stop_at

    def note(self, text: str) -> None:
        self.notes.append(text)

    def row(self, row: Any, samples: int) -> None:
        if self.stop_at is not None and row["step"] >= self.stop_at:
            self.stop_at = None
            os.kill(os.getpid(), 15)


class Crash(Progress):
    """A bug that ends the program at a step, without a last checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def row(self, row: Any, samples: int) -> None:
        if row["step"] >= self.step:
            raise ZeroDivisionError


@pytest.fixture
def half(tiny: Any, tmp_path: Path, fingerprint: Any) -> tuple[Path, dict[str, Any]]:
    """A run that stopped after three of five samples, and what the whole one looks like."""
    run(tiny, tmp_path / "whole", progress=None)
    run(tiny, tmp_path / "run", progress=Listen(40))
    assert len(RunDir.open(tmp_path / "run").bank) == 3
    return tmp_path / "run", fingerprint(tmp_path / "whole")


def newest_checkpoint(folder: Path) -> Path:
    return folder / Manifest.load(folder).values["checkpoints"][-1]["file"]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_bad_checkpoint_is_named_and_the_one_before_serves(tiny: Any, half: Any, fingerprint: Any, harm: str) -> None:
    folder, whole = half
    path = newest_checkpoint(folder)
    if harm == "flip":
        flip(path)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.unlink()
    kept = RunDir.open(folder).bank.hashes()
    listen = Listen()
    run(tiny, folder, progress=listen)
    assert path.name in listen.notes[0]
    assert {"flip": "altered", "cut": "torn", "remove": "missing"}[harm] in listen.notes[0]
    assert RunDir.open(folder).bank.hashes()[:3] == kept
    assert fingerprint(folder) == whole
    damage = [row for row in RunDir.open(folder).metrics() if row["event"] == "damage"]
    assert path.name in damage[0]["what"]


def test_two_bad_checkpoints_stop_the_run_and_leave_the_samples(tiny: Any, half: Any) -> None:
    folder, _ = half
    for path in (folder / "checkpoint").iterdir():
        flip(path)
    with pytest.raises(RunError, match=r"no checkpoint can be read .* its 3 samples are intact"):
        run(tiny, folder, progress=None)
    assert RunDir.open(folder).bank.problems() == []


@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_a_bad_sample_is_named_set_aside_and_the_others_stay(tiny: Any, half: Any, fingerprint: Any, harm: str) -> None:
    folder, whole = half
    path = folder / "samples" / "0001.safetensors"
    flip(path) if harm == "flip" else path.unlink()
    with pytest.raises(RunError, match=r"0001\.safetensors"):
        list(RunDir.open(folder).bank)
    listen = Listen()
    run(tiny, folder, progress=listen)
    assert "0001.safetensors" in listen.notes[0]
    found = RunDir.open(folder)
    expected = [h for i, h in enumerate(whole["samples"]) if i != 1]
    assert found.bank.hashes() == expected
    assert found.predictions("test").shape[0] == 4
    assert Manifest.load(folder).values["lost"][0]["index"] == 1


def test_a_bad_sample_that_comes_after_the_usable_checkpoint_is_drawn_again(
    tiny: Any, half: Any, tmp_path: Path, fingerprint: Any
) -> None:
    _, whole = half
    folder = tmp_path / "crashed"
    with pytest.raises(ZeroDivisionError):
        run(tiny, folder, progress=Crash(35))
    assert [record["step"] for record in Manifest.load(folder).values["checkpoints"]] == [23, 34]
    (folder / "samples" / "0002.safetensors").unlink()
    flip(newest_checkpoint(folder))
    run(tiny, folder, progress=None)
    assert fingerprint(folder) == whole


def test_samples_beyond_the_usable_checkpoint_are_kept(tiny: Any, half: Any, tmp_path: Path, fingerprint: Any) -> None:
    _, whole = half
    folder = tmp_path / "crashed"
    with pytest.raises(ZeroDivisionError):
        run(tiny, folder, progress=Crash(35))
    flip(newest_checkpoint(folder))
    written = (folder / "samples" / "0002.safetensors").stat().st_mtime_ns
    run(tiny, folder, progress=None)
    assert fingerprint(folder) == whole
    assert (folder / "samples" / "0002.safetensors").stat().st_mtime_ns == written


def test_lost_predictions_are_made_again_from_the_sample(tiny: Any, half: Any, fingerprint: Any) -> None:
    folder, whole = half
    flip(folder / "predictions" / "test" / "0000.safetensors")
    run(tiny, folder, progress=None)
    assert fingerprint(folder)["predictions"] == whole["predictions"]


@pytest.mark.parametrize("name", ["manifest.json", "manifest.copy.json"])
def test_one_bad_manifest_costs_nothing(tiny: Any, half: Any, fingerprint: Any, name: str) -> None:
    folder, whole = half
    flip(folder / name)
    run(tiny, folder, progress=None)
    assert fingerprint(folder) == whole
    assert Manifest.load(folder).notes == []


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_altered_metrics_are_noticed(tiny: Any, half: Any, fingerprint: Any, harm: str) -> None:
    folder, whole = half
    path = folder / "metrics.jsonl"
    if harm == "flip":
        path.write_bytes(path.read_bytes().replace(b'"loss": 0', b'"loss": 9', 1))
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:50])
    else:
        path.unlink()
    listen = Listen()
    run(tiny, folder, progress=listen)
    assert "metrics.jsonl" in listen.notes[0]
    assert fingerprint(folder)["samples"] == whole["samples"]


def test_an_altered_recipe_file_is_noticed_and_not_believed(tiny: Any, half: Any, fingerprint: Any) -> None:
    folder, whole = half
    path = folder / "recipe.toml"
    path.write_text(path.read_text().replace("lr = 0.01", "lr = 0.03"))
    found = RunDir.open(folder)
    assert found.recipe == tiny
    assert "recipe.toml" in found.notes[0]
    run(tiny, folder, progress=None)
    assert fingerprint(folder) == whole
    assert RunDir.open(folder).notes == []


def test_a_run_of_a_newer_version_is_refused_and_untouched(tiny: Any, half: Any) -> None:
    folder, _ = half
    manifest = Manifest.load(folder)
    manifest.values["format"] = 99
    manifest.commit()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(InputError, match=r"format 99.*upgrade"):
        run(tiny, folder, progress=None)
    with pytest.raises(InputError, match=r"format 99.*upgrade"):
        RunDir.open(folder)
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(
    tiny: Any, half: Any, change: Any, fingerprint: Any
) -> None:
    """A limit on file sizes gives the writer the same refusal in the middle of a file as a full disk does."""
    folder, whole = half
    kept = RunDir.open(folder).bank.hashes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, hard))
    try:
        with pytest.raises(RunError, match="no space left to write"):
            run(tiny, folder, progress=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert RunDir.open(folder).bank.hashes() == kept
    run(tiny, folder, progress=None)
    assert fingerprint(folder) == whole


def test_hostile_manifests_and_checkpoints_are_only_data(tiny: Any, half: Any) -> None:
    folder, _ = half
    manifest = Manifest.load(folder)
    manifest.values["samples"][0]["file"] = "../../../etc/passwd"
    manifest.values["files"]["../../../etc/passwd"] = {"sha256": "0" * 64, "bytes": 1}
    manifest.commit()
    with pytest.raises(RunError, match="outside the run"):
        run(tiny, folder, progress=None)
    for name in ("manifest.json", "manifest.copy.json"):
        (folder / name).write_text(json.dumps({"format": 1, "samples": "x"}))
    with pytest.raises(RunError, match="altered"):
        RunDir.open(folder)


def test_a_chain_that_is_gone_is_noticed(tiny: Any, change: Any, tmp_path: Path) -> None:
    """One of two chains: its manifests alone, then the whole folder. The other's samples are kept throughout."""
    recipe = change(tiny, chains=2)
    assert run(recipe, tmp_path / "run", progress=None).status == "done"
    lost = tmp_path / "run" / "chains" / "1"
    for manifest in lost.glob("manifest*"):
        manifest.unlink()
    found = RunDir.open(tmp_path / "run")
    assert len(found.bank) == 5
    assert any("chain 1 of 2 has no manifest" in note for note in found.notes)
    with pytest.raises(DamagedFileError, match="missing, though there are samples or checkpoints"):
        run(recipe, tmp_path / "run", progress=None)
    shutil.rmtree(lost)
    listen = Listen()
    assert run(recipe, tmp_path / "run", progress=listen).status == "done"
    assert any("begins anew" in text for text in listen.notes)
    assert len(RunDir.open(tmp_path / "run").bank) == 10
