"""Masses and thermostats from the measured gradient: the formulas, and that a run with them resumes exactly."""

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atmc.engine.batches import make_feed
from atmc.engine.chain import Chain
from atmc.engine.gradient_statistics import Gradients, look, masses, set_thermostats
from atmc.engine.processes import World
from atmc.engine.progress import Progress
from atmc.engine.run_data import load_data
from atmc.engine.runner import run
from atmc.engine.schedule import make_schedule
from atmc.recipe.settings import SamplerSection
from atmc.samplers import ATMC, SGNHT
from atmc.storage.run_directory import RunDir


def test_masses_follow_the_gradient_and_keep_the_common_scale() -> None:
    square = [torch.full((4,), 1.0), torch.full((2, 2), 16.0), torch.zeros(2)]
    found = Gradients(square, square)
    by_tensor = masses(found, SamplerSection(mass_from="tensor"), 2.0)
    assert isinstance(by_tensor, list)
    assert by_tensor[1] / by_tensor[0] == pytest.approx(4.0)
    assert all(2.0 / 30 <= m <= 2.0 * 30 for m in by_tensor)
    by_element = masses(Gradients(square[:2], square[:2]), SamplerSection(mass_from="element"), 2.0)
    assert by_element is not None
    assert [m.shape for m in by_element if isinstance(m, torch.Tensor)] == [(4,), (2, 2)]
    logs = torch.cat([m.reshape(-1).log() for m in by_element if isinstance(m, torch.Tensor)])
    assert float(logs.mean().exp()) == pytest.approx(2.0, rel=1e-5)  # the geometric mean is the recipe's mass
    assert masses(found, SamplerSection(), 2.0) is None


def test_masses_go_with_the_root_mean_square() -> None:
    """16 times the square is 4 times the mass, of a tensor or of an element; and every element weighs the same."""
    square = [torch.full((6,), 1.0), torch.full((2,), 16.0)]
    for kind in ("tensor", "element"):
        found = masses(Gradients(square, square), SamplerSection(mass_from=kind), 2.0)  # type: ignore[arg-type]
        assert found is not None
        first, second = (float(torch.as_tensor(m).reshape(-1)[0]) for m in found)
        assert second / first == pytest.approx(4.0, rel=1e-5)
        assert first**6 * second**2 == pytest.approx(2.0**8, rel=1e-4)


def test_looking_finds_mean_square_and_variance() -> None:
    """Of the gradients of the steps asked for, with a mean far from 0; the variance without bias."""
    every = torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3.0
    step: Any = SimpleNamespace(params=[torch.zeros(2, 3, dtype=torch.float64)], gradient=lambda n: [every[n]])
    found = look(step, 4, 5)
    torch.testing.assert_close(found.square[0], every[4:].square().mean(0))
    torch.testing.assert_close(found.variance[0], every[4:].var(0, correction=1))


def test_thermostats_start_at_the_equilibrium_of_the_step_size_they_are_stated_for() -> None:
    param, variance = torch.nn.Parameter(torch.zeros(3)), torch.tensor([1.0, 2.0, 3.0])
    for reference, h in ((0.05, 0.05), (None, 0.01)):
        sampler = ATMC([param], 0.01, mass=2.0, temperature=0.5, reference_lr=reference)
        set_thermostats(sampler, [param], Gradients([variance], [variance]), temperature=0.5, lr=0.01)
        torch.testing.assert_close(sampler.state[param]["thermostat"], h * variance / (2 * 2.0 * 0.5))


@pytest.mark.parametrize("shared", [False, True])
def test_thermostats_start_at_their_equilibrium(shared: bool) -> None:
    params = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))]
    sampler = SGNHT(params, 0.01, mass=2.0, thermostat="scalar") if shared else ATMC(params, 0.01, mass=2.0)
    variance = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 10.0])]
    set_thermostats(sampler, params, Gradients(variance, variance), temperature=0.5, lr=0.01)
    expected = [0.01 * v / (2 * 2.0 * 0.5) for v in variance]
    if shared:
        mean = torch.cat(expected).mean()
        torch.testing.assert_close(sampler.state[params[0]]["thermostat"].reshape(-1)[0], mean)
    else:
        for p, rest in zip(params, expected, strict=True):
            torch.testing.assert_close(sampler.state[p]["thermostat"], rest)


