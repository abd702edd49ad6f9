"""Files: whole or absent, checked when read, and harmless whatever is in them."""

import fcntl
import json
import os
import resource
import struct
from pathlib import Path

import pytest
import torch

from atmc.common.errors import InputError, RunError
from atmc.storage.files import DamagedFileError, bytes_to_tensors, read_tensors, tensors_to_bytes, write_bytes
from atmc.storage.lock import RunLock
from atmc.storage.manifest import FORMAT, Manifest
from atmc.storage.metrics_log import Journal, read_rows
from atmc.storage.sample_bank import SampleBank
from atmc.storage.state_packing import all_finite, pack, unpack


def some(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"b": torch.randn(3, 4, generator=generator), "a": torch.arange(5), "scalar": torch.tensor(2.5)}


def test_tensors_survive_and_equal_content_has_equal_bytes(tmp_path: Path) -> None:
    meta = {"step": 3, "z": [1.5, None], "a": {"k": "v"}}
    payload = tensors_to_bytes(some(), meta)
    for _ in range(5):
        assert tensors_to_bytes(dict(reversed(some().items())), dict(reversed(meta.items()))) == payload
    record = write_bytes(tmp_path / "x", payload)
    tensors, found = read_tensors(tmp_path / "x", record.sha256, record.bytes)
    assert found == meta
    for name, tensor in some().items():
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_any_change_is_noticed_and_named(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "sample"
    record = write_bytes(path, tensors_to_bytes(some(), {}))
    raw = bytearray(path.read_bytes())
    if harm == "flip":
        raw[-3] ^= 1
        path.write_bytes(raw)
    elif harm == "cut":
        path.write_bytes(raw[:-1])
    else:
        path.unlink()
    with pytest.raises(DamagedFileError, match="sample") as caught:
        read_tensors(path, record.sha256, record.bytes)
    assert {"flip": "altered", "cut": "torn", "remove": "missing"}[harm] in str(caught.value)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80\x04\x95junk pickle",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 9) + b'{"a": 1}x',
        struct.pack("<Q", 8) + b"[1,2,3] ",
        struct.pack("<Q", 70) + b'{"a":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4]}}       ' + b"\0\0\0\0",
    ],
)
def test_hostile_tensor_files_are_named_and_nothing_else_happens(payload: bytes) -> None:
    with pytest.raises(DamagedFileError, match="hostile"):
        bytes_to_tensors(Path("hostile"), payload)


def test_writing_leaves_nothing_beside_and_a_failed_write_keeps_the_old(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(RunError, match=r"no space left to write .*file"):
            write_bytes(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_pack_round_trip() -> None:
    state = {"state": {0: {"m": torch.ones(2)}, 1: {}}, "groups": [{"lr": 0.1, "t": (1, None, "x", True)}], "e": {}}
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack(state, "p", tensors)))
    back = unpack(packed, tensors)
    assert torch.equal(back["state"][0]["m"], torch.ones(2))
    assert back["state"][1] == {}
    assert back["groups"] == [{"lr": 0.1, "t": [1, None, "x", True]}]
    with pytest.raises(TypeError, match="p/k: a function"):
        pack({"k": lambda: None}, "p", {})


def test_all_finite() -> None:
    assert all_finite([torch.full((3,), 3e38), torch.arange(3), torch.empty(0)])
    assert not all_finite([torch.ones(3), torch.tensor([1.0, float("nan")])])
    assert not all_finite([torch.tensor([float("-inf")])])


# -- manifest --------------------------------------------------------------------------------------------


