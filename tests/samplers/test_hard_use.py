"""What people do to optimizers: copy, pickle, convert and move them, and load what does not fit."""

from __future__ import annotations

import collections
import copy
import io
import math
import os
import pickle
import time

import numpy as np
import pytest
import torch

import atmc


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_goes_on_as_the_original(make, kit, how):
    params = kit.problem(large=False)
    sampler = make(params)
    kit.run(sampler, params, 3)
    if how == "deepcopy":
        other, others = copy.deepcopy((sampler, params))
    else:
        buffer = io.BytesIO()
        pickle.dump((sampler, params), buffer)
        buffer.seek(0)
        other, others = pickle.load(buffer)
    kit.run(sampler, params, 3, start=3)
    kit.run(other, others, 3, start=3)
    assert same(kit.snapshot(sampler, params), kit.snapshot(other, others))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_made_under_a_scheduler_steps_itself(make, kit, how):
    """A scheduler replaces `step` by a function that knows the original: the copy must not take it along."""
    params = kit.problem(large=False)
    sampler = make(params)
    schedule = atmc.CyclicCosine(sampler, cycle=5)
    kit.run(sampler, params, 2)
    schedule.step()
    other, others = (
        copy.deepcopy((sampler, params)) if how == "deepcopy" else pickle.loads(pickle.dumps((sampler, params)))
    )
    before = kit.snapshot(sampler, params)
    kit.run(other, others, 3, start=2)
    assert same(before, kit.snapshot(sampler, params))
    kit.run(sampler, params, 3, start=2)
    assert same(kit.snapshot(sampler, params), kit.snapshot(other, others))
    schedule.step()  # the original is still known to its scheduler


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_a_graph_from_before_the_step_is_known_to_be_stale(make, backend):
    """As with any optimizer: its gradients would be of weights that are no longer there."""
    p = torch.nn.Parameter(torch.ones(3))
    sampler = make([p], backend=backend)
    energy = p.square().sum()
    energy.backward(retain_graph=True)
    sampler.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        energy.backward()


@pytest.mark.parametrize("how", ["clear", "replace", "one", "emptied"])
def test_a_state_that_was_taken_away_begins_anew(make, kit, how):
    """People reset optimizers this way; the flat buffers must not go on behind an empty `state`."""
    params = kit.problem(large=False)
    sampler = make(params)
    kit.run(sampler, params, 3)
    kept = sampler.state_dict()
    reset = params[:1] if how in ("one", "emptied") else params
    if how == "clear":
        sampler.state.clear()
    elif how == "replace":
        sampler.state = collections.defaultdict(dict)
    elif how == "one":
        del sampler.state[params[0]]
    else:
        sampler.state[params[0]] = {}
    state = sampler.state_dict()
    fresh = make(kit.problem(large=False)).state_dict()["state"]
    for i, p in enumerate(params):
        for slot in sampler.slots:
            shared = slot == "thermostat" and sampler.shared_thermostat
            new = len(reset) == len(params) if shared else any(p is q for q in reset)
            assert torch.equal(state["state"][i][slot], (fresh if new else kept["state"])[i][slot])
    twins = kit.problem(large=False)
    twin = make(twins)
    twin.load_state_dict(state)
    for p, q in zip(params, twins, strict=True):
        q.data.copy_(p.data)
    kit.run(sampler, params, 3, start=3)
    kit.run(twin, twins, 3, start=3)
    assert same(kit.snapshot(sampler, params), kit.snapshot(twin, twins))


def test_a_state_can_be_loaded_where_it_was_taken_away(make, kit):
    """It ended in a KeyError."""
    params = kit.problem(large=False)
    sampler = make(params)
    kit.run(sampler, params, 3)
    kept, before = sampler.state_dict(), kit.snapshot(sampler, params)
    sampler.state.clear()
    sampler.load_state_dict(kept)
    assert same(before, kit.snapshot(sampler, params))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_begins_anew_where_the_original_does(kit, how):
    """It had the momenta that were taken away from the original."""
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params, lr=0.05)
    kit.run(sampler, params, 3)
    sampler.state.clear()
    other, others = (
        copy.deepcopy((sampler, params)) if how == "deepcopy" else pickle.loads(pickle.dumps((sampler, params)))
    )
    kit.run(sampler, params, 2, start=3)
    kit.run(other, others, 2, start=3)
    assert same(kit.snapshot(sampler, params), kit.snapshot(other, others))


def test_a_state_put_in_by_hand_must_fit(kit):
    """A number went into every momentum, and a wrong shape was an error about "tensor a" and "tensor b"."""
    params = kit.problem(large=False)
    sampler = atmc.SGHMC(params, lr=0.05)
    kit.run(sampler, params, 2)
    right = torch.full_like(params[0], 0.5)
    for wrong in (0.5, torch.zeros(2, 2, 2)):
        sampler.state[params[0]] = {"momentum": wrong}
        with pytest.raises(ValueError, match=r"momentum is a tensor of shape \["):
            kit.run(sampler, params, 1, start=2)
    sampler.state[params[0]] = {"momentum": right}
    assert torch.equal(sampler.state_dict()["state"][0]["momentum"], right)


