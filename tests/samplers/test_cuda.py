"""On a GPU: the Triton kernel is the same sampler, inside a graph too, and never waits for the host."""

from __future__ import annotations

import math

import pytest
import torch

import atmc
from atmc.samplers import fused_triton

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def assert_close(left, right, tolerance):
    for a, b in zip(left, right, strict=True):
        scale = max(float(a.abs().max()), 1e-3)
        assert float((a.double() - b.double()).abs().max()) <= tolerance * scale


def test_triton_is_what_runs(kit):
    params = kit.problem("cuda")
    sampler = atmc.ATMC(params)
    assert sampler._choose_backend(sampler._shards[0]) is fused_triton.fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bodies_agree(make, kit, dtype):
    results, kinetic = [], []
    for backend in ("single", "foreach", "fused"):
        params = kit.problem("cuda", dtype)
        sampler = make(params, backend=backend, measure_every=1)
        kit.run(sampler, params, 8 if dtype != torch.bfloat16 else 1)  # there, roundings soon part ways
        results.append(kit.snapshot(sampler, params))
        kinetic.append(float(sampler.kinetic_temperature()))
    tolerance = {torch.float32: 5e-5, torch.float64: 1e-6, torch.bfloat16: 1e-2}[dtype]
    for other in results[1:]:
        assert_close(results[0], other, tolerance)
    if not math.isnan(kinetic[0]) and dtype != torch.bfloat16:
        assert kinetic == pytest.approx([kinetic[0]] * 3, rel=1e-4)


def test_masses_per_element(kit):
    results = []
    for backend in ("single", "fused"):
        params = kit.problem("cuda")
        mass = [
            torch.rand(p.shape, generator=torch.Generator().manual_seed(i)).cuda() + 0.5 for i, p in enumerate(params)
        ]
        sampler = atmc.ATMC(params, lr=0.05, friction=1.0, speed_limit=0.7, mass=mass, backend=backend)
        kit.run(sampler, params, 6)
        results.append(kit.snapshot(sampler, params))
    assert_close(*results, 5e-5)


def test_repeats_bit_for_bit(make, kit):
    results = []
    for _ in range(2):
        params = kit.problem("cuda")
        sampler = make(params)
        kit.run(sampler, params, 6)
        results.append(kit.snapshot(sampler, params))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_resume_is_bit_exact_and_crosses_devices(make, kit):
    params = kit.problem("cuda")
    sampler = make(params)
    kit.run(sampler, params, 4)
    saved, values = sampler.state_dict(), [p.detach().clone() for p in params]
    kit.run(sampler, params, 4, start=4)
    for route in ("cuda", "cpu"):
        again = kit.problem("cuda")
        for p, v in zip(again, values, strict=True):
            p.data.copy_(v)
        state = saved
        if route == "cpu":  # CUDA → CPU → CUDA without a step in between changes nothing
            there = kit.problem("cpu")
            middle = make(there)
            middle.load_state_dict(saved)
            state = middle.state_dict()
        restored = make(again, seed=99)
        restored.load_state_dict(state)
        kit.run(restored, again, 4, start=4)
        assert all(
            torch.equal(a, b) for a, b in zip(kit.snapshot(sampler, params), kit.snapshot(restored, again), strict=True)
        )


def test_graph_replays_are_the_eager_chain(make, kit):
    """Twelve replays of one captured step equal twelve eager ones, with a learning rate that changes on the device."""

    def chain(captured):
        params = kit.problem("cuda")
        lr = torch.tensor(0.05, device="cuda")
        sampler = make(params, lr=lr)
        targets = [
            torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).cuda() for i, p in enumerate(params)
        ]
        for p in params:
            p.grad = torch.zeros_like(p)

        def step():
            for p, t in zip(params, targets, strict=True):
                p.grad.copy_(p.detach() - t)
            sampler.step()
            lr.mul_(0.9)

        done = 2
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(done):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            for _ in range(12):
                graph.replay()
        else:
            for _ in range(12):
                step()
        torch.cuda.synchronize()
        return [*kit.snapshot(sampler, params), sampler.kinetic_temperature()], int(
            sampler.state_dict()["sampler"]["step"]
        )

    eager, steps = chain(False)
    replayed, replayed_steps = chain(True)
    assert steps == replayed_steps == 14
    for a, b in zip(eager, replayed, strict=True):
        assert torch.equal(a, b) or (a.isnan().all() and b.isnan().all())


def test_capture_with_fresh_gradients():
    """Gradients allocated inside the capture have addresses of their own, and an eager step in between has others."""

    def chain(captured):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64).cuda()
        x = torch.randn(32, 64, device="cuda")
        sampler = atmc.ATMC(model.parameters(), lr=0.01, friction=1.0)

        def step():
            sampler.zero_grad(set_to_none=True)
            model(x).square().sum().backward()
            sampler.step()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph, stream=stream):
                step()
        with torch.cuda.stream(stream):
            for i in range(20):
                if captured and i % 5:
                    graph.replay()
                else:
                    step()
        torch.cuda.synchronize()
        return model.weight.detach().clone(), int(sampler.state_dict()["sampler"]["step"])

    eager, replayed = chain(False), chain(True)
    assert eager[1] == replayed[1] == 22
    torch.testing.assert_close(eager[0], replayed[0], rtol=1e-4, atol=1e-4)