def test_a_damaged_manifest_is_replaced_by_its_copy(tmp_path: Path) -> None:
    Manifest.create(tmp_path, seed=5).commit()
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 5', '"seed": 6'))
    found = Manifest.load(tmp_path)
    assert found.values["seed"] == 5
    assert "manifest.json" in found.notes[0]
    assert "altered" in found.notes[0]
    (tmp_path / "manifest.copy.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"manifest\.json: cannot be read, nor its copy"):
        Manifest.load(tmp_path)


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    manifest = Manifest.create(tmp_path)
    manifest.values["format"] = FORMAT + 1
    manifest.values["versions"]["atmc"] = "9.9"
    manifest.commit()
    with pytest.raises(InputError, match=r"written by atmc 9\.9 .*upgrade"):
        Manifest.load(tmp_path)


def test_a_manifest_may_not_point_outside(tmp_path: Path) -> None:
    manifest = Manifest.create(tmp_path)
    for name in ("../secret", "/etc/passwd", "samples/../../x"):
        with pytest.raises(DamagedFileError, match="outside"):
            manifest.locate(name)


# -- bank --------------------------------------------------------------------------------------------


def test_bank_keeps_order_chains_and_meta(tmp_path: Path) -> None:
    for chain in (0, 1):
        bank = SampleBank(tmp_path / str(chain))
        for k in range(3):
            bank.append(some(10 * chain + k), {"chain": chain, "step": 100 * (k + 1)})
    together = SampleBank(tmp_path / "0", tmp_path / "1")
    assert len(together) == 6
    assert [together.chain_of(i) for i in range(6)] == [0, 1, 0, 1, 0, 1]
    assert together.meta(3)["step"] == 200
    assert torch.equal(together[3]["b"], some(11)["b"])
    assert [torch.equal(t["b"], some(s)["b"]) for t, s in zip(together, (0, 10, 1, 11, 2, 12), strict=True)] == [
        True
    ] * 6
    with pytest.raises(RunError, match="several chains"):
        together.append(some(), {})
    with pytest.raises(IndexError):
        together[6]


def test_a_damaged_sample_is_named_and_the_others_can_be_read(tmp_path: Path) -> None:
    bank = SampleBank(tmp_path)
    for k in range(3):
        bank.append(some(k), {"step": k})
    (tmp_path / "samples" / "0001.safetensors").unlink()
    again = SampleBank(tmp_path)
    assert torch.equal(again[2]["b"], some(2)["b"])
    with pytest.raises(DamagedFileError, match=r"0001\.safetensors: is missing"):
        again[1]
    [(index, error)] = again.problems()
    assert index == 1
    assert "0001" in str(error)
    again.set_aside(1, error.reason)
    again.append(some(7), {"step": 9})
    assert [again.meta(i)["index"] for i in range(len(again))] == [0, 2, 3]


# -- journal and lock --------------------------------------------------------------------------------------------


def test_journal_is_cut_back_and_torn_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    journal.write({"step": 1, "loss": float("nan")})
    mark = journal.mark()
    journal.write({"step": 2})
    with path.open("ab") as stream:
        stream.write(b'{"step": 3, "lo')
    assert [row["step"] for row in read_rows(path)] == [1, 2]
    again = Journal(path)
    assert again.resume(mark["bytes"], mark["sha256"]) is None
    again.write({"step": 5})
    assert read_rows(path) == [{"step": 1, "loss": None}, {"step": 5}]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert "altered" in str(Journal(path).resume(mark["bytes"], mark["sha256"]))
    path.write_bytes(b"")
    assert "lost its end" in str(Journal(path).resume(mark["bytes"], mark["sha256"]))


def test_lock_names_the_holder_and_dies_with_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        lock = RunLock(tmp_path)
        lock.__enter__()
        os.write(writer, b"x")
        os.read(os.pipe()[0], 1)  # for ever
    os.read(reader, 1)
    try:
        with pytest.raises(RunError, match=f"in use by process {pid} on"), RunLock(tmp_path):
            pass
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    with RunLock(tmp_path):
        pass


def test_a_run_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    new, old, begun = (tmp_path / name for name in ("some/new", "old", "begun"))
    for folder in (old, begun):
        folder.mkdir()
    (begun / "recipe.toml").write_text("")
    for folder in (new, old, begun):
        with pytest.raises(RunError, match="refused"), RunLock(folder):
            raise RunError("refused")
    assert not new.parent.exists()
    assert list(old.iterdir()) == []
    assert {path.name for path in begun.iterdir()} == {".lock", "recipe.toml"}
    with RunLock(new):
        pass
    assert (new / ".lock").exists()  # a run that was not refused keeps it


def test_a_lock_that_is_removed_while_it_is_taken_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, by the process that held it and was refused."""
    lock, flock, removed = RunLock(tmp_path / "run"), fcntl.flock, []

    def late(handle: int, how: int) -> None:
        if not removed:
            removed.append(lock.path)
            lock.path.unlink()
            lock.path.parent.rmdir()
        flock(handle, how)

    monkeypatch.setattr("atmc.storage.lock.fcntl.flock", late)
    with lock:
        assert lock.path.exists()
        with pytest.raises(RunError, match="in use by process"), RunLock(lock.path.parent):
            pass
        assert lock.path.exists()
