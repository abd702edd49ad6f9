"""The engine's step is the contract's loop: same weights from `atmc.Potential`, the sampler and a plain for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atmc import data
from atmc.engine.compiled_loss import BatchLoss
from atmc.engine.device_schedule import DeviceSchedule
from atmc.engine.loss_log import observe
from atmc.engine.optimizer import build_optimizer
from atmc.engine.processes import World
from atmc.engine.runner import run
from atmc.engine.schedule import Schedule, make_schedule
from atmc.engine.step import Step
from atmc.recipe.build import build_likelihood, build_model, build_prior, chain_seed
from atmc.samplers import ATMC
from atmc.storage.run_directory import RunDir
from atmc.target import Potential, priors


@pytest.mark.parametrize("name", ["atmc", "sgnht", "sghmc", "sgld"])
def test_a_run_is_the_loop_one_would_write(tiny: Any, change: Any, tmp_path: Path, name: str) -> None:
    sampler: dict[str, Any] = {"name": name} if name in ("atmc", "sgnht") else {"name": name, "inertia": None}
    if name == "sgld":
        sampler |= {"mass": None, "friction": None, "lr": 1e-4}
    recipe = change(tiny, sampler=sampler, schedule={"epochs": 4, "cycle_epochs": 2})
    run(recipe, tmp_path / "run", progress=None)

    train = data.load(recipe.data.name, "train")
    schedule = make_schedule(recipe, len(train))
    model = build_model(recipe, train.shape, len(train.classes))
    batches = data.DeviceBatches(train, 16, seed=chain_seed(recipe.seed, 0, "order"))
    lr = torch.tensor(recipe.sampler.lr)
    noise = chain_seed(recipe.seed, 0, "noise")
    optimizer = build_optimizer(recipe, list(model.named_parameters()), lr, torch.tensor(1.0), noise)
    potential = Potential(model, len(train), priors.gaussian(1.0))
    drawn = []
    for step in range(schedule.steps):
        lr.copy_(schedule.lr[step])
        optimizer.zero_grad()
        potential(*batches.batch(step)).backward()
        optimizer.step()
        if step + 1 in schedule.sample_after:
            drawn.append({k: v.clone() for k, v in model.state_dict().items()})
    bank = RunDir.open(tmp_path / "run").bank
    assert len(bank) == len(drawn) == 2
    for found, expected in zip(bank, drawn, strict=True):
        for key, tensor in expected.items():
            # The prior's gradient is added at another place of the sum, so the last bits may differ and grow.
            torch.testing.assert_close(found[key], tensor, rtol=2e-3, atol=2e-4)


def test_exploring_is_sgd_and_leaves_thermostats_alone(tiny: Any, change: Any, tmp_path: Path) -> None:
    """In a run: while T = 0 they keep what they have learned, and the chain takes the steps of SGHMC without noise."""
    explore = {"epochs": 8, "cycle_epochs": 4, "temperature_schedule": "explore", "explore_fraction": 0.5}
    recipe = change(tiny, sampler={"inertia": 1e-3}, schedule=explore, run={"log_steps": 1})
    run(recipe, tmp_path / "run", progress=None)
    rows = [row for row in RunDir.open(tmp_path / "run").metrics() if row["event"] == "log"]
    learned = [(row["temperature"], row["thermostat_q01"], row["thermostat_q99"]) for row in rows]
    half = len(rows) // 4
    assert [t for t, *_ in learned[: half - 1]] == [0.0] * (half - 1)
    assert {q for _, *q_ in learned[: half - 1] for q in q_} == {0.0}
    resting = {tuple(q) for t, *q in learned[2 * half + 1 : 3 * half - 1] if t == 0}
    assert len(resting) == 1
    assert 0.0 not in resting.pop()
    assert len({tuple(q) for t, *q in learned[3 * half + 1 :] if t > 0}) > half / 2

    plain = change(tiny, sampler={"name": "sghmc", "inertia": None}, schedule=explore, run={"log_steps": 1})
    run(plain, tmp_path / "plain", progress=None)
    same = [row["loss"] for row in RunDir.open(tmp_path / "plain").metrics() if row["event"] == "log"]
    assert same[: half - 1] == pytest.approx([row["loss"] for row in rows[: half - 1]], rel=1e-5)
    assert same[-1] != pytest.approx(rows[-1]["loss"], rel=1e-5)


@pytest.mark.parametrize("sampling", [True, False])
def test_the_gradient_is_that_of_the_potential_or_of_its_mean(sampling: bool) -> None:
    """SGD, which also makes the warm start, descends on U/N: a share of the prior goes with a share of the data."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    feed: Any = SimpleNamespace(num_data=50, batch=lambda step: (x, y), weights=None)
    clock: Any = None
    prior = priors.gaussian(0.3).assign(model)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    how = {"sampling": sampling, "world": World()}
    potential = Potential(model, 50, prior)
    step = Step(potential, sgd, feed, clock, BatchLoss(potential, None, False), torch.zeros(1), **how)
    expected = torch.autograd.grad(potential(x, y), list(model.parameters()))
    for found, whole in zip(step.gradient(0), expected, strict=True):
        torch.testing.assert_close(found, whole if sampling else whole / 50)