def test_a_state_saved_after_a_conversion_has_its_readings(make):
    """Saving laid the state out anew, without them."""
    p = torch.nn.Parameter(torch.ones(3))
    sampler = make([p])
    p.grad = torch.ones(3)
    sampler.step()
    before = sampler.state_dict()["sampler"]["readings"]
    p.data, p.grad = p.data.double(), None
    after = sampler.state_dict()["sampler"]["readings"]
    assert before.isfinite().any()
    torch.testing.assert_close(after, before, equal_nan=True)


def test_momenta_that_begin_anew_are_drawn_anew(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params, lr=0.05, momentum_init="law")
    first = sampler.state[params[1]]["momentum"].clone()
    kit.run(sampler, params, 3)
    sampler.state.clear()
    again = sampler.state_dict()["state"][1]["momentum"]
    assert not torch.allclose(first, again)
    assert again.std() > 0.5


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
@pytest.mark.parametrize("change", ["replace", "append", "remove", "group", "no group"])
def test_parameters_that_were_changed_by_hand_are_refused(make, kit, backend, change):
    params = kit.problem(large=False)
    sampler = make([{"params": params[:3]}, {"params": params[3:]}], backend=backend)
    kit.run(sampler, params, 2)
    before = kit.snapshot(sampler, params)
    groups = sampler.param_groups
    if change == "replace":
        groups[0]["params"][0] = torch.nn.Parameter(torch.zeros(5))
    elif change == "append":
        groups[0]["params"].append(torch.nn.Parameter(torch.zeros(5)))
    elif change == "remove":
        groups[0]["params"].pop()
    elif change == "group":
        groups[1] = {**groups[1], "lr": 0.01}
    else:
        groups.pop()
    with pytest.raises(ValueError, match=r"by hand: .*add_param_group"):
        kit.run(sampler, params, 1, start=2)
    assert same(before, kit.snapshot(sampler, params))


def test_a_parameter_that_is_there_twice_is_refused():
    p = torch.nn.Parameter(torch.ones(3))
    with pytest.warns(UserWarning, match="duplicate"), pytest.raises(ValueError, match="is there twice"):
        atmc.ATMC([p, p])


def test_a_sampler_made_in_inference_mode_steps_outside_it(make, kit):
    params = kit.problem(large=False)
    with torch.inference_mode():
        sampler = make(params)
    kit.run(sampler, params, 2)
    sampler.load_state_dict(sampler.state_dict())
    kit.run(sampler, params, 1, start=2)


@pytest.mark.parametrize("change", ["double", "channels_last", "view"])
def test_parameters_may_be_converted_between_steps(make, kit, change):
    """The state follows: the same elements keep their momenta, and nothing outside a view is touched."""
    results = []
    for converted in (False, True):
        params = [torch.nn.Parameter(torch.arange(96.0).reshape(4, 6, 2, 2) / 50.0)]
        sampler = make(params)
        kit.run(sampler, params, 3)
        frame = torch.full((4, 9, 2, 2), 7.0)
        if converted and change == "double":
            params[0].data = params[0].data.double()
        elif converted and change == "channels_last":
            params[0].data = params[0].data.contiguous(memory_format=torch.channels_last)
        elif converted:
            frame[:, :6] = params[0].data
            params[0].data = frame[:, :6]
        for group in sampler.param_groups:  # without noise, whose place depends on the layout
            group["temperature"] = 0.0
        kit.run(sampler, params, 1, start=3)
        results.append([t.float() for t in kit.snapshot(sampler, params)])
        assert torch.equal(frame[:, 6:], torch.full((4, 3, 2, 2), 7.0))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_skip_leaves_the_step_out_and_tells(make, kit, backend):
    params = kit.problem(large=False)
    sampler = make([(f"layer.{i}", p) for i, p in enumerate(params)], backend=backend, nonfinite="skip")
    kit.run(sampler, params, 2)
    before = kit.snapshot(sampler, params)
    kit.set_gradients(params, 2)
    params[1].grad[0, 0] = math.inf
    sampler.step()
    assert same(before, kit.snapshot(sampler, params))
    with pytest.raises(RuntimeError, match=r"layer\.1"):
        sampler.check()
    sampler.check()
    kit.run(sampler, params, 1, start=3)
    assert not torch.equal(before[1], params[1])


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_a_skipped_step_leaves_no_second_half_to_come(kit, backend):
    """Strang: the half step still due is that of the last step taken, whatever step size the skipped one had."""
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params, lr=0.05, friction=1.0, integrator="strang", backend=backend, nonfinite="skip")
    kit.run(sampler, params, 2)
    sampler.param_groups[0]["lr"] = 0.01
    kit.set_gradients(params, 2)
    params[0].grad[0] = math.nan
    sampler.step()
    assert sampler.state_dict()["sampler"]["last_lr"] == [0.05]
    kit.run(sampler, params, 1, start=3)
    assert sampler.state_dict()["sampler"]["last_lr"] == [0.01]


