"""The bodies are one sampler: the same noise, the same step, whatever the layout, dtype or number of threads."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import atmc
from atmc.samplers import fused_native
from atmc.samplers.tensor_list import TensorList, clamp_min

BACKENDS = ("single", "foreach", "fused")


def assert_close(left, right, tolerance):
    for a, b in zip(left, right, strict=True):
        scale = max(float(a.abs().max()), 1e-3)
        assert float((a.double() - b.double()).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bodies_agree(make, kit, dtype):
    results = []
    for backend in BACKENDS:
        params = kit.problem(dtype=dtype)
        sampler = make(params, backend=backend)
        kit.run(sampler, params, 12)
        results.append(kit.snapshot(sampler, params))
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    for other in results[1:]:
        assert_close(results[0], other, tolerance)


def test_readings_agree_between_bodies(make, kit):
    kinetic, configurational = [], []
    for backend in BACKENDS:
        params = kit.problem()
        sampler = make(params, backend=backend, measure_every=1)
        kit.run(sampler, params, 5)
        readings = sampler.readings()
        kinetic.append(readings.kinetic)
        configurational.append(readings.configurational)
    assert configurational == pytest.approx([configurational[0]] * 3, rel=1e-5)
    if math.isnan(kinetic[0]):
        assert all(math.isnan(k) for k in kinetic)
    else:
        assert kinetic == pytest.approx([kinetic[0]] * 3, rel=1e-5)


def test_a_number_on_a_device_is_not_read_back():
    """A recorded step must not wait for the device, and foreach functions of PyTorch do for some numbers."""

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func is not torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    tensors, number = [torch.randn(3, 2), torch.randn(5)], torch.tensor(0.7)
    ways = [
        lambda x: x + number,
        lambda x: x - number,
        lambda x: x * number,
        lambda x: x / number,
        lambda x: clamp_min(x, number),
    ]
    for way in ways:
        with Watched():
            found = way(TensorList(tensors))
        for each, tensor in zip(found, tensors, strict=True):
            torch.testing.assert_close(each, way(tensor))


def test_threads_do_not_change_the_result(kit):
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            params = kit.problem()
            sampler = atmc.ATMC(params, lr=0.05, friction=1.0, speed_limit=0.7, seed=3, measure_every=1)
            kit.run(sampler, params, 6)
            results.append([*kit.snapshot(sampler, params), sampler.kinetic_temperature()])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# One process imports, and is forked for each level: PyTorch reads the variable when it is first asked.
CHILDREN = """
import os, sys, torch, torch._dynamo, atmc
from atmc.samplers import fused_native

def steps(out):
    params = [torch.nn.Parameter(torch.linspace(-1, 1, n)) for n in (5, 3000)]
    sampler = atmc.ATMC(params, lr=0.05, friction=1.0, speed_limit=0.7, seed=3)
    for _ in range(5):
        for p in params:
            p.grad = p.detach().clone()
        sampler.step()
    values = [p.detach() for p in params] + [sampler.state[params[1]]["thermostat"]]
    torch.save({"name": fused_native.library()._name, "values": values}, out)

for level in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        os.environ["ATEN_CPU_CAPABILITY"] = level.lower()
        steps(os.path.join(sys.argv[1], level))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, level
