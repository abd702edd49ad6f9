"""Saving, restoring and reproducing: bit for bit, whatever else draws random numbers."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

import atmc
from atmc.samplers.fused_native import fill_normal, library
from atmc.samplers.random_stream import BLOCK, QUARTER, normals, philox, stream_key


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_resume_is_bit_exact(make, kit, backend):
    params = kit.problem(large=False)
    sampler = make(params, backend=backend)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(sampler, 0.9)
    for step in range(4):
        kit.run(sampler, params, 1, start=step)
        scheduler.step()
    buffer = io.BytesIO()
    torch.save([sampler.state_dict(), scheduler.state_dict(), [p.detach().clone() for p in params]], buffer)
    temperature = float(sampler.kinetic_temperature())
    for step in range(4, 9):
        kit.run(sampler, params, 1, start=step)
        scheduler.step()

    buffer.seek(0)
    saved, schedule, values = torch.load(buffer, weights_only=True)
    again = kit.problem(large=False)
    for p, v in zip(again, values, strict=True):
        p.data.copy_(v)
    restored = make(again, backend=backend, seed=99)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(restored, 0.9)
    restored.load_state_dict(saved)
    scheduler.load_state_dict(schedule)
    assert repr(float(restored.kinetic_temperature())) == repr(temperature)
    torch.randn(100)
    for step in range(4, 9):
        kit.run(restored, again, 1, start=step)
        scheduler.step()
    assert same(kit.snapshot(sampler, params), kit.snapshot(restored, again))
    assert repr(float(restored.kinetic_temperature())) == repr(float(sampler.kinetic_temperature()))


def test_a_sampler_holds_two_numbers_a_parameter(kit):
    """Momentum and thermostat; SGHMC has no thermostat, SGLD neither."""
    settings = {"lr": 1e-3, "mass": 11.1, "friction": 105.4}
    for sampler_class, slots in ((atmc.ATMC, 2), (atmc.SGNHT, 2), (atmc.SGHMC, 1), (atmc.SGLD, 0)):
        params = kit.problem(large=False)
        sampler = sampler_class(params, **(settings if slots else {"lr": 1e-3}))
        kit.run(sampler, params, 2)
        held = sum(flat.numel() for shard in sampler._shards for flat in shard.flat.values())
        assert held == slots * sum(p.numel() for p in params), sampler_class.__name__


def test_state_is_a_copy_of_the_moment(make, kit):
    params = kit.problem(large=False)
    sampler = make(params)
    kit.run(sampler, params, 2)
    saved = sampler.state_dict()
    before = copy.deepcopy(saved)
    kit.run(sampler, params, 1, start=2)
    for i, state in saved["state"].items():
        for slot, value in state.items():
            assert torch.equal(value, before["state"][i][slot])
    assert int(saved["sampler"]["step"]) == 2


def test_state_of_low_precision_parameters_stays_float32(kit):
    """PyTorch's own loading would round states to the parameters' precision."""
    params = kit.problem(dtype=torch.bfloat16, large=False)
    sampler = atmc.ATMC(params, lr=0.05, friction=1.0)
    kit.run(sampler, params, 3)
    other = atmc.ATMC(kit.problem(dtype=torch.bfloat16, large=False), lr=0.05, friction=1.0)
    other.load_state_dict(sampler.state_dict())
    for a, b in zip(sampler.state.values(), other.state.values(), strict=True):
        assert b["momentum"].dtype == torch.float32
        assert torch.equal(a["momentum"], b["momentum"])


def test_seed_decides_whatever_else_draws(make, kit):
    results = []
    for disturb in (False, True):
        torch.manual_seed(0 if disturb else 123)
        np.random.seed(0)  # noqa: NPY002 - the point is that the global state does not matter
        params = kit.problem(large=False)
        sampler = make(params, momentum_init="law") if "momentum" in make([*params]).slots else make(params)
        for step in range(5):
            if disturb:
                torch.randn(17)
                np.random.rand(3)  # noqa: NPY002
            kit.run(sampler, params, 1, start=step)
        results.append(kit.snapshot(sampler, params))
    assert same(*results)
    params = kit.problem(large=False)
    sampler = make(params, seed=8)
    kit.run(sampler, params, 5)
    if sampler.param_groups[0]["temperature"] == 0:
        return  # nothing to draw
    assert not same(results[0][:2], kit.snapshot(sampler, params)[:2])


def test_noise_is_normal_and_independent_between_steps_pieces_and_seeds():
    """Means, variances, fourth moments and cross-correlations at 4.9 standard errors: below 1e-6 each by chance."""
    n = 200_000
    for dtype in (torch.float32, torch.float64):
        streams = []
        for key, stream, step, block in ((0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 500), (0, 1, 0, 0), (1, 0, 0, 0)):
            out = torch.empty(n, dtype=dtype)
            fill_normal(out, block, stream_key(key), step, stream)
            streams.append(out.double())
        for x in streams:
            assert abs(float(x.mean())) < 4.9 / n**0.5
            assert abs(float((x * x).mean()) - 1.0) < 4.9 * (2.0 / n) ** 0.5
            assert abs(float((x**4).mean()) - 3.0) < 4.9 * (96.0 / n) ** 0.5
            assert abs(float((x[:-1] * x[1:]).mean())) < 4.9 / n**0.5
            for lag in (QUARTER, 2 * QUARTER, BLOCK):  # where the normals of one Philox call, and of one block, lie
                assert abs(float((x[:-lag] * x[lag:]).mean())) < 4.9 / (n - lag) ** 0.5
        for i, x in enumerate(streams):
            for y in streams[:i]:
                assert abs(float((x * y).mean())) < 4.9 / n**0.5


def test_philox_is_the_published_one():
    """The known answers of the authors' library for all-zero and all-one input."""
    zero = [int(w[0]) for w in philox(np.zeros(1, np.uint64), 0, 0, 0, 0)]
    assert zero == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = [int(w[0]) for w in philox(np.full(1, 2**32 - 1, np.uint64), *[2**32 - 1] * 3, 2**64 - 1)]
    assert ones == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.skipif(library() is None, reason="the compiled step was not built: no C compiler at installation")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_noise_is_the_reference(dtype):
    out = torch.empty(5000, dtype=dtype)
    fill_normal(out, 3, stream_key(1), 2**33 + 7, 5)
    expected = normals(5000, 3, stream_key(1), 2**33 + 7, 5, dtype)
    assert float((out - expected).abs().max()) < (2e-5 if dtype == torch.float32 else 1e-13)