def test_shared_thermostat_survives_new_parameters(kit):
    params = kit.problem(large=False)
    sampler = atmc.SGNHT(params[:2], lr=0.1, friction=1.0, thermostat="scalar", momentum_init="law")
    kit.run(sampler, params[:2], 5)
    before = float(sampler.state[params[0]]["thermostat"])
    extra = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    sampler.add_param_group({"params": [params[2], extra]})
    assert before != 0.0
    for p in (params[0], params[2], extra):
        assert float(sampler.state[p]["thermostat"]) == pytest.approx(before)
    extra.grad = torch.ones(4, dtype=torch.float64)
    kit.run(sampler, params[:3], 3, start=5)
    assert float(sampler.state[extra]["thermostat"]) == pytest.approx(
        float(sampler.state[params[0]]["thermostat"]), rel=1e-6
    )


def test_a_shared_thermostat_starts_at_one_value(kit):
    """Groups that ask for different ones are refused, when they come and later."""
    params = kit.problem(large=False)
    groups = [{"params": params[:2], "thermostat_init": 2.0}, {"params": params[2:], "thermostat_init": -1.0}]
    with pytest.raises(ValueError, match=r"thermostat_init of group 1 is -1 and that of group 0 2"):
        atmc.SGNHT(groups, thermostat="scalar")
    assert atmc.SGNHT(groups, thermostat="element").state[params[2]]["thermostat"] == -1.0
    sampler = atmc.SGNHT(params[:2], thermostat="scalar", thermostat_init=2.0)
    with pytest.raises(ValueError, match="thermostat_init of group 1"):
        sampler.add_param_group({"params": params[2:], "thermostat_init": 0.0})
    assert len(sampler.param_groups) == 1
    assert set(sampler.state) == set(params[:2])


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_a_shared_thermostat_is_one_number_in_every_precision(kit, backend):
    """From the start (0.1 is not the same number in all precisions), along the way, and after loading."""
    params = [torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(4, dtype=torch.float64))]
    options = {"lr": 0.1, "friction": 1.0, "momentum_init": "law", "thermostat": "scalar", "backend": backend}
    sampler = atmc.SGNHT(params, thermostat_init=0.1, **options)

    def one():
        return {float(state["thermostat"]) for state in sampler.state.values()}

    assert len(one()) == 1
    for step in range(20):
        kit.run(sampler, params, 1, start=step)
        assert len(one()) == 1
    state, before = sampler.state_dict(), one()
    state["state"][1]["thermostat"] += 1e-9  # as states had it when each precision kept a sum of its own
    sampler.load_state_dict(state)
    assert one() == before
    state["state"][1]["thermostat"] += 1.0
    with pytest.raises(ValueError, match="thermostat is to be one for all"):
        sampler.load_state_dict(state)
    assert one() == before


@pytest.mark.parametrize(
    ("cls", "first", "second"),
    [
        (atmc.SGHMC, {"noise_estimate": 0.5}, {"noise_estimate": 0.0}),
        (atmc.ATMC, {"integrator": "leapfrog-frozen", "speed_limit": 0.5}, {"speed_limit": 9.0}),
        (atmc.SGLD, {"preconditioner": "rmsprop", "decay": 0.5}, {"preconditioner": "rmsprop", "epsilon": 1.0}),
    ],
)
def test_a_state_carries_its_options(kit, cls, first, second):
    noise = {} if cls is atmc.SGLD else {"friction": 1.0}
    params = kit.problem(large=False)
    sampler = cls(params, lr=0.05, **noise, **first)
    kit.run(sampler, params, 2)
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = cls(others, lr=0.01, **noise, **second)
    other.load_state_dict(sampler.state_dict())
    kit.run(sampler, params, 2, start=2)
    kit.run(other, others, 2, start=2)
    assert same(kit.snapshot(sampler, params), kit.snapshot(other, others))


