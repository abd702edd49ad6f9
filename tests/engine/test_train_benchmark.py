"""benchmarks/train.py: memory is that of a real run, and what is extrapolated is called so."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

SMALL = [
    "--device=cpu",
    "--depth=8",
    "--width=4",
    "--size=8",
    "--channels=1",
    "--train=64",
    "--batch=16",
    "--epochs=20",
]


@pytest.fixture(scope="module")
def train() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "train.py"
    spec = importlib.util.spec_from_file_location("train_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_is_watched_over_a_run_with_samples_and_checkpoints(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from atmc.storage.chain_folder import ChainStore

    checkpoints = []
    write = ChainStore.checkpoint

    def count(store: ChainStore, step: int, *rest: Any) -> None:
        checkpoints.append(step)
        write(store, step, *rest)

    monkeypatch.setattr(ChainStore, "checkpoint", count)
    found = train.memory(train.parse(SMALL))
    assert (found["epochs"], found["samples"], found["steps"]) == (20, 20, 80)
    assert (found["before"]["epoch"], found["after"]["epoch"]) == (4, 20)
    assert found["growth"].keys() == {"host_mb", "device_mb", "device_reserved_mb"}
    assert found["after"]["host_mb"] > 50
    assert len(set(checkpoints)) >= 20


def test_the_extrapolation_is_called_so(train: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train.main([*SMALL, "--seconds=0.1", "--rounds=1", "--skip=startup,chains,memory", f"--out={tmp_path}"])
    [file] = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["extrapolated"]["minutes_for_1000_epochs"] > 0
    assert "4 epochs" in found["extrapolated"]["from"]
    assert "minutes_for_1000_epochs" not in found["run"]
    assert "1,000 epochs, extrapolated" in capsys.readouterr().out
