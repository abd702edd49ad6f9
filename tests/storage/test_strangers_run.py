"""A run directory from a stranger: nothing outside it is touched, nothing hangs, and one line names what is odd."""

import contextlib
import errno
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from atmc.common.errors import RunError
from atmc.engine.progress import Progress
from atmc.engine.runner import run
from atmc.storage.lock import RunLock
from atmc.storage.run_directory import RunDir


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shared: Any) -> Path:
    """Runs of one and of two chains that could go on; copied, never changed."""
    folder = tmp_path_factory.mktemp("strangers")
    for chains in (1, 2):
        run(shared.change(shared.TINY, chains=chains), folder / str(chains), progress=None)
    return folder


@pytest.fixture(scope="module")
def shared() -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("shared", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LINKS = [
    (1, ".lock"),
    (1, "metrics.jsonl"),
    (1, ".manifest.json.tmp"),
    (1, ".recipe.toml.tmp"),
    (1, "manifest.json"),
    (1, "manifest.copy.json"),
    (1, "recipe.toml"),
    (1, "checkpoint"),
    (1, "samples"),
    (1, "samples/0001.safetensors"),
    (1, "predictions"),
    (1, "predictions/test"),
    (1, "labels"),
    (1, "tensorboard"),
    (2, "chains"),
    (2, "chains/1"),
    (2, "chains/1/metrics.jsonl"),
    (2, "chains/0/checkpoint"),
]


@pytest.mark.parametrize(("chains", "name"), LINKS)
def test_no_link_leads_outside(
    tiny: Any, change: Any, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chains: int, name: str
) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(made / str(chains), folder)
    place = folder / name
    if place.is_dir():
        shutil.move(place, outside)
        (outside / ".left.tmp").write_bytes(b"precious")
        place.symlink_to(outside)
    else:
        outside.mkdir()
        target = outside / "file"
        target.write_bytes(place.read_bytes() if place.exists() else b"precious")
        place.unlink(missing_ok=True)
        place.symlink_to(target)
    before = contents(outside)
    recipe = change(tiny, chains=chains, schedule={"epochs": 12})
    with pytest.raises(RunError, match=r": is a link") as caught:
        run(recipe, folder, progress=None)
    assert str(place) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(outside) == before


def test_below_the_check_nothing_follows_a_link_either(
    tiny: Any, change: Any, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the link is made after the run was looked at."""
    monkeypatch.setattr("atmc.engine.runner.refuse_foreign", lambda *_: None)
    for chains, name in LINKS:
        folder, outside = tmp_path / f"run-{name}".replace("/", "-"), tmp_path / f"out-{name}".replace("/", "-")
        shutil.copytree(made / str(chains), folder)
        place = folder / name
        outside.mkdir()
        if place.is_dir():
            shutil.copytree(place, outside, dirs_exist_ok=True)
            shutil.rmtree(place)
            (outside / ".left.tmp").write_bytes(b"precious")
            (outside / "000009.safetensors").write_bytes(b"precious")
            place.symlink_to(outside)
        else:
            (outside / "file").write_bytes(b"precious")
            place.unlink(missing_ok=True)
            place.symlink_to(outside / "file")
        before = contents(outside)
        recipe = change(tiny, chains=chains, schedule={"epochs": 12})
        if name != "tensorboard":  # which is written by a library of others, and only where it is asked for
            with contextlib.suppress(RunError):
                run(recipe, folder, progress=None)
        assert contents(outside) == before, name


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "manifest.json", "samples/0001.safetensors", "recipe.toml"])
def test_a_fifo_hangs_nobody(tiny: Any, change: Any, made: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made / "1", folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(RunError, match=r"is a FIFO"):
        run(change(tiny, schedule={"epochs": 12}), folder, progress=None)
    if name in ("metrics.jsonl", ".lock"):
        return
    found = RunDir.open(folder)
    assert any("FIFO" in line for line in found.damage())


def test_a_lock_that_shares_its_file_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / "run").mkdir()
    os.link(tmp_path / "other", tmp_path / "run" / ".lock")
    with RunLock(tmp_path / "run"):
        pass
    assert (tmp_path / "other").read_text() == "precious"


def test_a_copy_that_shares_its_files_keeps_its_metrics(tiny: Any, change: Any, made: Path, tmp_path: Path) -> None:
    """cp -al is a common way to back up a folder."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(made / "1", first)
    shutil.copytree(first, second, copy_function=os.link)
    with (first / "metrics.jsonl").open("ab") as log:
        log.write(b'{"event": "later"}\n')
    before = (first / "metrics.jsonl").read_bytes()
    run(tiny, second, progress=None)
    assert (first / "metrics.jsonl").read_bytes() == before


class _Mover(Progress):
    """Does something to the run as soon as a number of samples is there."""

    def __init__(self, samples: int, work: Any) -> None:
        self.samples, self.work = samples, work

    def row(self, row: Any, samples: int) -> None:
        if row["event"] == "sample" and samples == self.samples and self.work is not None:
            self.work()
            self.work = None


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
def test_a_run_that_is_taken_away_is_noticed(tiny: Any, change: Any, tmp_path: Path, chains: int, how: str) -> None:
    folder, moved = tmp_path / "run", tmp_path / "moved"

    def work() -> None:
        if how == "removed":
            shutil.rmtree(folder)
        else:
            folder.rename(moved)
        if how == "replaced":
            folder.mkdir()
            (folder / "mine").write_text("mine")
            for chain in range(chains if chains > 1 else 0):
                (folder / "chains" / str(chain)).mkdir(parents=True)

    with pytest.raises(RunError, match="was removed or renamed while it was being sampled: stopped") as caught:
        run(change(tiny, chains=chains), folder, progress=_Mover(2, work))
    assert "\n" not in str(caught.value)
    left = [path.name for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    assert left == (["mine"] if how == "replaced" else [])
    if how != "removed":
        assert run(change(tiny, chains=chains), moved, progress=None).status == "done"


def swap(folder: Path, source: Path, chain: int) -> None:
    place = folder / "chains" / str(chain)
    shutil.rmtree(place)
    shutil.copytree(source, place)


@pytest.mark.parametrize("what", ["copy", "seed", "network", "run"])
def test_a_chain_that_belongs_elsewhere_is_named_and_not_used(
    tiny: Any, change: Any, made: Path, tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made / "2", folder)
    recipe = change(tiny, chains=2)
    if what == "copy":
        swap(folder, folder / "chains" / "0", 1)
        said = "holds a copy of chain 0, not chain 1"
    else:
        other = {"seed": change(recipe, seed=9), "network": change(recipe, model={"width": 9}), "run": recipe}[what]
        run(other, tmp_path / "other", progress=None)
        swap(folder, tmp_path / "other" / "chains" / "1", 1)
        said = "a chain of another run" if what == "run" else "a chain of a run of another recipe"
    found = RunDir.open(folder)
    assert {found.bank.chain_of(i) for i in range(len(found.bank))} == {0}
    assert any(said in note and "chains/1" in note for note in found.notes)
    with pytest.raises(RunError, match=said) as caught:
        run(recipe, folder, progress=None)
    assert "chains/1" in str(caught.value)
    shutil.rmtree(folder / "chains" / "1")
    assert run(recipe, folder, progress=None).samples == 10  # as the line says


def test_a_chain_without_a_checkpoint_is_named(made: Path, tmp_path: Path) -> None:
    from atmc.diagnose.doctor import doctor

    folder = tmp_path / "run"
    shutil.copytree(made / "2", folder)
    for path in (folder / "chains" / "1" / "checkpoint").iterdir():
        path.write_bytes(b"junk")
    found = RunDir.open(folder)
    assert [line for line in found.damage() if "chains/1: no checkpoint can be read" in line]
    assert any(finding.title == "The run cannot be resumed" for finding in doctor(found))


class _Listen(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_other_conditions_are_said_on_resuming(
    tiny: Any, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atmc.samplers import fused_native

    folder = tmp_path / "run"
    shutil.copytree(made / "1", folder)
    listen = _Listen()
    run(tiny, folder, progress=listen)
    assert listen.notes == []
    monkeypatch.setattr(fused_native, "library", lambda: None)
    run(tiny, folder, progress=listen)
    [note] = listen.notes
    assert "not be bit for bit" in note
    assert "now PyTorch operations" in note
    run(tiny, folder, progress=listen)
    assert len(listen.notes) == 1  # once


def test_a_file_system_without_locks_is_not_called_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("atmc.storage.lock.fcntl.flock", none)
    with pytest.raises(RunError, match=r"cannot be locked \(No locks available\)") as caught, RunLock(tmp_path / "run"):
        pass
    assert "in use" not in str(caught.value)


def test_a_child_that_outlives_a_killed_run_does_not_hold_its_lock(tmp_path: Path) -> None:
    """Processes that decode images are forked by the run, and notice its death only after a while."""
    receive, send = os.pipe()
    holder = os.fork()
    if holder == 0:
        RunLock(tmp_path / "run").__enter__()
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(send, str(child).encode())
        time.sleep(60)
        os._exit(0)
    child = int(os.read(receive, 20))
    try:
        with pytest.raises(RunError, match=f"in use by process {holder}"), RunLock(tmp_path / "run"):
            pass
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        with RunLock(tmp_path / "run"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(receive)
        os.close(send)