def test_states_of_other_kinds_are_refused(kit):
    params = kit.problem(large=False)
    fused, strang = atmc.ATMC(params), atmc.ATMC(kit.problem(large=False), integrator="strang")
    with pytest.raises(ValueError, match="strang"):
        strang.load_state_dict(fused.state_dict())
    with pytest.raises(ValueError, match="slots"):
        atmc.SGLD(params).load_state_dict(atmc.SGLD(params, preconditioner="rmsprop").state_dict())
    for damage in (
        lambda s: s["sampler"].pop("step"),
        lambda s: s["param_groups"][0].update(mass=-1.0),
        lambda s: s["param_groups"][0].pop("friction"),
        lambda s: s["state"][0].update(momentum=3.0),
    ):
        state = fused.state_dict()
        damage(state)
        fused.param_groups[0]["lr"] = 0.123
        before = kit.snapshot(fused, params)
        with pytest.raises(ValueError, match=r"."):
            fused.load_state_dict(state)
        assert fused.param_groups[0]["lr"] == 0.123
        assert same(before, kit.snapshot(fused, params))


def test_a_state_that_lost_the_samplers_own_part_is_told(kit):
    sampler = atmc.ATMC(kit.problem(large=False))
    state = {key: value for key, value in sampler.state_dict().items() if key != "sampler"}
    with pytest.raises(ValueError, match=r"not of ATMC \(or has lost its 'sampler' part"):
        sampler.load_state_dict(state)


def test_saved_tensors_are_copies(kit):
    lr = torch.tensor(0.05)
    sampler = atmc.ATMC(kit.problem(large=False), lr=lr)
    saved = sampler.state_dict()
    lr.fill_(0.3)
    assert float(saved["param_groups"][0]["lr"]) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": torch.tensor(math.nan)},
        {"temperature": torch.tensor(-1.0)},
        {"temperature": torch.tensor([1.0, 2.0])},
        {"mass": torch.tensor([2.0])},
        {"mass": [-torch.ones(3)]},
        {"thermostat_init": math.nan},
        {"momentum_init": "foo"},
        {"measure_every": 2.5},
        {"seed": True},
    ],
)
def test_more_bad_values_are_named(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        atmc.ATMC([torch.nn.Parameter(torch.zeros(3))], **options)


def test_a_group_that_cannot_be_laid_out_leaves_no_trace(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params[:2])
    with pytest.raises(ValueError, match="temperature"):
        sampler.add_param_group({"params": params[2:], "temperature": torch.tensor([1.0, 2.0]), "momentum_init": "law"})
    assert len(sampler.param_groups) == 1
    assert set(sampler.state) == set(params[:2])
    kit.run(sampler, params[:2], 1)


def test_numbers_of_numpy_are_numbers(kit):
    sampler = atmc.ATMC(kit.problem(large=False), lr=np.float32(0.01), mass=np.float64(2.0), seed=np.int64(3))
    buffer = io.BytesIO()
    torch.save(sampler.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["sampler"]["seed"] == 3


def test_speeds_and_mass_exclude_each_other():
    with pytest.raises(ValueError, match="mass"):
        atmc.ATMC.from_speeds([torch.nn.Parameter(torch.zeros(1))], lr=1e-3, speed=1e-3, mass=5.0)


def test_complex_gradient_is_refused():
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad_dtype = None
    p.grad = torch.zeros(3, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="complex"):
        atmc.ATMC([("weight", p)]).step()


def test_only_atmc_has_silent_elements_and_intervals_count_what_was_measured():
    p = torch.nn.Parameter(torch.zeros(10))
    big = torch.nn.Parameter(torch.zeros(100_000))
    sampler = atmc.SGNHT([p, big], lr=0.01, friction=1.0, thermostat_init=5.0, momentum_init="law")
    p.grad = torch.zeros(10)
    sampler.step()
    readings = sampler.readings()
    assert readings.silent == 0.0
    assert readings.low < 0.3 < 2.5 < readings.high
    empty = torch.nn.Parameter(torch.zeros(0))
    empty.grad = torch.zeros(0)
    nothing = atmc.ATMC([empty])
    nothing.step()
    assert math.isnan(nothing.readings().kinetic)


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_empty_parameters_are_no_trouble(backend):
    empty, other = torch.nn.Parameter(torch.zeros(0, 3)), torch.nn.Parameter(torch.ones(2))
    for p in (empty, other):
        p.grad = torch.ones_like(p)
    sampler = atmc.ATMC([empty, other], mass=[torch.ones(0, 3), torch.ones(2)], lr=0.1, backend=backend)
    sampler.step()
    assert other.isfinite().all()
    alone = atmc.SGNHT([empty], thermostat="scalar", lr=0.1, backend=backend)
    alone.step()
    assert float(alone.state[empty]["thermostat"]) == 0.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_step():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        p = torch.nn.Parameter(torch.zeros(300_000))
        p.grad = torch.ones_like(p)
        sampler = atmc.ATMC([p])
        sampler.step()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(2)
            sampler.step()
            os._exit(7)
        for _ in range(200):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert os.waitstatus_to_exitcode(status) == 7
                return
            time.sleep(0.05)
        os.kill(child, 9)
        pytest.fail("the child hung")
    finally:
        torch.set_num_threads(before)
