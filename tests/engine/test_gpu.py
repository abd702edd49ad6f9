"""On CUDA: the recorded step is the step, warming up and recording move nothing, devices exchange checkpoints."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from atmc.engine.batches import make_feed
from atmc.engine.chain import Chain
from atmc.engine.processes import World
from atmc.engine.run_data import load_data
from atmc.engine.runner import run
from atmc.engine.schedule import make_schedule
from atmc.recipe.build import build_model
from atmc.samplers import Sampler
from atmc.storage.run_directory import RunDir

from .chains import chain_of, check_same_steps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def small(tiny: Any, change: Any) -> Any:
    return change(
        tiny,
        data={"name": "synthetic:3x16x16?classes=4&train=512&test=128", "batch_size": 64, "augment": "crop-flip"},
        model={"name": "resnetpp", "depth": 8, "width": 8},
        target={"prior": "resnetpp"},
        sampler={"mass": None, "friction": None, "lr": 1e-3, "speed": 3e-3, "max_speed": 1e-2, "momentum": 0.9},
        run={"device": "cuda", "deterministic": True, "precision": "float32"},
    )


def test_the_recorded_step_is_the_step(small: Any) -> None:
    recorded, eager = chain_of(small, "cuda"), chain_of(small, "cuda")
    check_same_steps(recorded, eager, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kernels", [False, True], ids=["torch.func", "kernels of ResNet-FRN"])
def test_the_recorded_step_with_noise_examples_is_the_step(tiny: Any, change: Any, kernels: bool) -> None:
    """Recorded where no step before has taken readings, as after most resumes."""
    settings = {"noise_examples": True, "momentum_init": "law"}
    recipe = change(tiny, sampler=settings, run={"device": "cuda", "deterministic": True})
    if kernels:
        recipe = change(
            recipe,
            data={"name": "synthetic:3x16x16?classes=4&train=512&test=128", "batch_size": 64},
            model={"name": "resnet-frn", "depth": 8, "width": 16, "options": {}},
            sampler={"lr": 1e-3},
            run={"precision": "bf16"},
        )
    recorded, eager = chain_of(recipe, "cuda"), chain_of(recipe, "cuda")
    for chain in (recorded, eager):
        assert isinstance(chain.optimizer, Sampler)
        chain.optimizer._calls = 11
    recorded.ready()
    assert type(recorded._run).__name__ == "GraphStep"
    check_same_steps(recorded, eager, rtol=1e-2, atol=1e-3)
    for found in (recorded, eager):
        assert float(found.optimizer.kick_excess()) <= 1.0  # type: ignore[union-attr]
        assert float(found.optimizer.kinetic_temperature()) == pytest.approx(1.0, abs=0.5)  # type: ignore[union-attr]


def test_warming_up_and_recording_move_nothing(small: Any) -> None:
    chain = chain_of(small, "cuda")
    before = {k: v.clone() for k, v in chain.model.state_dict().items()}
    tensors, _ = chain.state()
    chain.ready()
    for name, tensor in chain.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    again, _ = chain.state()
    for name, tensor in tensors.items():
        assert torch.equal(
            again[name],
            tensor,
        ) or bool((again[name].isnan() & tensor.isnan()).all()), name
    assert int(chain.clock.step) == 0


def test_stop_and_go_on_bit_for_bit(small: Any, tmp_path: Path, fingerprint: Any) -> None:
    recipe = dataclasses.replace(small, chains=2)
    run(recipe, tmp_path / "whole", progress=None)
    statuses = []
    while not statuses or statuses[-1] != "done":
        statuses.append(run(recipe, tmp_path / "parts", time_budget=1.5, progress=None).status)
        assert len(statuses) < 40
    assert fingerprint(tmp_path / "parts")["samples"] == fingerprint(tmp_path / "whole")["samples"]


@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_devices_exchange_checkpoints(small: Any, change: Any, tmp_path: Path, first: str, then: str) -> None:
    class Stop(RuntimeError):
        pass

    from atmc.engine.progress import Progress

    class Crash(Progress):
        def row(self, row: Any, samples: int) -> None:
            if samples >= 2:
                raise Stop

    with pytest.raises(Stop):
        run(change(small, run={"device": first}), tmp_path / "run", progress=Crash())
    kept = RunDir.open(tmp_path / "run").bank.hashes()
    assert run(change(small, run={"device": then}), tmp_path / "run", progress=None).status == "done"
    found = RunDir.open(tmp_path / "run")
    assert found.bank.hashes()[: len(kept)] == kept
    assert len(found.bank) == 5
    assert [s["hardware"]["device"] for s in found.manifest["sessions"]] == [first, then]


@pytest.mark.parametrize("sampler", ["sgnht", "sghmc", "sgd"])
@pytest.mark.parametrize("compiled", [False, True])
def test_other_samplers_half_precision_and_compiled_blocks(
    small: Any, change: Any, tmp_path: Path, sampler: str, compiled: bool
) -> None:
    sections: dict[str, Any] = {"run": {"precision": "bf16", "compile": compiled, "deterministic": False}}
    if sampler == "sgd":
        sections["sampler"] = {
            "name": "sgd",
            "lr": 0.02,
            "momentum": 0.9,
            "speed": None,
            "max_speed": None,
            "inertia": None,
        }
        sections["target"] = {"prior": "none"}
        sections["model"] = {"name": "resnet", "norm": "bn"}
        sections["schedule"] = {"kind": "cosine", "cycle_epochs": None}
    else:
        sections["sampler"] = {"name": sampler} if sampler == "sgnht" else {"name": sampler, "inertia": None}
    result = run(change(small, **sections), tmp_path / "run", progress=None)
    assert result.status == "done"
    found = RunDir.open(tmp_path / "run")
    logs = [row for row in found.metrics() if row["event"] == "log"]
    assert logs[-1]["loss"] < logs[0]["loss"]


def test_divergence_is_rolled_back_with_the_recorded_step_still_valid(small: Any, tmp_path: Path) -> None:
    from atmc.engine.checkpointing import Checkpointer

    attend = Checkpointer.attend
    broken: list[int] = []

    def break_once(keeper: Checkpointer) -> None:
        if not broken and keeper.chain.done > 20:
            broken.append(keeper.chain.done)
            torch.cuda.synchronize()
            with torch.no_grad():
                next(keeper.chain.model.parameters()).fill_(float("nan"))
        attend(keeper)

    Checkpointer.attend = break_once  # type: ignore[method-assign]
    try:
        assert run(small, tmp_path / "run", progress=None).status == "done"
    finally:
        Checkpointer.attend = attend  # type: ignore[method-assign]
    found = RunDir.open(tmp_path / "run")
    assert [row["event"] for row in found.metrics()].count("rollback") == 1
    assert all(bool(t.isfinite().all()) for sample in found.bank for t in sample.values())


def test_streamed_data_through_a_recorded_step(small: Any, change: Any, tmp_path: Path) -> None:
    """The same batches, handed over by the host, give the same chain."""
    from atmc.data import StreamBatches

    device_fed = chain_of(small, "cuda")
    world, place = World(), torch.device("cuda")
    data = load_data(small)
    feed = StreamBatches(data.train, 64, place, torch.float32, "crop-flip", 5, workers=0)
    model = build_model(small, data.train.shape, data.classes)
    host_fed = Chain(0, small, make_schedule(small, len(data.train)), data, model, feed, place, world)
    host_fed.start()
    for chain in (device_fed, host_fed):
        while chain.done < 16:
            chain.advance(5)
        assert chain.finish() is None
    for (name, a), b in zip(host_fed.model.state_dict().items(), device_fed.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_network_that_reads_values_back_runs_unrecorded(small: Any, change: Any, compiled: bool) -> None:
    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = self.conv(x).relu().mean((2, 3))
            return self.head(features * (2.0 if features.sum().item() > 0 else 1.0))

    from atmc.recipe.settings import ModelSection

    recipe = change(small, model=ModelSection(name="custom"), target={"prior": "gaussian"}, run={"compile": compiled})
    recipe = change(recipe, run={"deterministic": False})
    place, world, data, model = torch.device("cuda"), World(), load_data(recipe), Reads()
    feed = make_feed(recipe, data, model, place, world, 5)
    chain = Chain(0, recipe, make_schedule(recipe, len(data.train)), data, model, feed, place, world)
    chain.start()
    with pytest.warns(UserWarning, match="cannot be recorded in a CUDA graph"):
        chain.advance(4)
    assert chain.finish() is None
    assert chain.done == 4
