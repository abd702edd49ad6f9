"""Schedules: the paper's formula, its number of samples, and whole epochs whatever the batch."""

import dataclasses
import math

import pytest
import torch

from atmc.common.errors import InputError
from atmc.engine.schedule import Schedule, make_schedule
from atmc.recipe.settings import DataSection, Recipe, SamplerSection, ScheduleSection
from atmc.samplers import SGLD, CyclicCosine


def schedule(num_data: int = 50_000, batch: int = 128, **plan: object) -> Schedule:
    recipe = Recipe(
        data=DataSection(batch_size=batch),
        sampler=SamplerSection(lr=1e-3, temperature=0.5),
        schedule=ScheduleSection(**plan),  # type: ignore[arg-type]
    )
    return make_schedule(recipe, num_data)


def test_the_papers_cifar10_run_has_17_samples_from_epoch_200_on() -> None:
    found = schedule(epochs=1000, cycle_epochs=50, burn_in_epochs=150)
    assert found.steps == math.ceil(1000 * 50_000 / 128)
    assert len(found.sample_after) == 17
    assert [round(found.epoch(k)) for k in found.sample_after[:2]] == [200, 250]
    assert found.sample_after[-1] == found.steps
    assert len(found.cycle_ends) == 20


@pytest.mark.parametrize(("hold", "warmup", "floor"), [(0.0, 0, 0), (0.6, 0, 0.05), (0.6, 1, 0), (0.3, 3, 0.25)])
def test_cyclic_steps_are_those_of_the_torch_scheduler(hold: float, warmup: int, floor: float) -> None:
    plan = {"hold_fraction": hold, "cycle_warmup_epochs": warmup, "lr_floor": float(floor)}
    found = schedule(num_data=1280, epochs=12, cycle_epochs=4, **plan)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    scheduler = CyclicCosine(optimizer, 40, hold=hold, warmup=warmup / 4, floor=floor)
    expected = []
    for _ in range(120):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(found.lr.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("steps", "explore"), [(20, 0.6), (100, 0.07), (100, 0.29), (100, 0.57)])
def test_cycles_explore_as_long_as_those_of_the_torch_scheduler(steps: int, explore: float) -> None:
    """To the step: 0.07 of 100 are 7, though 0.07 · 100 is more than that in floating point."""
    found = schedule(
        num_data=128 * steps, epochs=2, cycle_epochs=1, temperature_schedule="explore", explore_fraction=explore
    )
    sampler = SGLD([torch.nn.Parameter(torch.zeros(1))], 1e-3, temperature=0.5)
    scheduler = CyclicCosine(sampler, steps, explore=explore)
    expected = []
    for _ in range(2 * steps):
        expected.append(sampler.param_groups[0]["temperature"])
        sampler.step()
        scheduler.step()
    assert found.temperature.tolist() == expected
    assert expected.count(0.0) == 2 * round(explore * steps)


def test_a_cycle_that_is_no_whole_number_of_steps_restarts_every_time() -> None:
    found = schedule(num_data=1000, batch=128, epochs=9, cycle_epochs=3)  # 23.4 steps a cycle
    assert found.cycle_ends == (24, 47, 71)
    for start in (0, 24, 47):
        assert found.lr[start] == pytest.approx(1e-3)
    assert (found.lr[[23, 46, 70]] < 1e-5).all()
    assert [found.cycle(k) for k in (0, 23, 24, 46, 47, 70)] == [0, 0, 1, 1, 2, 2]


def test_a_cycle_may_end_within_an_epoch() -> None:
    found = schedule(num_data=40_960, batch=256, epochs=625, cycle_epochs=31.25)
    assert found.cycle_ends == found.sample_after == tuple(range(5_000, 100_001, 5_000))
    assert (found.lr[::5_000] == 1e-3).all()
    cut = schedule(num_data=1280, epochs=6, cycle_epochs=2.5)
    assert cut.sample_after == (25, 50)
    assert cut.cycle_ends == (25, 50, 60)


def test_a_last_cycle_cut_short_gives_no_sample() -> None:
    found = schedule(num_data=1280, epochs=5, cycle_epochs=2)
    assert found.sample_after == (20, 40)
    assert found.lr[-1] > 0.4e-3  # half way down only


def test_sampling_every_k_steps_after_burn_in() -> None:
    found = schedule(num_data=1280, epochs=4, kind="constant", burn_in_epochs=1, sample_every_steps=7)
    assert found.sample_after == (17, 24, 31, 38)
    assert found.lr.unique().numel() == 1


def test_step_schedule_and_warm_up() -> None:
    found = schedule(num_data=1280, epochs=6, kind="step", milestones=[2, 4], warmup_epochs=1)
    assert found.lr[0] == pytest.approx(1e-4)
    assert found.lr[15] == pytest.approx(1e-3)
    assert found.lr[25] == pytest.approx(1e-4)
    assert found.lr[59] == pytest.approx(1e-5)
    assert found.sample_after == (60,)


def test_every_cycle_warms_up() -> None:
    found = schedule(num_data=1280, epochs=12, cycle_epochs=6, cycle_warmup_epochs=2)
    plain = schedule(num_data=1280, epochs=12, cycle_epochs=6)
    for start in (0, 60):
        rise = found.lr[start : start + 20] / plain.lr[start : start + 20]
        assert rise.tolist() == pytest.approx([(k + 1) / 20 for k in range(20)], rel=1e-4)
        assert found.lr[start + 20 : start + 60].equal(plain.lr[start + 20 : start + 60])