@pytest.fixture
def adapted(tiny: Any, change: Any) -> Any:
    return change(
        tiny,
        sampler={"mass_from": "element", "thermostat_from_noise": True, "look_batches": 8},
        schedule={"warm_start_epochs": 2},
    )


def test_the_chain_looks_around_before_its_first_step_and_moves_nothing(adapted: Any) -> None:
    data, world, cpu = load_data(adapted), World(), torch.device("cpu")
    from atmc.recipe.build import build_model

    model = build_model(adapted, data.train.shape, 3)
    chain = Chain(
        0,
        adapted,
        make_schedule(adapted, len(data.train)),
        data,
        model,
        make_feed(adapted, data, model, cpu, world, 1),
        cpu,
        world,
    )
    chain.start()
    while chain.done < chain.schedule.warm_steps:
        chain.advance(4)
    before = {name: t.clone() for name, t in chain.model.state_dict().items()}
    chain.fresh = True
    chain.begin_phase()
    chain.ready()
    assert chain.optimizer is not None
    for name, tensor in chain.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    mass = chain.optimizer.param_groups[0]["mass"]
    assert len(mass) == len(list(chain.model.parameters()))
    ratio = max(float(m.max()) for m in mass) / min(float(m.min()) for m in mass)
    assert 2 < ratio <= 900.001
    rest = torch.cat([chain.optimizer.state[p]["thermostat"].reshape(-1) for p in chain.model.parameters()])
    assert float(rest.min()) >= 0
    assert float(rest.mean()) > 0
    assert math.isfinite(float(rest.sum()))


class StopAt(Progress):
    def __init__(self, step: int) -> None:
        self.step = step

    def row(self, row: Any, samples: int) -> None:
        if row["step"] >= self.step:
            self.step = 10**9
            os.kill(os.getpid(), 15)


@pytest.mark.parametrize(("stop", "looks"), [(1, 1), (11, 1), (12, 1), (30, 1), (17, 3), (20, 3), (21, 3)])
def test_resumes_exactly(adapted: Any, change: Any, tmp_path: Path, fingerprint: Any, stop: int, looks: int) -> None:
    """Also where masses are measured again: at the steps 21 and 30 here, of which the last ends burn-in."""
    recipe = change(adapted, run={"log_steps": 1}, sampler={"mass_looks": looks})
    if looks > 1:
        recipe = change(recipe, schedule={"burn_in_epochs": 4})
    run(recipe, tmp_path / "whole", progress=None)
    assert run(recipe, tmp_path / "parts", progress=StopAt(stop)).status == "interrupted"
    run(recipe, tmp_path / "parts", progress=None)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


def test_a_rollback_to_the_very_start_looks_again(adapted: Any, change: Any, tmp_path: Path) -> None:
    from atmc.engine.step import Step

    recipe = change(adapted, schedule={"warm_start_epochs": 0})
    original = Step.__call__
    broken: list[int] = []

    def call(step: Step) -> None:
        original(step)
        if not broken and int(step.clock.step) == 5:
            broken.append(5)
            with torch.no_grad():
                step.params[-1].fill_(float("nan"))

    Step.__call__ = call  # type: ignore[method-assign]
    try:
        run(recipe, tmp_path / "run", progress=None)
    finally:
        Step.__call__ = original  # type: ignore[method-assign]
    found = RunDir.open(tmp_path / "run")
    assert [row["step"] for row in found.metrics() if row["event"] == "rollback"] == [0]
    assert len(found.bank) == 5


def test_masses_are_measured_until_burn_in_ends_and_then_kept(adapted: Any, change: Any, tmp_path: Path) -> None:
    from atmc.engine import device_loop

    recipe = change(adapted, sampler={"mass_looks": 3}, schedule={"burn_in_epochs": 4})
    schedule = make_schedule(recipe, len(load_data(recipe).train))
    assert len(schedule.look_again) == 2
    assert schedule.look_again[-1] < schedule.sample_after[0]
    seen: list[int] = []
    original = device_loop.DeviceLoop._look_again

    def look_again(loop: device_loop.DeviceLoop) -> None:
        seen.append(loop.done)
        original(loop)

    device_loop.DeviceLoop._look_again = look_again  # type: ignore[method-assign]
    try:
        run(recipe, tmp_path / "run", progress=None)
    finally:
        device_loop.DeviceLoop._look_again = original  # type: ignore[method-assign]
    assert tuple(seen) == schedule.look_again
