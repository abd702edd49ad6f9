"""Friction along the gradients of a step's own examples: what it asks for, and what it leaves alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atmc
from atmc.common.matrix_views import matrix_of

SHAPES = [(4, 5), (3,), (2, 3, 4, 4), (5,)]
BATCH = 7


def made(**options: Any) -> tuple[Any, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    dtype = options.pop("dtype", torch.float64)
    params = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in SHAPES]
    with torch.no_grad():
        params[2].data = params[2].data.contiguous(memory_format=torch.channels_last)
    kind = options.pop("kind", "ATMC")
    settings = {"lr": 0.05, "mass": 2.0, "friction": 2.0, "momentum_init": "law", "noise_examples": True}
    return getattr(atmc, kind)(params, **{**settings, **options}), params


def give(params: list[Tensor], step: int) -> None:
    """Gradients of examples with a common part; the last parameter has none."""
    generator = torch.Generator().manual_seed(100 + step)
    for p in params[:-1]:
        shared = torch.randn(BATCH, *[1] * p.ndim, generator=generator, dtype=torch.float64)
        own = shared + torch.randn(BATCH, *p.shape, generator=generator, dtype=torch.float64)
        p.grad_sample = own.to(p.dtype)  # type: ignore[attr-defined]
        p.grad = p.grad_sample.sum(0) + p.detach()  # type: ignore[attr-defined]


def walk(sampler: Any, params: list[Tensor], steps: int, first: int = 0) -> list[Tensor]:
    for step in range(first, first + steps):
        give(params, step)
        sampler.step()
    return [p.detach().clone() for p in params]


@pytest.mark.parametrize("kind", ["ATMC", "SGNHT", "SGHMC"])
@pytest.mark.parametrize("masses", [False, True])
def test_backends_agree(kind: str, masses: bool) -> None:
    own = [torch.rand(s, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5 for s in SHAPES]
    options: dict[str, Any] = {"mass": own} if masses else {}
    if kind == "ATMC":
        options["speed_limit"] = 3.0
    found = [walk(*made(kind=kind, backend=backend, **options), 12) for backend in ("single", "foreach", "fused")]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b)


def test_it_takes_the_heat_out() -> None:
    """Strong noise of the examples: without friction along it the kinetic temperature is far above T."""
    warm = []
    for by_example in (True, False):
        sampler, params = made(noise_examples=by_example, lr=0.06, friction=0.2, kind="SGHMC")
        found = []
        for step in range(600):
            give(params, step)
            for p in params[:-1]:  # no force but the noise
                p.grad = p.grad_sample.sum(0)  # type: ignore[attr-defined]
            sampler.step()
            found.append(float(sampler.state[params[0]]["momentum"].square().mean()) / 2.0)
        warm.append(sum(found[200:]) / 400)
    assert warm[0] == pytest.approx(1.0, abs=0.15)
    assert warm[1] > 1.5 * warm[0]


def test_at_temperature_zero_there_is_no_friction() -> None:
    """What is left is the kick of the midpoint rule, which differs in second order."""
    mine, theirs = (walk(*made(temperature=0.0, noise_examples=flag), 8) for flag in (True, False))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_a_copy_and_a_state_go_on_alike() -> None:
    sampler, params = made()
    walk(sampler, params, 5)
    twin, others = copy.deepcopy((sampler, params))
    fresh, third = made()
    fresh.load_state_dict(sampler.state_dict())
    for p, q in zip(third, params, strict=True):
        p.data.copy_(q)
    found = [walk(s, ps, 5, 5) for s, ps in ((sampler, params), (twin, others), (fresh, third))]
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_batches_may_differ_in_size() -> None:
    sampler, params = made()
    give(params, 0)
    sampler.step()
    give(params, 1)
    for p in params[:-1]:
        p.grad_sample = p.grad_sample[:3]  # type: ignore[attr-defined]
    sampler.step()
    assert all(p.isfinite().all() for p in params)


def test_kick_excess_says_how_many_kicks_are_too_large() -> None:
    sampler, params = made(kind="SGHMC")
    assert math.isnan(float(sampler.kick_excess()))
    give(params, 0)
    sampler.step()
    assert 0.0 <= float(sampler.kick_excess()) <= 1.0
    give(params, 1)
    for p in params[:-1]:
        p.grad_sample *= 1e-6  # type: ignore[attr-defined]
    sampler.step()
    assert float(sampler.kick_excess()) == 0.0


def test_what_is_refused() -> None:
    p = nn.Parameter(torch.zeros(3))
    with pytest.raises(TypeError, match="noise_examples must be True or False, not 'yes'"):
        atmc.ATMC([p], lr=1e-3, noise_examples="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave noise_rank at 0 with it"):
        atmc.ATMC([p], lr=1e-3, noise_examples=True, noise_rank=4)
    with pytest.raises(ValueError, match="noise_examples is for samplers with momentum, not for SGLD"):
        atmc.SGLD([p], lr=1e-3, noise_examples=True)
    sampler = atmc.ATMC([p], lr=1e-3, noise_examples=True)
    p.grad, p.grad_sample = torch.ones(3), torch.zeros(4, 3)  # type: ignore[attr-defined]
    sampler.step()
    p.data.zero_()  # what was left for one step does not serve the next
    with pytest.raises(ValueError, match=r"in p.grad_sample: call potential.backward_each\(x, y\) in place of"):
        sampler.step()
    p.grad_sample = torch.ones(1, 3)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="two examples or more"):
        sampler.step()
    p.grad_sample = torch.ones(4, 2)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"grad_sample of parameter .* must be \[examples, \*\[3\]\]"):
        sampler.step()
    strang = atmc.ATMC([p], lr=1e-3, noise_examples=True, integrator="strang")
    with pytest.raises(ValueError, match="noise_examples needs integrator='leapfrog'"):
        strang.step()
    assert p.detach().eq(0).all(), "nothing has moved"


# -- where they come from ----------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(144, 3))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 1, 8, 8, generator=generator), torch.randint(3, (BATCH,), generator=generator)


def test_backward_each_leaves_the_same_gradient() -> None:
    model, (x, y) = network(), batch()
    frozen = next(iter(model.parameters())).requires_grad_(False)
    potential = atmc.Potential(model, num_data=100, prior=atmc.priors.gaussian(0.5), temper=0.7)
    params = [p for p in model.parameters() if p.requires_grad]
    nll = potential.backward_each(x, y)
    found = [p.grad.clone() for p in params if p.grad is not None]
    for p in params:
        prior = p.detach() / 0.25
        torch.testing.assert_close(p.grad_sample.sum(0) + prior, p.grad, rtol=1e-4, atol=1e-4)  # type: ignore[attr-defined]
    assert getattr(frozen, "grad_sample", None) is None
    for p in params:
        p.grad = None
    potential(x, y).backward()
    assert potential.nll is not None
    assert float(nll) == pytest.approx(float(potential.nll), rel=1e-5)
    for p, g in zip(params, found, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-4)


def test_backward_each_takes_weights() -> None:
    """Of examples drawn by importance: the weighted sum of their nll is the mean."""
    model, (x, y) = network(), batch()
    potential = atmc.Potential(model, num_data=100, prior=atmc.priors.gaussian(0.5))
    weights = torch.linspace(0.05, 0.3, BATCH)
    nll = potential.backward_each(x, y, weights)
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    expected = potential.nll_of(model(x), y, weights)
    assert float(nll) == pytest.approx(float(expected.detach()), rel=1e-5)
    prior = potential.prior_set.log_prob(potential.parameters())
    right = torch.autograd.grad(100 * expected - prior, list(model.parameters()))
    for g, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(g, wanted, rtol=1e-4, atol=1e-4)


def test_a_network_that_mixes_examples_is_named() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    potential = atmc.Potential(model, num_data=100, prior=atmc.priors.gaussian(1.0), validate=False)
    with pytest.warns(UserWarning, match="BatchNorm"), pytest.raises(atmc.InputError, match="gradient of each example"):
        potential.backward_each(*batch())


def test_a_batch_of_all_data_is_warned_of() -> None:
    """It has no noise, and the friction would come from the spread of the examples all the same."""
    model, (x, y) = network(), batch()
    potential = atmc.Potential(model, num_data=BATCH, prior=atmc.priors.gaussian(1.0))
    with pytest.warns(UserWarning, match="a batch of all the data has no noise"):
        potential.backward_each(x, y)


def test_a_skipped_step_leaves_no_gradients_of_examples() -> None:
    sampler, params = made(nonfinite="skip")
    give(params, 0)
    params[0].grad[0, 0] = float("nan")  # type: ignore[index]
    sampler.step()
    assert all(getattr(p, "grad_sample", None) is None for p in params)


def test_shapes_are_checked_as_potential_checks_them() -> None:
    model, (x, _) = network(), batch()
    for validate in (True, False):
        potential = atmc.Potential(
            model, 100, atmc.priors.gaussian(1.0), atmc.likelihoods.Gaussian(1.0), validate=validate
        )
        with pytest.raises(atmc.InputError):
            potential.backward_each(x, torch.zeros(BATCH, 1))


def test_two_lines_of_a_loop() -> None:
    model, (x, y) = network(), batch()
    potential = atmc.Potential(model, num_data=50, prior=atmc.priors.gaussian(1.0))
    sampler = atmc.ATMC(model.parameters(), lr=0.01, friction=10.0, noise_examples=True)
    before = float(potential(x, y).detach())
    for _ in range(60):
        potential.backward_each(x, y)
        sampler.step()
    assert float(potential(x, y).detach()) < before + 2 * sum(p.numel() for p in model.parameters())
    assert float(sampler.kinetic_temperature()) == pytest.approx(1.0, abs=0.4)


def test_views_of_one_matrix_are_taken_in_at_once() -> None:
    """As the kernels of ResNet-FRN leave them: some columns belong to nobody, and dimensions in another order."""
    found = []
    for together in (True, False):
        sampler, params = made()
        sizes = [p.numel() for p in params]
        matrix = torch.randn(BATCH, sum(sizes) + 11, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        begin = 5
        for p, size in zip(params, sizes, strict=True):
            own = matrix[:, begin : begin + size].view(BATCH, *p.shape[::-1]).permute(0, *range(p.ndim, 0, -1))
            p.grad_sample = own if together else own.clone()  # type: ignore[attr-defined]
            p.grad = own.sum(0)
            begin += size
        assert (matrix_of([p.grad_sample for p in params]) is not None) == together  # type: ignore[attr-defined]
        sampler.step()
        found.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_no_view_of_one_matrix() -> None:
    matrix = torch.zeros(4, 10)
    assert matrix_of([matrix[:, 2:5], matrix[:, :2]]) is not None
    assert matrix_of([matrix[:, 2:5], torch.zeros(4, 3)]) is None
    assert matrix_of([matrix[1:, 2:5], matrix[1:, :2]]) is None  # not all of its rows
    assert matrix_of([matrix[:, 2:5], matrix.T[:4, :3]]) is None
    assert matrix_of([matrix[:, 2:5], matrix[:3, :2]]) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_it_is_the_same_also_captured() -> None:
    own, expected = made(dtype=torch.float32, nonfinite="ignore")
    walk(own, expected, 20)

    def on_gpu(**options: Any) -> tuple[Any, list[Tensor]]:
        _, params = made(dtype=torch.float32)
        params = [p.detach().cuda().requires_grad_() for p in params]
        settings = {"lr": 0.05, "mass": 2.0, "friction": 2.0, "momentum_init": "law", "noise_examples": True}
        return atmc.ATMC(params, nonfinite="ignore", **{**settings, **options}), params

    places: dict[Tensor, Tensor] = {}

    def take(params: list[Tensor], step: int) -> None:
        """Into the memory that a recorded step reads."""
        give(expected, step)
        for p, q in zip(params[:-1], expected, strict=False):
            given = q.grad_sample.cuda()  # type: ignore[attr-defined]
            if p not in places:
                places[p], p.grad = given.clone(), torch.empty_like(p)
            assert p.grad is not None
            p.grad_sample = places[p].copy_(given)  # type: ignore[attr-defined]
            p.grad.copy_(given.sum(0) + p.detach())

    eager, params = on_gpu()
    for step in range(20):
        take(params, step)
        eager.step()
    for p, q in zip(params, expected, strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=5e-3, atol=5e-3)

    captured, moved = on_gpu(lr=torch.tensor(0.05, device="cuda"), reference_lr=0.05)
    saved, start = copy.deepcopy(captured.state_dict()), [p.detach().clone() for p in moved]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    take(moved, 0)
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        captured.step()
    torch.cuda.synchronize()
    take(moved, 0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        captured.step()
    with torch.no_grad():
        for p, q in zip(moved, start, strict=True):
            p.copy_(q)
    captured.load_state_dict(saved)
    for step in range(20):
        take(moved, step)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.synchronize()
    for p, q in zip(moved, expected, strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=5e-3, atol=5e-3)
