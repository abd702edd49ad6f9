"""`noise_rank`: all backends agree, a state resumes bit for bit, and what does not fit is refused."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import atmc
from atmc.engine.gradient_statistics import change_masses
from atmc.samplers import noise_friction, noise_rows, noise_temperature
from atmc.samplers.flat_state import memory_order

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


def made(backend: str | None, device: str = "cpu", dtype: Any = torch.float64, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 5), (3,), (2, 3, 4, 4)]
    params = [torch.randn(s, generator=generator, dtype=dtype).to(device).requires_grad_() for s in shapes]
    with torch.no_grad():
        params[2].data = params[2].data.contiguous(memory_format=torch.channels_last)
    settings = {"lr": 0.05, "mass": 2.0, "friction": 2.0, "noise_rank": 3, "measure_every": 4, "momentum_init": "law"}
    return atmc.ATMC(params, backend=backend, **{**settings, **options}), params


def walk(sampler: Any, params: list[torch.Tensor], first: int, steps: int) -> None:
    """Noise of rank two around the gradient of a quadratic, the same on every call."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        z = torch.randn(2, generator=generator, dtype=torch.float64)
        for p in params:
            shape = torch.linspace(-1, 1, p.numel(), dtype=torch.float64).view(p.shape)
            p.grad = p.detach() + (z[0] * shape + z[1] * shape.square()).to(p) * 20
        sampler.step()


KRONECKER = {"noise_kronecker": True}
CASES = [{}, {"speed_limit": 0.7}, {"mass": [1.0, 2.0, 3.0]}, KRONECKER, KRONECKER | {"mass": [1.0, 2.0, 3.0]}]


