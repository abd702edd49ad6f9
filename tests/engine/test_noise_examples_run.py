"""Runs with friction along the gradients of examples: the step, resuming, and what it does not go together with."""

from typing import Any

import pytest
import torch

from atmc.common.errors import InputError
from atmc.engine.batches import make_feed
from atmc.engine.chain import Chain
from atmc.engine.processes import World
from atmc.engine.run_data import load_data
from atmc.engine.runner import run
from atmc.engine.schedule import make_schedule
from atmc.recipe.build import build_model
from atmc.storage.run_directory import RunDir


@pytest.fixture
def by_example(tiny: Any, change: Any) -> Any:
    return change(tiny, sampler={"noise_examples": True}, schedule={"epochs": 6, "cycle_epochs": 2})


@pytest.mark.parametrize("draw", ["auto", "importance"])
def test_it_runs_and_resumes_bit_for_bit(by_example: Any, change: Any, tmp_path: Any, draw: str) -> None:
    by_example = change(by_example, data={"draw": draw})
    whole = run(by_example, tmp_path / "whole", None, None)
    assert whole.status == "done"
    part = run(by_example, tmp_path / "part", 0.01, None)
    calls = 1
    while part.status != "done":
        part, calls = run(by_example, tmp_path / "part", 0.2, None), calls + 1
    found = [RunDir.open(tmp_path / name) for name in ("whole", "part")]
    samples = [[torch.cat([t.flatten() for t in s.values()]) for s in each_sample(own)] for own in found]
    assert len(samples[0]) == len(samples[1]) > 1
    assert all(torch.equal(a, b) for a, b in zip(*samples, strict=True))
    kinetic = [row["kinetic_temperature"] for row in found[0].metrics() if "kinetic_temperature" in row]
    assert kinetic[-1] == pytest.approx(1.0, abs=0.3)


def each_sample(own: RunDir) -> Any:
    from safetensors.torch import load_file

    return [load_file(path) for path in sorted((own.path / "samples").glob("*.safetensors"))]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": {"noise_rank": 4}}, "use sampler.noise_rank = 0 with it"),
        ({"data": {"batch_size": 90}}, "takes all 90 examples: leave it out"),
        ({"run": {"parallel": "data"}}, "needs all examples of a batch in one process"),
    ],
    ids=["rank", "all data", "data-parallel"],
)
def test_what_it_does_not_go_together_with(
    by_example: Any, change: Any, tmp_path: Any, settings: Any, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        run(change(by_example, **settings), tmp_path / "run", None, None)


def chain_of(recipe: Any) -> Chain:
    place, world = torch.device("cuda"), World()
    data = load_data(recipe)
    model = build_model(recipe, data.train.shape, data.classes)
    feed = make_feed(recipe, data, model, place, world, 5)
    chain = Chain(0, recipe, make_schedule(recipe, len(data.train)), data, model, feed, place, world)
    chain.start()
    return chain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernels", [False, True], ids=["torch.func", "kernels of ResNet-FRN"])
def test_the_recorded_step_is_the_step(by_example: Any, change: Any, kernels: bool) -> None:
    recipe = change(by_example, sampler={"momentum_init": "law"}, run={"device": "cuda", "deterministic": True})
    if kernels:
        recipe = change(
            recipe,
            data={"name": "synthetic:3x16x16?classes=4&train=512&test=128", "batch_size": 64},
            model={"name": "resnet-frn", "depth": 8, "width": 16, "options": {}},
            sampler={"lr": 1e-3},
            run={"precision": "bf16"},
        )
    recorded, eager = chain_of(recipe), chain_of(recipe)
    recorded.ready()
    assert type(recorded._run).__name__ == "GraphStep"
    while recorded.done < 24:
        recorded.advance(7)
    assert recorded.finish() is None
    for step in range(24):
        eager.feed.ensure(step)
        eager._step()
    torch.cuda.synchronize()
    for (name, a), b in zip(recorded.model.state_dict().items(), eager.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3, msg=name)
    for found in (recorded, eager):
        assert float(found.optimizer.kick_excess()) <= 1.0  # type: ignore[union-attr]
        assert float(found.optimizer.kinetic_temperature()) == pytest.approx(1.0, abs=0.5)  # type: ignore[union-attr]
