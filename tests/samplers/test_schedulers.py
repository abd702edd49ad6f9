"""PyTorch's schedulers, with the arguments they have; and the momentum that two of them cycle."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode

import atmc
from atmc.samplers.kinetic_energy import thermostat_weight

SCHEDULERS = {
    "step": lambda s: lr_scheduler.StepLR(s, 2, 0.5),
    "multistep": lambda s: lr_scheduler.MultiStepLR(s, [2, 4]),
    "constant": lambda s: lr_scheduler.ConstantLR(s),
    "linear": lambda s: lr_scheduler.LinearLR(s),
    "exponential": lambda s: lr_scheduler.ExponentialLR(s, 0.9),
    "polynomial": lambda s: lr_scheduler.PolynomialLR(s),
    "cosine": lambda s: lr_scheduler.CosineAnnealingLR(s, 5),
    "restarts": lambda s: lr_scheduler.CosineAnnealingWarmRestarts(s, 3),
    "lambda": lambda s: lr_scheduler.LambdaLR(s, lambda t: 1 / (1 + t)),
    "multiplicative": lambda s: lr_scheduler.MultiplicativeLR(s, lambda t: 0.9),
    "sequential": lambda s: lr_scheduler.SequentialLR(
        s, [lr_scheduler.ConstantLR(s), lr_scheduler.ExponentialLR(s, 0.9)], [2]
    ),
    "chained": lambda s: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(s), lr_scheduler.StepLR(s, 2)]),
    "one cycle": lambda s: lr_scheduler.OneCycleLR(s, 0.1, total_steps=20),
    "cyclic": lambda s: lr_scheduler.CyclicLR(s, 0.001, 0.1, step_size_up=3),
}


@pytest.mark.parametrize("as_tensor", [False, True])
def test_cycles_that_explore_at_zero_and_then_sample(make, kit, as_tensor):
    seen = {}
    for explore in (0.0, 0.6):
        params = kit.problem(large=False)
        sampler = make(params, temperature=torch.tensor(0.5) if as_tensor else 0.5)
        schedule = atmc.CyclicCosine(sampler, cycle=10, explore=explore)
        group, rows = sampler.param_groups[0], []
        for step in range(20):
            rows.append((float(group["temperature"]), group["lr"]))
            assert schedule.exploring == (group["temperature"] == 0)
            kit.run(sampler, params, 1, start=step)
            schedule.step()
        seen[explore] = rows
    assert [t for t, _ in seen[0.6]] == ([0.0] * 6 + [0.5] * 4) * 2
    assert [t for t, _ in seen[0.0]] == [0.5] * 20
    assert [lr for _, lr in seen[0.6]] == [lr for _, lr in seen[0.0]]


@pytest.mark.parametrize("stop", [3, 8])
def test_a_cycle_that_explores_goes_on_where_it_stopped(make, kit, stop):
    """Saved at T = 0, or at T, and loaded into a sampler and a schedule made anew."""

    def made(params):
        sampler = make(params, temperature=0.5)
        return sampler, atmc.CyclicCosine(sampler, cycle=10, explore=0.6)

    def run(sampler, schedule, params, steps, start):
        for step in range(start, start + steps):
            kit.run(sampler, params, 1, start=step)
            schedule.step()

    whole = kit.problem(large=False)
    run(*made(whole), whole, 25, 0)
    params = kit.problem(large=False)
    sampler, schedule = made(params)
    run(sampler, schedule, params, stop, 0)
    saved = copy.deepcopy((sampler.state_dict(), schedule.state_dict()))
    sampler, schedule = made(params)
    sampler.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    run(sampler, schedule, params, 25 - stop, stop)
    assert all(torch.equal(p, q) for p, q in zip(params, whole, strict=True))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_scheduler_made_after_the_state_was_loaded_goes_on(make, kit, as_tensor):
    """A new scheduler begins a cycle; its own state has to bring back the step size and temperature of the moment."""

    def build():
        params = kit.problem(large=False)
        values = {"lr": torch.tensor(0.05), "temperature": torch.tensor(0.7)} if as_tensor else {"temperature": 0.7}
        return params, make(params, **values)

    def go(sampler, schedule, params, start):
        for step in range(start, start + 6):
            kit.set_gradients(params, step)
            sampler.step()
            schedule.step()

    params, sampler = build()
    schedule = atmc.CyclicCosine(sampler, cycle=10, explore=0.3)
    go(sampler, schedule, params, 0)
    saved = copy.deepcopy((sampler.state_dict(), schedule.state_dict()))
    twins, twin = build()
    for p, q in zip(params, twins, strict=True):
        q.data.copy_(p.data)
    go(sampler, schedule, params, 6)
    twin.load_state_dict(saved[0])
    after = atmc.CyclicCosine(twin, cycle=10, explore=0.3)
    after.load_state_dict(saved[1])
    go(twin, after, twins, 6)
    for a, b in zip(kit.snapshot(sampler, params), kit.snapshot(twin, twins), strict=True):
        assert torch.equal(a, b)


def test_a_cycle_that_waits_for_its_turn_sets_nothing_when_it_is_loaded(kit):
    params = kit.problem(large=False)
    rates = []
    for stop in (False, True):
        sampler = atmc.ATMC(params, lr=0.04)

        def build(sampler):
            cycle = atmc.CyclicCosine(sampler, cycle=4)
            return lr_scheduler.SequentialLR(sampler, [lr_scheduler.LinearLR(sampler, 0.1, total_iters=4), cycle], [4])

        schedule, found = build(sampler), []
        for step in range(8):
            kit.run(sampler, params, 1, start=step)
            schedule.step()
            found.append(sampler.param_groups[0]["lr"])
            if stop and step in (1, 5):
                saved = copy.deepcopy((sampler.state_dict(), schedule.state_dict()))
                sampler = atmc.ATMC(params, lr=0.04)
                schedule = build(sampler)
                sampler.load_state_dict(saved[0])
                schedule.load_state_dict(saved[1])
        rates.append(found)
    assert rates[0] == rates[1]


def test_groups_that_come_later_follow_the_cycle(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params[:3], lr=0.04, temperature=0.5)
    schedule = atmc.CyclicCosine(sampler, cycle=4, explore=0.5)
    kit.run(sampler, params, 1)
    schedule.step()
    sampler.add_param_group({"params": params[3:], "lr": 0.02, "temperature": 0.25})
    seen = []
    for step in range(1, 8):
        kit.run(sampler, params, 1, start=step)
        schedule.step()
        first, second = sampler.param_groups
        assert second["lr"] == pytest.approx(first["lr"] / 2)
        assert second["temperature"] == first["temperature"] / 2
        seen.append(second["temperature"])
    assert seen == [0.25, 0.25, 0.0, 0.0, 0.25, 0.25, 0.0]
    # Where the state is loaded first and the group added then, it goes on as well: that was an error about zip().
    again = atmc.ATMC(params[:3], lr=0.04, temperature=0.5)
    resumed = atmc.CyclicCosine(again, cycle=4, explore=0.5)
    resumed.load_state_dict(schedule.state_dict())
    again.add_param_group({"params": params[3:], "lr": 0.02, "temperature": 0.25})
    for each, of in ((schedule, sampler), (resumed, again)):
        kit.run(of, params, 1)
        each.step()
    for key in ("lr", "temperature"):
        assert [g[key] for g in again.param_groups] == [g[key] for g in sampler.param_groups]


def test_a_step_of_the_schedule_waits_for_no_device(kit):
    """Tensors are filled where they are: nothing is read back from them, and nothing is copied to them."""
    asked = []

    class Note(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            asked.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    given = {"lr": torch.tensor(0.05), "temperature": torch.tensor(0.7)}
    sampler = atmc.ATMC(kit.problem(large=False), **given)
    schedule = atmc.CyclicCosine(sampler, cycle=4, explore=0.5)
    for _ in range(5):
        kit.run(sampler, sampler.param_groups[0]["params"], 1)
        with Note():
            schedule.step()
    assert "fill_" in asked
    assert not {"_local_scalar_dense", "copy_", "_to_copy"} & set(asked)


def test_only_a_sampler_explores():
    param = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="group 0 has no temperature"):
        atmc.CyclicCosine(torch.optim.SGD([param], lr=0.1), cycle=10, explore=0.5)
    atmc.CyclicCosine(torch.optim.SGD([param], lr=0.1), cycle=10, hold=0.5, warmup=0.1)


@pytest.mark.parametrize(
    ("share", "wrong"),
    [
        *itertools.product(("explore", "hold", "warmup"), (1.0, -0.1, float("nan"), "half")),
        *itertools.product(("floor",), (1.1, -0.1, float("nan"), "half")),
    ],
)
def test_shares_of_a_cycle_are_below_one(share, wrong):
    with pytest.raises(ValueError, match=share):
        atmc.CyclicCosine(atmc.ATMC([torch.nn.Parameter(torch.zeros(3))]), cycle=10, **{share: wrong})


def test_a_cycle_that_warms_up_and_holds(make, kit):
    params = kit.problem(large=False)
    sampler = make(params)
    first = sampler.param_groups[0]["lr"]
    schedule = atmc.CyclicCosine(sampler, cycle=10, hold=0.5, warmup=0.3)
    found = []
    for step in range(20):
        found.append(sampler.param_groups[0]["lr"] / first)
        kit.run(sampler, params, 1, start=step)
        schedule.step()
    down = [0.5 * (1 + math.cos(math.pi * k / 5)) for k in range(1, 5)]
    assert found == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0, *down] * 2)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_torch_schedulers_work_unchanged(make, kit, name):
    params = kit.problem(large=False)
    sampler = make(params)
    if isinstance(sampler, atmc.SGLD) and name in ("one cycle", "cyclic"):
        with pytest.raises(ValueError, match="momentum"):
            SCHEDULERS[name](sampler)  # it has no momentum to be cycled: cycle_momentum=False
        return
    schedule = SCHEDULERS[name](sampler)
    for step in range(7):
        kit.run(sampler, params, 1, start=step)
        schedule.step()
    assert all(p.isfinite().all() for p in params)


def test_a_plateau_works_too(make, kit):
    params = kit.problem(large=False)
    sampler = make(params)
    schedule = lr_scheduler.ReduceLROnPlateau(sampler, patience=0)
    for step in range(4):
        kit.run(sampler, params, 1, start=step)
        schedule.step(1.0)
    assert sampler.param_groups[0]["lr"] < 0.05


KINETIC = [
    (atmc.ATMC, {}),
    (atmc.ATMC, {"speed_limit": 0.6, "integrator": "strang"}),
    (atmc.SGNHT, {"thermostat": "scalar"}),
    (atmc.SGHMC, {"noise_estimate": 0.2}),
]


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
@pytest.mark.parametrize(("cls", "options"), KINETIC)
def test_a_cycled_momentum_is_the_friction_of_the_step(kit, cls, options, backend):
    """The same steps, to the last bit, as with the noise D = −log(momentum)/lr set by hand."""
    params, by_hand = kit.problem(large=False), kit.problem(large=False)
    common = {"lr": 0.02, "friction": 1.5, "backend": backend, "measure_every": 1, **options}
    sampler, other = cls(params, **common), cls(by_hand, **common)
    schedule = lr_scheduler.OneCycleLR(sampler, 0.1, total_steps=10)
    seen = set()
    for step in range(10):
        group, mine = sampler.param_groups[0], other.param_groups[0]
        mine["lr"], mine["friction"] = group["lr"], -math.log(group["momentum"]) / group["lr"]
        seen.add(group["momentum"])
        kit.run(sampler, params, 1, start=step)
        kit.run(other, by_hand, 1, start=step)
        assert repr(sampler.readings()) == repr(other.readings())
        if step < 9:
            schedule.step()
    assert {0.95, 0.85} <= {round(m, 6) for m in seen}  # PyTorch's own two ends
    for a, b in zip(kit.snapshot(sampler, params), kit.snapshot(other, by_hand), strict=True):
        assert torch.equal(a, b)


def test_a_momentum_is_that_of_sgd(kit):
    """At T = 0: SGD with this momentum and lr = (h/m)(1 − momentum)/D."""
    params, others = kit.problem(large=False), kit.problem(large=False)
    momentum, h, m = 0.8, 0.05, 2.0
    sampler = atmc.SGHMC(params, lr=h, mass=m, friction=123.0, temperature=0.0)
    sampler.param_groups[0]["momentum"] = momentum
    sgd = torch.optim.SGD(others, lr=h / m * (1 - momentum) / (-math.log(momentum) / h), momentum=momentum)
    kit.run(sampler, params, 10)
    kit.run(sgd, others, 10)
    for a, b in zip(params, others, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_momentum_is_saved_and_restored(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params, lr=0.02, friction=1.5)
    schedule = lr_scheduler.CyclicLR(sampler, 0.01, 0.1, step_size_up=3)
    for step in range(4):
        kit.run(sampler, params, 1, start=step)
        schedule.step()
    others = copy.deepcopy(params)
    other = atmc.ATMC(others, lr=0.5, friction=7.0)
    second = lr_scheduler.CyclicLR(other, 0.01, 0.1, step_size_up=3)
    other.load_state_dict(sampler.state_dict())
    second.load_state_dict(schedule.state_dict())
    for step in range(4, 9):
        for one, ps, sch in ((sampler, params, schedule), (other, others, second)):
            kit.run(one, ps, 1, start=step)
            sch.step()
    for a, b in zip(kit.snapshot(sampler, params), kit.snapshot(other, others), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, math.nan, "0.9", True])
def test_a_momentum_that_is_none_is_refused_at_the_step(kit, bad):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params, lr=0.02, friction=1.5)
    kit.run(sampler, params, 1)
    before = kit.snapshot(sampler, params)
    sampler.param_groups[0]["momentum"] = bad
    kit.set_gradients(params, 1)
    with pytest.raises(ValueError, match="momentum of group 0"):
        sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))


def test_a_momentum_and_a_step_that_give_no_friction(kit):
    """No step, no friction; a step so small that D overflows is refused; the noise estimate still needs its room."""
    params = kit.problem(large=False)
    sampler = atmc.SGHMC(params, lr=0.02, friction=1.5, noise_estimate=1.0, momentum_init="law")
    before = kit.snapshot(sampler, params)
    sampler.param_groups[0].update(momentum=0.9, lr=0.0)
    kit.run(sampler, params, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))
    sampler.param_groups[0]["lr"] = 1e-310
    with pytest.raises(ValueError, match="lr of group 0"):
        sampler.step()
    sampler.param_groups[0]["lr"] = 0.5  # D = 0.21
    with pytest.raises(ValueError, match="less than noise_estimate"):
        sampler.step()


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_the_second_half_of_a_strang_step_has_the_size_it_began_with(backend):
    """B(h/2) A(h) B(h/2) at T = 0, in closed form, while h changes at every step; and the reading between the halves.

    The reading takes off half a kick of the step that ends there: K'(p) [p − (tanh(D h/2)/D) G].
    """
    mass, friction = 2.0, 3.0
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    how = {"mass": mass, "friction": friction, "temperature": 0.0, "integrator": "strang"}
    sampler = atmc.SGHMC([p], lr=0.4, measure_every=1, backend=backend, **how)
    theta = q = last = 0.0

    def half(q, g, h):
        return math.exp(-friction * h / 2) * q + g * math.expm1(-friction * h / 2) / friction

    for h, g in ((0.4, 1.0), (0.1, -3.0), (0.3, 0.5), (0.05, 2.0)):
        sampler.param_groups[0]["lr"] = h
        p.grad = torch.full_like(p, g)
        sampler.step()
        reading = q * (q - math.tanh(friction * last / 2) / friction * g) / mass
        q = half(half(q, g, last), g, h)
        theta, last = theta + h * q / mass, h
        assert float(sampler.state[p]["momentum"]) == pytest.approx(q, rel=1e-12)
        assert float(p) == pytest.approx(theta, rel=1e-12)
        assert float(sampler.kinetic_temperature()) == pytest.approx(reading, rel=1e-6)


@pytest.mark.parametrize("warm", [None, 0.5])
def test_a_thermostat_weighs_the_same_by_numbers_and_by_tensors(warm):
    """(h/h₀)(T₀/T), at most 1, and 0 at rest: captured steps read the tensors, and no backend on a CPU does."""
    seen = set()
    for lr, temperature in itertools.product((0.0, 0.02, 0.1, 0.4), (0.0, 0.25, 0.5, 2.0)):
        group = {"lr": lr, "temperature": temperature, "reference_lr": 0.1, "reference_temperature": warm}
        expected = 0.0 if temperature == 0 else min(1.0, lr / 0.1 * (1.0 if warm is None else warm / temperature))
        for as_tensor in itertools.product((False, True), repeat=2):
            given = {
                key: torch.tensor(group[key], dtype=torch.float64) if yes else group[key]
                for key, yes in zip(("lr", "temperature"), as_tensor, strict=True)
            }
            assert float(thermostat_weight(group | given)) == pytest.approx(expected, rel=1e-12)
        seen.add(expected)
    assert {0.0, 1.0} < seen
    assert thermostat_weight({"lr": 1.0, "temperature": 0.0, "reference_lr": None}) == 1.0
