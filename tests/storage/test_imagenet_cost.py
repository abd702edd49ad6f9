"""The cost model's sizes against the files of a run, and its times against plain arithmetic."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names

import imagenet_cost as model  # noqa: E402
from atmc.engine.runner import run  # noqa: E402
from atmc.recipe.build import build_model  # noqa: E402
from atmc.recipe.settings import (  # noqa: E402
    DataSection,
    ModelSection,
    Recipe,
    SamplerSection,
    ScheduleSection,
    TargetSection,
)


def test_sizes_are_those_of_a_run(tmp_path: Path) -> None:
    recipe = Recipe(
        data=DataSection(name="synthetic:3x8x8?classes=10&train=64&test=200", batch_size=16),
        model=ModelSection(name="resnet-v2", depth=8, width=16),
        target=TargetSection(prior="normalised"),
        sampler=SamplerSection(name="atmc", lr=1e-3, speed=0.01, max_speed=0.03, momentum=0.9),
        schedule=ScheduleSection(epochs=4, cycle_epochs=1, burn_in_epochs=2),
    )
    run(recipe, tmp_path / "run", progress=None)
    parameters = sum(p.numel() for p in build_model(recipe, (3, 8, 8), 10).parameters())
    said = model.Run(1.0, parameters, 4, 16, 1, 2, train=64, validation=200, classes=10)

    def size(pattern: str) -> list[int]:
        return [file.stat().st_size for file in sorted((tmp_path / "run").glob(pattern))]

    assert len(size("samples/*.safetensors")) == said.samples == 2
    # The names of 30 tensors and the journal of the state weigh some per cent of so small a network, never less.
    for files, bytes_ in (
        (size("checkpoint/*.safetensors"), said.checkpoint_bytes),
        (size("samples/*.safetensors"), said.sample_bytes),
        (size("predictions/test/*.safetensors"), said.prediction_bytes),
    ):
        assert all(bytes_ <= found < 1.03 * bytes_ for found in files), (files, bytes_)


def test_one_gpu_is_the_measured_speed_and_more_are_not_faster_than_they_can_be() -> None:
    rate = model.measured_rate()
    assert rate == pytest.approx(7773.6, abs=0.1)
    paper = model.Run(rate)
    assert paper.samples == 43
    at_128 = model.cost(model.Run(rate, batch=128), 1)
    assert at_128.images_per_second == pytest.approx(rate)
    one, eight, many = (model.cost(paper, n) for n in (1, 8, 64))
    assert one.hours == pytest.approx(1000 * model.TRAIN / one.images_per_second / 3600, rel=0.02)
    assert one.exposed_ms == 0
    assert eight.hours > one.hours / 8
    assert many.hours > eight.hours / 8
    assert 1 == one.efficiency > eight.efficiency > many.efficiency > 0.3
    assert one.terabytes_read == pytest.approx(141, abs=1)
    with pytest.raises(ValueError, match="does not split over 3 GPUs"):
        model.cost(paper, 3)