def test_equal_seeds_do_not_meet(kit):
    """The sampler's noise is not the global generator's under the same seed, at any lag up to 50 draws."""
    n = 20_000
    torch.manual_seed(5)
    outside = torch.randn(n + 100, dtype=torch.float64)
    p = torch.nn.Parameter(torch.zeros(n, dtype=torch.float64))
    sampler = atmc.SGLD([p], lr=0.5, seed=5)
    p.grad = torch.zeros_like(p)
    sampler.step()
    for lag in range(50):
        assert abs(float((p.detach() * outside[lag : lag + n]).mean())) < 4.9 / n**0.5


def test_loading_what_does_not_fit_changes_nothing(make, kit):
    params = kit.problem(large=False)
    sampler = make(params)
    kit.run(sampler, params, 2)
    good = sampler.state_dict()
    before = kit.snapshot(sampler, params)
    wrong_class = copy.deepcopy(good)
    wrong_class["sampler"]["class"] = "Other"
    with pytest.raises(ValueError, match="Other"):
        sampler.load_state_dict(wrong_class)
    with pytest.raises(ValueError, match="not of"):
        sampler.load_state_dict({"state": {}, "param_groups": []})
    if sampler.slots:
        torn = copy.deepcopy(good)
        del torn["state"][1][sampler.slots[0]]
        with pytest.raises(ValueError, match="parameter 1"):
            sampler.load_state_dict(torn)
        bent = copy.deepcopy(good)
        bent["state"][1][sampler.slots[0]] = torch.zeros(3, 1)
        with pytest.raises(ValueError, match="shape"):
            sampler.load_state_dict(bent)
    assert same(before, kit.snapshot(sampler, params))


def test_a_later_group_keeps_what_is_there(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params[:3], lr=0.05, friction=1.0, thermostat_init=2.0)
    kit.run(sampler, params[:3], 3)
    kept = sampler.state[params[0]]["momentum"].clone()
    sampler.add_param_group({"params": params[3:], "thermostat_init": 5.0, "momentum_init": "law"})
    assert torch.equal(sampler.state[params[0]]["momentum"], kept)
    assert float(sampler.state[params[3]]["thermostat"].mean()) == 5.0
    assert float(sampler.state[params[3]]["momentum"].std()) > 0.0
    kit.run(sampler, params, 2, start=3)


def test_zero_is_a_thermostat_value_like_any_other(kit):
    for start in (0.0, 3.0, -1.0):
        params = kit.problem(large=False)
        sampler = atmc.SGNHT(params, lr=0.05, friction=1.0, thermostat_init=start)
        assert all(
            float(s["thermostat"].min()) == float(s["thermostat"].max()) == start for s in sampler.state.values()
        )


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_what_is_assigned_to_the_state_is_used(backend):
    p = torch.nn.Parameter(torch.zeros(3))
    sampler = atmc.ATMC([p], lr=0.1, friction=0.0, temperature=0.0, speed_limit=float("inf"), mass=1.0, backend=backend)
    view = sampler.state[p]["momentum"]
    sampler.state[p]["momentum"] = torch.ones(3)
    assert sampler.state[p]["momentum"] is view
    p.grad = torch.zeros(3)
    sampler.step()
    assert torch.allclose(p.detach(), torch.full((3,), 0.1))
    with pytest.raises(ValueError, match=r"momentum is a tensor of shape \[3\]"):
        sampler.state[p]["momentum"] = torch.ones(2)
    with pytest.raises(ValueError, match="thermostat"):
        sampler.state[p]["thermostat"] = 0.5
    assert torch.equal(copy.deepcopy(sampler).state_dict()["state"][0]["momentum"], view)