"""


@pytest.mark.skipif(fused_native.library() is None, reason="the compiled step was not built: no C compiler")
def test_the_compiled_step_is_chosen_by_the_machine_that_runs_it(tmp_path):
    """Told to be a lesser machine, it takes the code built for that one, and the same steps."""
    order = ["DEFAULT", "AVX2", "AVX512"]
    able = torch.backends.cpu.get_cpu_capability()
    if able not in order[1:]:
        pytest.skip(f"{able}: there is only one build of the compiled step here")
    levels = order[: order.index(able) + 1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("ATEN_CPU_CAPABILITY", None)
    subprocess.run([sys.executable, "-c", CHILDREN, str(tmp_path), *levels], env=environment, check=True, timeout=120)
    found = {}
    for level in levels:
        found[level] = torch.load(tmp_path / level, weights_only=True)
        built = "_step." if level == "DEFAULT" else f"_step_{level.lower()}."
        assert built in os.path.basename(found[level]["name"])
        for a, b in zip(found["DEFAULT"]["values"], found[level]["values"], strict=True):
            assert float((a - b).abs().max()) < 2e-6
    if "AVX512" in found:
        assert all(map(torch.equal, found["AVX2"]["values"], found["AVX512"]["values"]))


def test_low_precision_parameters_keep_float32_states(make, kit):
    params = kit.problem(dtype=torch.bfloat16)
    sampler = make(params)
    kit.run(sampler, params, 3)
    assert all(p.dtype == torch.bfloat16 and p.isfinite().all() for p in params)
    assert all(sampler.state[p][slot].dtype == torch.float32 for p in params for slot in sampler.slots)


def test_gradient_layout_does_not_matter(make, kit):
    results = []
    for contiguous in (False, True):
        params = kit.problem()
        sampler = make(params)
        kit.set_gradients(params, 0)
        if contiguous:
            params[3].grad = params[3].grad.contiguous()
            assert params[3].grad.stride() != params[3].stride()
        sampler.step()
        results.append(kit.snapshot(sampler, params))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_parameters_with_gaps_in_memory(make, kit):
    results = []
    for gaps in (False, True):
        value = torch.arange(24.0).reshape(4, 6)
        params = [torch.nn.Parameter(value[:, :3] if gaps else value[:, :3].clone())]
        assert params[0].is_contiguous() != gaps
        sampler = make(params)
        kit.run(sampler, params, 3)
        results.append(kit.snapshot(sampler, params))
    assert_close(*results, 1e-6)


def test_masses_per_tensor_and_per_element(kit):
    """A list of numbers, tensors of equal numbers, and groups of their own are three ways to say the same."""
    masses = [0.5, 1.0, 2.0, 3.0, 4.0]
    results = []
    for backend in BACKENDS:
        for form in ("numbers", "tensors", "groups"):
            params = kit.problem(large=False)
            if form == "groups":
                spec = [{"params": [p], "mass": m} for p, m in zip(params, masses, strict=True)]
                sampler = atmc.ATMC(spec, lr=0.05, friction=1.0, speed_limit=0.7, backend=backend, temperature=0.0)
            else:
                mass = (
                    masses
                    if form == "numbers"
                    else [torch.full_like(p, m).detach() for p, m in zip(params, masses, strict=True)]
                )
                sampler = atmc.ATMC(
                    params, lr=0.05, friction=1.0, speed_limit=0.7, mass=mass, backend=backend, temperature=0.0
                )
            kit.run(sampler, params, 4)
            results.append(kit.snapshot(sampler, params))
    for other in results[1:]:
        assert_close(results[0], other, 1e-5)


def test_groups_differ_in_everything(kit):
    """Two groups in one sampler move as two samplers of one group do (without noise, which is numbered jointly)."""
    first = {"lr": 0.05, "mass": 1.0, "friction": 1.0, "speed_limit": 0.5, "temperature": 0.0, "inertia": 2.0}
    second = {"lr": 0.01, "mass": 3.0, "friction": 4.0, "speed_limit": math.inf, "temperature": 0.0, "inertia": 0.5}
    joint = kit.problem(large=False)
    sampler = atmc.ATMC([{"params": joint[:2], **first}, {"params": joint[2:], **second}])
    kit.run(sampler, joint, 5)
    apart = kit.problem(large=False)
    samplers = [atmc.ATMC(apart[:2], **first), atmc.ATMC(apart[2:], **second)]
    for step in range(5):
        kit.set_gradients(apart, step)
        for s in samplers:
            s.step()
    assert_close([p.detach() for p in joint], [p.detach() for p in apart], 1e-6)


def test_parameter_without_gradient_stays(make, kit):
    for backend in BACKENDS:
        params = kit.problem(large=False)
        sampler = make(params, backend=backend)
        before = params[1].detach().clone()
        kit.set_gradients(params, 0)
        params[1].grad = None
        sampler.step()
        assert torch.equal(params[1], before)
        assert not torch.equal(params[0], kit.problem(large=False)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_that_lost_its_gradient_has_no_reading(make, kit, backend):
    params = kit.problem(large=False)
    sampler = make(params, backend=backend, measure_every=1)
    kit.run(sampler, params, 2)
    assert math.isfinite(sampler.readings().tensors[1].configurational)
    kit.set_gradients(params, 2)
    params[1].grad = None
    sampler.step()
    readings = sampler.readings().tensors
    assert math.isnan(readings[1].kinetic)
    assert math.isnan(readings[1].configurational)
    assert math.isfinite(readings[0].configurational)
    kit.run(sampler, params, 1, start=3)
    assert math.isfinite(sampler.readings().tensors[1].configurational)


def test_step_of_zero_moves_nothing(make, kit):
    for backend in BACKENDS:
        params = kit.problem(large=False)
        sampler = make(params, backend=backend)
        kit.run(sampler, params, 2)
        for group in sampler.param_groups:
            group["lr"] = 0.0
        before = kit.snapshot(sampler, params)
        if sampler.strang:  # the second half of the step before is still to come, with its own step size
            kit.run(sampler, params, 1, start=2)
            before = kit.snapshot(sampler, params)
        kit.run(sampler, params, 1, start=2)
        after = kit.snapshot(sampler, params)
        slots = len(params)
        assert all(torch.equal(a, b) for a, b in zip(before[:slots], after[:slots], strict=True))
        if "square_avg" not in sampler.slots:  # a running mean of gradients goes on, whatever the step
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert all(a.isfinite().all() for a in after)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_thermostat_is_driven_by_all_elements_of_every_precision(backend):
    """(h/μ) times the mean of p²/m over all of them, at T = 0 and with the friction of D alone."""
    params = [torch.nn.Parameter(torch.zeros(n, dtype=d)) for n, d in ((3, torch.float32), (5, torch.float64))]
    how = {"mass": 2.0, "friction": 4.0, "inertia": 0.3, "temperature": 0.0, "reference_lr": None}
    sampler = atmc.SGNHT(params, lr=0.1, thermostat="scalar", backend=backend, **how)
    for p, momentum in zip(params, (1.0, 3.0), strict=True):
        sampler.state[p]["momentum"].fill_(momentum)
        p.grad = torch.zeros_like(p)
    sampler.step()
    mean = math.exp(-2 * 4.0 * 0.1) * (3 * 1.0**2 + 5 * 3.0**2) / 8
    for p in params:
        assert float(sampler.state[p]["thermostat"]) == pytest.approx(0.1 / 0.3 * mean / 2.0, rel=1e-6)
