"""The CUDA kernels of `noise_rank` in Triton's interpreter, against the same steps in PyTorch's operations."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

import atmc
from atmc.samplers import fused_native, fused_triton, noise_friction, noise_kronecker, noise_rows

SHAPES = [(40, 60), (3,), (2, 3, 4, 4)]  # more than one block, less than a vector, another order in memory


def made(device: str, backend: str, kind: str, **options: Any) -> tuple[Any, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(s, generator=generator).to(device).requires_grad_() for s in SHAPES]
    with torch.no_grad():
        params[2].data = params[2].data.contiguous(memory_format=torch.channels_last)
    settings = {"lr": 0.05, "mass": 2.0, "friction": 2.0, "noise_rank": 3, "measure_every": 4, "momentum_init": "law"}
    return getattr(atmc, kind)(params, backend=backend, **{**settings, **options}), params


def walk(sampler: Any, params: list[torch.Tensor], steps: int, bad: int = -1) -> None:
    """Noise of rank two around the gradient of a quadratic; one gradient is not finite."""
    for step in range(steps):
        z = torch.randn(2, generator=torch.Generator().manual_seed(100 + step))
        for p in params:
            shape = torch.linspace(-1, 1, p.numel()).view(p.shape)
            p.grad = p.detach() + ((z[0] * shape + z[1] * shape.square()) * 20).to(p)
        if step == bad:
            params[1].grad[0] = float("nan")
        sampler.step()


def check_steps(device: str) -> None:
    """Steps and readings of the kernels, with limits, masses, a skipped step and each sampler."""
    masses = [torch.rand(s, generator=torch.Generator().manual_seed(1)) + 0.5 for s in SHAPES]
    masses = [m.to(device) for m in masses]
    cases = [
        ("ATMC", {}),
        ("ATMC", {"speed_limit": 0.7}),
        ("ATMC", {"mass": masses, "noise_rank": 9}),
        ("SGNHT", {}),
        ("SGHMC", {"temperature": 0.5}),
        ("ATMC", {"noise_kronecker": True}),
        ("ATMC", {"mass": masses, "speed_limit": 0.7, "noise_kronecker": True}),
    ]
    for kind, options in cases:
        ours, mine = made(device, "fused", kind, **options)
        other, theirs = made(device, "single", kind, **options)
        walk(ours, mine, 40)
        walk(other, theirs, 40)
        assert "fused" in ours._shards[0].scratch
        assert "own readings" in other._shards[0].scratch
        for p, q in zip(mine, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-3)
        for name in ("kinetic", "configurational"):
            assert getattr(ours.readings(), name) == pytest.approx(getattr(other.readings(), name), rel=1e-3)


def check_skipped_steps(device: str) -> None:
    """A step whose gradient is not finite leaves no trace in the parameters or in what is known of the noise."""
    sampler, params = made(device, "fused", "ATMC", nonfinite="skip")
    walk(sampler, params, 5)
    rows, before = noise_rows.rows_of(sampler._shards[0], 3).clone(), [p.detach().clone() for p in params]
    walk(sampler, params, 1, bad=0)
    assert torch.equal(rows, noise_rows.rows_of(sampler._shards[0], 3))
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    with pytest.raises(RuntimeError, match="was not finite at step 5"):
        sampler.check()


def check_kronecker_kernels(device: str) -> None:
    """Rotations there and back, of one vector and of several, against PyTorch's operations."""
    shapes = [(40, 70), (3,), (5, 3, 4, 4), (40, 70), (2, 1100), (1, 1), (33, 1)]
    found = []
    for fused in (True, False):
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(s, generator=generator).to(device).requires_grad_() for s in shapes]
        sampler = atmc.ATMC(params, lr=0.1, noise_rank=2, noise_kronecker=True)
        for p in params:
            p.grad = torch.zeros_like(p)
        sampler.step()
        known: Any = sampler._kronecker
        assert known.tables is not None
        if not fused:
            known.tables = None
        total = len(known.place)
        some = torch.randn(noise_rows.EVERY, total, generator=generator).to(device)
        for share in (1.0, 0.3):
            known._average(some * share, torch.tensor(share).to(device))
        known._turn()
        back_again = known._rotate(known._rotate(some[0]), back=True)
        torch.testing.assert_close(back_again, some[0], rtol=1e-4, atol=1e-4)
        found.append(known)
    ours, other = found
    for a, b in zip(ours.groups, other.groups, strict=True):
        for left, right in zip(a.factors, b.factors, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)
        for left, right in zip(a.bases, b.bases, strict=True):
            left.copy_(right)  # eigenvectors have no sign, and none of the null space is like another
    copied = copy.deepcopy(ours)  # reads its own bases
    for group in copied.groups:
        for basis in group.bases:
            basis.zero_()
    assert not copied._rotate(torch.ones_like(copied.variance))[:10].any()
    some = torch.randn(3, total, generator=generator).to(device)
    for back in (False, True):
        torch.testing.assert_close(ours._rotate(some, back), other._rotate(some, back), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours._rotate(some, back)[1], ours._rotate(some[1], back), rtol=0, atol=0)


def interpreted() -> None:
    """On a CPU: the kernels get a CPU's tensors, and nothing has to be pinned or captured."""

    def upload(plan: Any, values: Any) -> None:
        plan.table.copy_(torch.from_numpy(values))

    fused_triton.usable = lambda shard: True  # type: ignore[assignment]
    noise_kronecker.fused = lambda state: True  # type: ignore[assignment]
    fused_native.usable = lambda shard: False  # type: ignore[assignment]
    fused_triton.Plan.upload = upload  # type: ignore[method-assign]
    fused_triton.GraphTable = lambda shape, device: None  # type: ignore[assignment,misc]
    check_kronecker_kernels("cpu")
    check_steps("cpu")
    check_skipped_steps("cpu")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run on this machine's GPU")
def test_the_kernels_in_triton_interpreter(in_interpreter: Callable[[str], None]) -> None:
    in_interpreter("interpreted()")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_kernels_on_a_gpu() -> None:
    check_kronecker_kernels("cuda")
    check_steps("cuda")
    check_skipped_steps("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kronecker", [False, True])
def test_a_step_does_not_wait_for_the_device(kronecker: bool) -> None:
    """Only every sixteenth does, for the eigenvectors of a small matrix, while the device has other things to do."""
    sampler, params = made("cuda", "fused", "ATMC", noise_kronecker=kronecker)
    walk(sampler, params, 80)  # the next update of the noise leaves the basis as it is
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(15):
            sampler.step()
        noise_friction.update(sampler, 96)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(bool(p.isfinite().all()) for p in params)