def test_sgd_is_torchs_sgd_on_the_mean_loss(tiny: Any, change: Any, tmp_path: Path) -> None:
    recipe = change(
        tiny,
        sampler={
            "name": "sgd",
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 1e-3,
            "mass": None,
            "friction": None,
            "inertia": None,
        },
        target={"prior": "none"},
        schedule={"kind": "cosine", "cycle_epochs": None, "epochs": 3},
    )
    run(recipe, tmp_path / "run", progress=None)
    train = data.load(recipe.data.name, "train")
    schedule = make_schedule(recipe, len(train))
    model = build_model(recipe, train.shape, 3)
    batches = data.DeviceBatches(train, 16, seed=chain_seed(recipe.seed, 0, "order"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for step in range(schedule.steps):
        optimizer.param_groups[0]["lr"] = float(schedule.lr[step])
        x, y = batches.batch(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    found = RunDir.open(tmp_path / "run")
    assert len(found.bank) == 1
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(found.bank[0][key], tensor, rtol=1e-4, atol=1e-5)


def test_predictions_are_those_of_the_stored_sample(tiny: Any, tmp_path: Path) -> None:
    run(tiny, tmp_path / "run", progress=None)
    found = RunDir.open(tmp_path / "run")
    model = found.model()
    test = data.load(tiny.data.name, "test")
    x, _ = next(iter(data.EvalBatches(test, len(test))))
    probs = found.predictions("test")
    assert found.splits == ["test"]
    assert probs.shape == (5, 30, 3)
    for k, sample in enumerate(found.bank):
        model.load_state_dict(sample)
        with torch.no_grad():
            torch.testing.assert_close(probs[k], torch.softmax(model(x), 1), rtol=1e-5, atol=1e-6)
    rows = [row for row in found.metrics() if row["event"] == "sample"]
    nll = -probs.double().mean(0).gather(1, test.labels[:, None]).log().mean()
    assert rows[-1]["scores"]["test"]["predictive"]["nll"] == pytest.approx(float(nll), rel=1e-5)


def test_seeds_of_purposes_and_chains_never_coincide() -> None:
    seeds = {chain_seed(s, c, p) for s in range(20) for c in range(20) for p in ("weights", "order", "noise")}
    assert len(seeds) == 20 * 20 * 3
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_parts_fit_together(tiny: Any) -> None:
    model = build_model(tiny, (1, 6, 6), 3)
    assert set(build_prior(tiny, model).names) == {name for name, _ in model.named_parameters()}
    assert build_likelihood(tiny).task == "classification"


@pytest.mark.parametrize("follows", [True, False])
def test_a_thermostat_as_light_as_its_temperature_asks(tiny: Any, change: Any, follows: bool) -> None:
    """T/(D/3)², whatever T is set to; and the step size that it is stated for is the recipe's."""
    section = {"inertia": None, "temperature": 0.02, "thermostat_follows_step": follows}
    recipe = change(tiny, sampler={"mass": None, "friction": 80.0, **section})
    lr = torch.tensor(0.0)
    made = build_optimizer(recipe, [("w", torch.nn.Parameter(torch.zeros(3)))], lr, torch.tensor(0.02), 0)
    group = made.param_groups[0]
    assert group["inertia"] == pytest.approx(0.02 * 9 / 6400)
    assert group["reference_lr"] == (recipe.sampler.lr if follows else None)
    assert group["reference_temperature"] == 0.02
    assert group["lr"] is lr


def test_the_clock_shows_the_schedule_and_what_rollbacks_have_left_of_it() -> None:
    lr, temperature = torch.tensor([0.4, 0.3, 0.2]), torch.tensor([0.0, 0.5, 1.0])
    clock = DeviceSchedule(Schedule(lr, temperature, 0, (3,), (3,), 1.0), torch.device("cpu"))
    for start, scale in ((0, 1.0), (1, 0.5)):
        clock.set(start, scale)
        for step in range(start, 3):
            clock.look_up()
            assert int(clock.step) == step
            assert float(clock.lr) == pytest.approx(float(lr[step]) * scale)
            assert float(clock.temperature) == pytest.approx(float(temperature[step]))
            assert clock.host_lr(step) == pytest.approx(float(clock.lr))
            clock.tick()


def test_what_is_observed_are_the_losses_in_order_and_the_samplers_quantiles() -> None:
    param = torch.nn.Parameter(torch.zeros(101))
    sampler = ATMC([param], measure_every=1)
    param.grad = torch.zeros(101)
    sampler.step()
    sampler.state[param]["thermostat"].copy_(torch.arange(101.0).flip(0))
    seen = observe(torch.tensor([4.0, 5.0, 2.0, 3.0]), sampler, 2, 4)  # a ring: steps 4 and 5 came round
    assert seen.losses() == [2.0, 3.0, 4.0, 5.0]
    readings = seen.readings()
    assert [readings[f"thermostat_q{q}"] for q in ("01", "50", "99")] == [1.0, 50.0, 99.0]
    assert readings["kinetic_temperature"] == float(sampler.kinetic_temperature())