def test_a_chain_stops_at_every_cycle_end() -> None:
    """Also in the burn-in, where no sample is taken: a checkpoint is."""
    found = schedule(num_data=1280, epochs=8, cycle_epochs=2, burn_in_epochs=5)
    assert found.sample_after == (60, 80)
    assert [found.next_stop(k) for k in (0, 19, 20, 40, 60, 79)] == [20, 20, 40, 60, 80, 80]


def test_warm_start_comes_first_and_shifts_the_rest() -> None:
    found = schedule(num_data=1280, epochs=4, cycle_epochs=2, warm_start_epochs=3, warm_start_lr=0.1)
    assert found.warm_steps == 30
    assert found.steps == 70
    assert found.sample_after == (50, 70)
    descent = [0.05 * (1 + math.cos(math.pi * t / 30)) for t in range(30)]
    assert found.lr[:30].tolist() == pytest.approx(descent, rel=1e-5)  # the last step is small, but it is one
    assert found.temperature[:30].eq(0).all()
    assert found.temperature[30:].eq(0.5).all()
    assert found.lr[30] == pytest.approx(1e-3)
    assert found.next_stop(0) == 30
    assert found.next_stop(30) == 50


def test_temperature_schedules() -> None:
    ramp = schedule(
        num_data=1280, epochs=4, cycle_epochs=4, temperature_schedule="ramp", temperature_ramp_epochs=2
    ).temperature
    assert ramp[0] == 0
    assert ramp[10] == pytest.approx(0.25)
    assert ramp[20:].eq(0.5).all()
    explore = schedule(
        num_data=1280, epochs=4, cycle_epochs=2, temperature_schedule="explore", explore_fraction=0.75
    ).temperature
    assert explore.reshape(2, 20)[:, :15].eq(0).all()
    assert explore.reshape(2, 20)[:, 15:].eq(0.5).all()


def test_steps_that_stay_large_for_a_while() -> None:
    plain = schedule(num_data=1280, epochs=2, cycle_epochs=2).lr
    held = schedule(num_data=1280, epochs=8, cycle_epochs=4, hold_fraction=0.5).lr.reshape(2, 40)
    assert held[:, :21].eq(1e-3).all()
    assert torch.allclose(held[:, 20:], plain)
    run = schedule(num_data=1280, epochs=4, kind="cosine", cycle_epochs=None, hold_fraction=0.5).lr
    assert torch.allclose(run, held[0])


def test_no_samples_of_the_part_that_explores() -> None:
    found = schedule(
        num_data=1280,
        epochs=4,
        cycle_epochs=2,
        temperature_schedule="explore",
        explore_fraction=0.5,
        sample_every_steps=4,
        burn_in_epochs=1,
    )
    assert found.sample_after == (14, 18, 34, 38)  # of 14, 18, …, 38, with T = 0 in steps 0–9 and 20–29
    assert all(found.temperature[after - 1] == 0.5 for after in found.sample_after)


def test_several_samples_of_a_cycle() -> None:
    found = schedule(
        num_data=1280,
        epochs=16,
        cycle_epochs=8,
        temperature_schedule="explore",
        explore_fraction=0.5,
        samples_per_cycle=2,
        sample_gap_epochs=3,
    )
    assert found.sample_after == (50, 80, 130, 160)  # 3 epochs of 10 steps before a cycle's end, and at its end
    assert all(found.temperature[after - 1] == 0.5 for after in found.sample_after)
    later = schedule(num_data=1280, epochs=17, cycle_epochs=8, samples_per_cycle=3, burn_in_epochs=7)
    assert later.sample_after == (80, 140, 150, 160)  # none of the burn-in, none of a cycle cut short


def test_no_sample_is_taken_at_zero_where_an_epoch_is_a_step() -> None:
    """Seven of 8 epochs have been seen after step 7, and the first 0.8 of 8 steps are 7, too."""
    with pytest.raises(InputError, match=r"at step 7, where schedule\.explore_fraction = 0\.8 still explores"):
        schedule(
            num_data=128,
            epochs=8,
            cycle_epochs=8,
            temperature_schedule="explore",
            explore_fraction=0.8,
            samples_per_cycle=2,
        )


def test_a_temperature_that_falls_with_the_step_size() -> None:
    found = schedule(
        num_data=1280,
        epochs=4,
        cycle_epochs=2,
        cycle_warmup_epochs=1,
        temperature_schedule="anneal",
        temperature_peak=8,
    )
    hot, size = found.temperature.reshape(2, 20) / 0.5, found.lr.reshape(2, 20) / found.lr.max()
    assert torch.allclose(hot, (8 * size * found.lr.max() / 1e-3).clamp(min=1))
    assert hot[0].argmax() == size[0].argmax()  # it rises with the warm-up, too
    assert hot[:, -2:].eq(1).all()  # samples are taken at T itself
    assert torch.equal(hot[0], hot[1])


def test_floor() -> None:
    assert schedule(num_data=1280, epochs=2, cycle_epochs=2, lr_floor=0.25).lr.min() == pytest.approx(2.5e-4)


def test_extending_a_cyclic_run_keeps_its_past() -> None:
    short = schedule(epochs=20, cycle_epochs=5)
    long = schedule(epochs=40, cycle_epochs=5)
    assert torch.equal(short.lr, long.lr[: short.steps])
    assert long.sample_after[: len(short.sample_after)] == short.sample_after
    assert dataclasses.is_dataclass(short)