@pytest.mark.parametrize("options", CASES, ids=["", "limit", "masses", "kronecker", "kronecker, masses"])
def test_backends_agree(options: dict[str, Any]) -> None:
    found = []
    for backend in ("single", "foreach", "fused"):
        sampler, params = made(backend, **options)
        walk(sampler, params, 0, 40)
        found.append(([p.detach() for p in params], sampler.readings()))
    for other, reading in found[1:]:
        for mine, theirs in zip(found[0][0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
        assert reading.kinetic == pytest.approx(found[0][1].kinetic, rel=1e-9)
        assert reading.configurational == pytest.approx(found[0][1].configurational, rel=1e-9)


def test_it_cools_the_directions_of_the_noise() -> None:
    """Momenta along the noise, averaged over the later steps: at T with the friction, far above it without."""
    found = []
    for rank in (3, 0):
        sampler, params = made(None, noise_rank=rank)
        along = []
        for step in range(400):
            walk(sampler, params, step, 1)
            u = torch.cat([torch.linspace(-1, 1, p.numel(), dtype=torch.float64) for p in params])
            p = torch.cat([sampler.state[q]["momentum"].flatten() for q in params])
            along.append(float((p @ u) ** 2 / (2.0 * u @ u)))
        found.append(sum(along[200:]) / 200)
    assert found[0] < 2.0
    assert found[1] > 3 * found[0]


@pytest.mark.parametrize("kronecker", [False, True])
@pytest.mark.parametrize("stop", [5, 16, 37])
def test_a_state_resumes_exactly(stop: int, kronecker: bool) -> None:
    options = {"noise_kronecker": kronecker}
    whole, expected = made(None, **options)
    walk(whole, expected, 0, 60)
    first, half = made(None, **options)
    walk(first, half, 0, stop)
    again, params = made(None, **options)
    with torch.no_grad():
        for p, q in zip(params, half, strict=True):
            p.copy_(q)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    walk(again, params, stop, 60 - stop)
    assert all(torch.equal(p, q) for p, q in zip(params, expected, strict=True))


def test_a_state_from_before_new_masses_brings_the_old_ones() -> None:
    whole, expected = made(None, mass=[1.0, 2.0, 3.0])
    walk(whole, expected, 0, 60)
    sampler, params = made(None, mass=[1.0, 2.0, 3.0])
    walk(sampler, params, 0, 20)
    state, weights = copy.deepcopy(sampler.state_dict()), [p.detach().clone() for p in params]
    change_masses(sampler, [torch.full_like(p, 9.0) for p in params])
    walk(sampler, params, 20, 20)
    sampler.load_state_dict(state)
    with torch.no_grad():
        for p, before in zip(params, weights, strict=True):
            p.copy_(before)
    walk(sampler, params, 20, 40)
    assert all(torch.equal(p, q) for p, q in zip(params, expected, strict=True))


def test_a_state_of_replayed_graphs_keeps_what_is_known() -> None:
    """A replay does not count as a call: with few calls the next differences would replace everything."""
    sampler, params = made(None)
    walk(sampler, params, 0, 64)
    state = copy.deepcopy(sampler.state_dict())
    state["sampler"]["calls"] = 0
    sampler.load_state_dict(state)
    walk(sampler, params, 64, 16)
    whole, expected = made(None)
    walk(whole, expected, 0, 80)
    assert all(torch.equal(p, q) for p, q in zip(params, expected, strict=True))
    assert torch.equal(noise_rows.rows_of(sampler._shards[0], 3), noise_rows.rows_of(whole._shards[0], 3))


@pytest.mark.parametrize("fails", [{torch.float32}, {torch.float32, torch.float64}])
def test_eigenvectors_that_are_not_found_do_not_end_a_run(monkeypatch: pytest.MonkeyPatch, fails: set[Any]) -> None:
    """cuSOLVER fails on some matrices of low rank: float64 is tried, and else the basis stays."""
    found = torch.linalg.eigh

    def eigh(matrix: torch.Tensor) -> Any:
        if matrix.ndim == 3 and matrix.dtype in fails:
            raise torch.linalg.LinAlgError("failed to converge")
        return found(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    sampler, params = made(None, noise_kronecker=True, dtype=torch.float32)
    before = [basis.clone() for group in sampler._kronecker.groups for basis in group.bases]
    walk(sampler, params, 0, 40)
    after = [basis for group in sampler._kronecker.groups for basis in group.bases]
    moved = [not torch.equal(x, y) for x, y in zip(before, after, strict=True) if x.numel()]
    assert all(p.isfinite().all() for p in params)
    assert any(moved) is (torch.float64 not in fails)


def test_what_is_known_of_tensors_survives_another_memory_format() -> None:
    sampler, params = made(None, noise_kronecker=True)
    walk(sampler, params, 0, 40)
    other, others = made(None, noise_kronecker=True)
    with torch.no_grad():
        others[2].data = others[2].data.contiguous()
        for p, q in zip(others, params, strict=True):
            p.copy_(q)
    other._build()
    other.load_state_dict(copy.deepcopy(sampler.state_dict()))
    for one, its in ((sampler, params), (other, others)):
        along = [torch.linspace(-1, 1, p.numel(), dtype=torch.float64).view(p.shape) for p in its]
        one._shards[0].flat["momentum"].zero_()
        for p, g in zip(its, along, strict=True):
            p.grad = g.clone()
        shard, known = one._shards[0], one._kronecker
        flat = torch.zeros(shard.total, dtype=torch.float64)
        for view, g in zip(noise_rows.like_params(shard, flat), along, strict=True):
            view.copy_(g)
        taken = known.friction(shard, flat, 0.01, 0.1).clone()
        one.found = torch.cat([v.reshape(-1) for v in noise_rows.like_params(shard, taken)])
    assert torch.allclose(sampler.found, other.found, rtol=1e-9)


@pytest.mark.parametrize("size", [1e20, 1e10])
def test_a_huge_gradient_is_left_out(size: float) -> None:
    """Where its square overflows, and where only the square of that does."""
    sampler, params = made(None, dtype=torch.float32, noise_kronecker=True, nonfinite="ignore")
    walk(sampler, params, 0, 80)  # the next update leaves the basis as it is
    known = sampler._kronecker

    def learned() -> list[Tensor]:
        return [known.updates, known.variance, *(t for group in known.groups for t in (*group.factors, *group.bases))]

    before = [t.clone() for t in learned()]
    sampler._shards[0].flat["noise_new_0"].fill_(size)
    noise_friction.update(sampler, 96)
    assert all(torch.equal(a, b) for a, b in zip(before, learned(), strict=True))
    sampler._shards[0].flat["noise_new_0"].fill_(1.0)
    noise_friction.update(sampler, 112)
    assert int(known.updates) == int(before[0]) + 1


@pytest.mark.parametrize("kronecker", [False, True])
def test_a_copy_goes_its_own_way(kronecker: bool) -> None:
    sampler, params = made(None, noise_kronecker=kronecker)
    walk(sampler, params, 0, 20)
    both = copy.deepcopy((sampler, params))
    walk(sampler, params, 20, 20)
    walk(*both, 20, 20)
    assert all(torch.equal(p, q) for p, q in zip(params, both[1], strict=True))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(("rank", "mass"), [(3, 2.0), (17, [1.0, 2.0, 3.0])], ids=["one mass", "masses"])
def test_the_best_factor_is_kept(device: str, rank: int, mass: Any) -> None:
    """B'B after an update against eigenvectors in double precision; differences that are not finite are left out."""
    sampler, _ = made(None, device, torch.float32, noise_rank=rank, mass=mass)
    shard = sampler._shards[0]
    rows = noise_rows.rows_of(shard, rank)
    decay = torch.logspace(0, -2, len(rows))[:, None]
    rows.copy_(torch.randn(rows.shape, generator=torch.Generator().manual_seed(2)) * decay)
    before, metric = rows.double().clone(), torch.as_tensor(noise_rows.mass_of(shard), dtype=torch.float64)
    both = torch.cat([before[:rank] * 0.6**0.5, before[rank:-1] * (0.4 / 16) ** 0.5])
    right = torch.linalg.eigh(both @ (both / metric).T).eigenvectors[:, -rank:].T @ both
    noise_friction.update(sampler, 40)  # a share of 16/40 for the new differences
    found = rows[:rank].double()
    assert float((found.T @ found - right.T @ right).norm() / (right.T @ right).norm()) < 1e-5
    gram = found @ (found / metric).T
    assert float((gram - gram.diag().diag()).abs().max() / gram.abs().max()) < 1e-6
    torch.testing.assert_close(noise_rows.scale_of(shard, rank), gram.diag(), rtol=1e-5, atol=1e-7)
    rows[rank, 5] = float("nan")
    kept = rows[:rank].clone()
    noise_friction.update(sampler, 40)
    assert torch.equal(rows[:rank], kept)


@pytest.mark.parametrize("kronecker", [False, True])
@pytest.mark.parametrize("device", [GPU])
def test_on_a_gpu_it_is_the_same_also_captured(device: str, kronecker: bool) -> None:
    """Eager and captured steps on a GPU against the CPU; between replays the noise is learned by hand."""
    own, expected = made(None, dtype=torch.float32, noise_kronecker=kronecker)
    walk(own, expected, 0, 48)
    eager, params = made(None, device, torch.float32, noise_kronecker=kronecker)
    walk(eager, params, 0, 48)
    for p, q in zip(params, expected, strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=2e-3, atol=2e-3)
    lr = torch.tensor(0.05, device=device)
    captured, moved = made(None, device, torch.float32, reference_lr=0.05, noise_kronecker=kronecker)
    captured.param_groups[0]["lr"] = lr
    for p in moved:
        p.grad = torch.zeros_like(p)
    saved = copy.deepcopy(captured.state_dict())
    start = [p.detach().clone() for p in moved]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        captured.step()
    torch.cuda.synchronize()
    with torch.no_grad():
        for p, q in zip(moved, start, strict=True):
            p.copy_(q)
    captured.load_state_dict(saved)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured.step()
    with torch.no_grad():
        for p, q in zip(moved, start, strict=True):
            p.copy_(q)
    captured.load_state_dict(saved)
    for step in range(48):
        z = torch.randn(2, generator=torch.Generator().manual_seed(100 + step), dtype=torch.float64)
        for p in moved:
            shape = torch.linspace(-1, 1, p.numel(), dtype=torch.float64).view(p.shape).to(p)
            p.grad.copy_(p.detach() + (float(z[0]) * shape + float(z[1]) * shape.square()) * 20)
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            graph.replay()
        torch.cuda.synchronize()
        if (step + 1) % noise_rows.EVERY == 0:
            noise_friction.update(captured, step + 1)
            torch.cuda.synchronize()
    for p, q in zip(moved, expected, strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("mass", [2.0, [1.0, 2.0, 3.0]], ids=["one mass", "masses"])
def test_the_thermometer_also_reads_what_the_friction_does_not_know(mass: Any) -> None:
    """The mean of two readings: along the noise, and along its part that is orthogonal to B in the metric of 1/m."""
    sampler, params = made(None, mass=mass)
    walk(sampler, params, 0, 20)
    first, second = ([torch.randn_like(p) for p in params] for _ in range(2))
    shard, masses = sampler._shards[0], mass if isinstance(mass, list) else [mass] * 3
    inverse = torch.cat(
        [torch.full((p.numel(),), 1 / m, dtype=torch.float64) for p, m in zip(params, masses, strict=True)]
    )
    flat = [torch.cat([memory_order(g, p) for g, p in zip(parts, params, strict=True)]) for parts in (first, second)]
    rows = noise_rows.rows_of(shard, 3)[:3]
    u = flat[0] - flat[1]
    rest = u - rows.T @ torch.linalg.solve(rows @ (rows * inverse).T, rows @ (u * inverse))
    centre = (flat[0] + flat[1]) / 2

    def along(direction: torch.Tensor) -> float:
        beta = shard.flat["thermostat"].clamp(min=2.0)
        sums = noise_temperature.sums_along(
            [direction], centre, shard.flat["momentum"], beta, lr=0.05, mass=1 / inverse, inverse_scale=0.0
        )
        return float(noise_temperature.reading(torch.stack(sums)))

    assert float(sampler.noise_temperature(first, second)) == pytest.approx((along(u) + along(rest)) / 2, rel=1e-9)


def test_what_does_not_fit_is_refused() -> None:
    p = torch.zeros(3, requires_grad=True)
    q = torch.zeros(3, requires_grad=True)
    with pytest.raises(ValueError, match="noise_rank is for samplers with momentum, not for SGLD"):
        atmc.SGLD([p], lr=1e-3, noise_rank=2)
    with pytest.raises(ValueError, match="noise_rank must be a whole number, at least 0"):
        atmc.ATMC([p], lr=1e-3, noise_rank=-1)
    with pytest.raises(ValueError, match="noise_kronecker is for what noise_rank leaves out: set noise_rank as well"):
        atmc.ATMC([p], lr=1e-3, noise_kronecker=True)
    with pytest.raises(TypeError, match="noise_kronecker must be True or False, not 3"):
        atmc.ATMC([p], lr=1e-3, noise_rank=2, noise_kronecker=3)  # type: ignore[arg-type]
    with_it, without = atmc.ATMC([p], lr=1e-3, noise_rank=2, noise_kronecker=True), atmc.ATMC([q], noise_rank=2)
    with pytest.raises(ValueError, match="it was taken with noise_kronecker, or of other parameters"):
        without.load_state_dict(with_it.state_dict())
    with pytest.raises(ValueError, match="it was taken without noise_kronecker"):
        with_it.load_state_dict(without.state_dict())
    broken = with_it.state_dict()
    for junk in ([1, 2], 5, None, torch.zeros(7), {}):
        broken["sampler"]["kronecker"] = junk
        with pytest.raises(ValueError, match="noise_kronecker of this state must be a list of tensors"):
            with_it.load_state_dict(broken)
    for place, junk in ((1, torch.zeros(7)), (1, torch.zeros(3) * 1j), (0, torch.tensor(-1))):
        broken = with_it.state_dict()
        broken["sampler"]["kronecker"][place] = junk
        with pytest.raises(ValueError, match="noise_kronecker of this state"):
            with_it.load_state_dict(broken)
    broken = with_it.state_dict()
    broken["sampler"]["kronecker"][1][0] = float("nan")
    with pytest.raises(ValueError, match="noise_kronecker of this state is not finite"):
        with_it.load_state_dict(broken)
    p.grad = q.grad = torch.zeros(3)
    with pytest.raises(ValueError, match="integrator='leapfrog'"):
        atmc.ATMC([p], lr=1e-3, noise_rank=2, integrator="strang").step()
    with pytest.raises(ValueError, match="one lr for all groups, and that of group 1 differs"):
        atmc.ATMC([{"params": [p]}, {"params": [q], "lr": 0.5}], lr=1e-3, noise_rank=2).step()
    double = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    double.grad = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="one device and in one precision"):
        atmc.ATMC([p, double], lr=1e-3, noise_rank=2).step()