def test_step_never_synchronises(make, kit):
    params = kit.problem("cuda")
    sampler = make(params)
    kit.run(sampler, params, 2)
    kit.set_gradients(params, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler.step()
        sampler.kinetic_temperature()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nonfinite_gradient_is_skipped_on_the_device_and_told(make, kit):
    params = kit.problem("cuda")
    sampler = make([(f"layer.{i}", p) for i, p in enumerate(params)])
    kit.run(sampler, params, 2)
    before = kit.snapshot(sampler, params)
    kit.set_gradients(params, 2)
    params[3].grad[1, 1, 1, 1] = math.nan
    sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))
    with pytest.raises(RuntimeError, match=r"layer\.3 .* step 2"):
        sampler.check()
    sampler.check()  # told once
    kit.run(sampler, params, 1, start=3)
    assert not torch.equal(before[1], params[1])


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_a_skipped_step_leaves_no_second_half_to_come(kit, kind):
    """Strang: the half step still due is that of the last step taken, whatever step size the skipped one had."""
    params = kit.problem("cuda")
    first, second = (torch.tensor(h, device="cuda") if kind == "tensor" else h for h in (0.05, 0.01))
    groups = [{"params": params[:2]}, {"params": params[2:], "mass": 3.0}]
    sampler = atmc.ATMC(groups, lr=first, friction=1.0, speed_limit=0.7, integrator="strang")
    kit.run(sampler, params, 2)
    for group in sampler.param_groups:
        group["lr"] = second
    kit.set_gradients(params, 2)
    params[0].grad[0] = math.nan
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [float(h) for h in sampler.state_dict()["sampler"]["last_lr"]] == [float(first)] * 2
    kit.run(sampler, params, 1, start=3)
    assert [float(h) for h in sampler.state_dict()["sampler"]["last_lr"]] == [float(second)] * 2


def test_a_parameter_that_lost_its_gradient_has_no_reading(make, kit):
    params = kit.problem("cuda")
    sampler = make(params, measure_every=1)
    kit.run(sampler, params, 2)
    before = sampler.readings().tensors
    kit.set_gradients(params, 2)
    params[1].grad = None
    sampler.step()
    readings = sampler.readings().tensors
    assert math.isfinite(before[1].configurational)
    assert math.isnan(readings[1].kinetic)
    assert math.isnan(readings[1].configurational)
    assert math.isfinite(readings[0].configurational)
    assert readings[0].configurational != before[0].configurational


def test_noise_is_normal(kit):
    p = torch.nn.Parameter(torch.zeros(2_000_000, device="cuda"))
    sampler = atmc.SGLD([p], lr=0.5, seed=3)
    p.grad = torch.zeros_like(p)
    draws = []
    for _ in range(2):
        p.data.zero_()
        sampler.step()
        draws.append(p.detach().double().clone())
    n = p.numel()
    for x in draws:
        assert abs(float(x.mean())) < 4.9 / n**0.5
        assert abs(float((x * x).mean()) - 1) < 4.9 * (2 / n) ** 0.5
        assert abs(float((x**4).mean()) - 3) < 4.9 * (96 / n) ** 0.5
        for lag in (1, 512, 1024, 2048):
            assert abs(float((x[:-lag] * x[lag:]).mean())) < 4.9 / (n - lag) ** 0.5
    assert abs(float((draws[0] * draws[1]).mean())) < 4.9 / n**0.5


def test_masses_of_both_kinds_together(kit):
    results = []
    for backend in ("single", "fused"):
        params = kit.problem("cuda")
        mass = [torch.full_like(p, 3.0).detach() if i % 2 else 7.0 for i, p in enumerate(params)]
        sampler = atmc.ATMC(params, lr=0.05, friction=1.0, speed_limit=0.7, mass=mass, backend=backend)
        kit.run(sampler, params, 6)
        results.append(kit.snapshot(sampler, params))
    assert_close(*results, 5e-5)


def test_a_bad_step_is_forgotten_when_the_chain_is_put_back(kit):
    params = kit.problem("cuda")
    sampler = atmc.ATMC(params, lr=0.05, friction=1.0)
    kit.run(sampler, params, 1)
    saved = sampler.state_dict()
    kit.run(sampler, params, 2, start=1)
    params[0].grad[0] = math.nan
    sampler.step()  # step 3 is bad
    sampler.load_state_dict(saved)
    kit.run(sampler, params, 2, start=1)
    before = kit.snapshot(sampler, params)
    kit.run(sampler, params, 1, start=3)  # the same number, and nothing wrong with it now
    sampler.check()
    assert not torch.equal(before[1], params[1])


def test_shards_of_two_precisions_skip_together(kit):
    params = [torch.nn.Parameter(torch.ones(100, device="cuda", dtype=d)) for d in (torch.float32, torch.bfloat16)]
    sampler = atmc.ATMC([("a", params[0]), ("b", params[1])], lr=0.05, friction=1.0)
    kit.run(sampler, params, 1)
    before = kit.snapshot(sampler, params)
    kit.set_gradients(params, 1)
    params[1].grad[0] = math.nan
    sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))
    with pytest.raises(RuntimeError, match="b was not finite"):
        sampler.check()


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("kind", ["ATMC", "SGNHT", "SGHMC"])
def test_momentum_with_a_step_size_on_the_device(kit, kind, rank):
    """The friction that leaves as much momentum at every step is worked out by the kernel: as with numbers."""

    def chain(device_lr):
        params = kit.problem("cuda")
        sampler = getattr(atmc, kind)(params, lr=0.05, friction=1.5, momentum_init="law", noise_rank=rank)
        group = sampler.param_groups[0]
        group["momentum"] = 0.9
        for i in range(8):
            value = 0.05 * 0.7**i
            group["lr"] = torch.tensor(value, device="cuda") if device_lr else float(torch.tensor(value))
            kit.run(sampler, params, 1, start=i)
        return kit.snapshot(sampler, params)

    assert_close(chain(True), chain(False), 1e-5 if rank else 1e-6)
