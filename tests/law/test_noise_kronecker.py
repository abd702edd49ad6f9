"""Law 13: friction from a Kronecker-factored noise model leaves the right law, alone and beside `noise_rank`'s rows.

As law 12: on a quadratic potential one step is linear, and its stationary covariance solves a Lyapunov equation.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

import atmc
from atmc.samplers import backends, noise_rows
from atmc.samplers.noise_friction import strengths
from atmc.samplers.noise_kronecker import KroneckerNoise

H, D, T, ROWS, COLUMNS, RANK = 0.1, 3.0, 1.5, 2, 3, 2
DIM = ROWS * COLUMNS


def turned(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]


TURN = turned(DIM, 1)
K = TURN @ torch.diag(torch.tensor([1.0, 3.0, 8.0, 20.0, 40.0, 60.0], dtype=torch.float64)) @ TURN.T
LEFT, RIGHT = turned(ROWS, 2), turned(COLUMNS, 3)
BASIS = torch.kron(LEFT, RIGHT)  # of a matrix laid out row by row


class Case:
    """A sampler of one matrix that knows its gradient noise, and that noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, strength: float, mass: Any, kind: str, across: float) -> None:
        self.mass = torch.as_tensor(mass, dtype=torch.float64).expand(ROWS, COLUMNS)
        self.theta = torch.zeros(ROWS, COLUMNS, dtype=torch.float64, requires_grad=True)
        options: dict[str, Any] = {} if kind == "SGHMC" else {"inertia": math.inf}
        given = [mass] if isinstance(mass, torch.Tensor) else mass
        options |= {"lr": H, "mass": given, "friction": D, "temperature": T, "backend": "single"}
        self.sampler = getattr(atmc, kind)([self.theta], noise_rank=RANK, noise_kronecker=True, **options)
        self.eta = torch.zeros(DIM, dtype=torch.float64)
        monkeypatch.setattr(backends, "full_noise", lambda sampler, shard: [self.eta])
        unit = 4 * T * strength / H**2
        known: Any = self.sampler._kronecker
        shard = self.sampler._shards[0]
        variance = torch.tensor([2.0, 1.0, 0.3, 0.1, 0.03, 0.0], dtype=torch.float64) * unit
        for basis, right in zip(known.groups[0].bases, (LEFT, RIGHT), strict=True):
            basis[0].copy_(right)
        root = self.mass.sqrt().flatten()
        rows = torch.randn(RANK, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        rows *= math.sqrt(unit * across)
        shared = torch.linalg.eigh(rows @ rows.T).eigenvectors.T @ rows * root  # orthogonal in the metric of 1/m
        for row, value in enumerate(shared):
            shard.flat[f"noise_{row}"].copy_(value)
        noise_rows.derive(shard, RANK)
        known.project(shard)
        known.variance.copy_(variance + known.rows.square().sum(0))
        known.derive(shard, *strengths(self.sampler.param_groups[0]))
        self.factor = torch.cat([shared, variance.sqrt()[:, None] * BASIS.T * root])

    def step(self, theta: Any, p: Any, grad: Any, eta: Any) -> Any:
        with torch.no_grad():
            self.theta.copy_(theta.view(ROWS, COLUMNS))
            self.sampler.state[self.theta]["momentum"].copy_(p.view(ROWS, COLUMNS))
            self.eta.copy_(eta)
        self.theta.grad = grad.view(ROWS, COLUMNS).clone()
        self.sampler._calls = 0  # so that what is known of the noise stays as it is
        self.sampler.step()
        found = self.theta.detach(), self.sampler.state[self.theta]["momentum"]
        return torch.cat([part.flatten() for part in found]).numpy().copy()

    def stationary(self) -> Any:
        """The covariance of θ that the step leaves invariant, with gradient noise of `factor`."""
        zero, eye = torch.zeros(DIM, dtype=torch.float64), torch.eye(DIM, dtype=torch.float64)
        on_state = [self.step(e, zero, K @ e, zero) for e in eye] + [self.step(zero, e, zero, zero) for e in eye]
        on_noise = np.stack([self.step(zero, zero, row, zero) for row in self.factor], 1)
        on_eta = np.stack([self.step(zero, zero, zero, e) for e in eye], 1)
        return solve_discrete_lyapunov(np.stack(on_state, 1), on_noise @ on_noise.T + on_eta @ on_eta.T)[:DIM, :DIM]


def off(
    monkeypatch: pytest.MonkeyPatch, strength: float, mass: Any = 2.0, kind: str = "SGHMC", across: float = 1.0
) -> float:
    """The largest relative error of a variance along an eigenvector of K."""
    case = Case(monkeypatch, strength, mass, kind, across)
    found, turn = case.stationary(), TURN.numpy()
    inverse = torch.diag(1 / case.mass.flatten())
    right = T * torch.linalg.inv(K - H * H / 4 * K @ inverse @ K).numpy()
    ratios = np.einsum("ij,ik,kj->j", turn, found, turn) / np.einsum("ij,ik,kj->j", turn, right, turn)
    return float(np.abs(ratios - 1).max())


@pytest.mark.parametrize("kind", ["SGHMC", "ATMC", "SGNHT"])
@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("across", [0.0, 1.0])
def test_the_covariance_is_exact_at_any_strength_of_the_noise(
    monkeypatch: pytest.MonkeyPatch, strength: float, kind: str, across: float
) -> None:
    assert off(monkeypatch, strength, kind=kind, across=across) < 1e-9


def test_masses_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    mass = torch.tensor([[0.5, 1.0, 2.0], [6.0, 0.8, 1.5]], dtype=torch.float64)
    assert off(monkeypatch, 1.0, mass) < 1e-9


def without_inner(self: Any, shard: Any, strength: Any, drag: Any) -> None:
    KRONECKER_DERIVE(self, shard, strength, drag)
    self.inner.zero_()


def plain_inner(self: Any, shard: Any, strength: Any, drag: Any) -> None:
    """As if there were no noise within tensors."""
    self.project(shard)
    rest = self.rest.clone()
    kept = self.variance.clone()
    self.variance.zero_()
    KRONECKER_DERIVE(self, shard, strength, drag)
    self.variance.copy_(kept)
    self.rest.copy_(rest)


def counted_twice(self: Any, shard: Any) -> None:
    """B stays in the variances."""
    KRONECKER_PROJECT(self, shard)
    self.rest.copy_(self.variance)


def doubled(self: Any, shard: Any, velocity: Any, strength: Any, drag: Any) -> Any:
    return KRONECKER_FRICTION(self, shard, velocity, strength * 2, drag)


def no_drag(self: Any, shard: Any, velocity: Any, strength: Any, drag: Any) -> Any:
    return KRONECKER_FRICTION(self, shard, velocity, strength, drag * 0)


KRONECKER_DERIVE: Callable[..., None] = KroneckerNoise.derive
KRONECKER_PROJECT: Callable[..., None] = KroneckerNoise.project
KRONECKER_FRICTION: Callable[..., Any] = KroneckerNoise.friction
FLAWS = [
    ("derive", without_inner),
    ("derive", plain_inner),
    ("project", counted_twice),
    ("friction", doubled),
    ("friction", no_drag),
    ("_root_mass", lambda self, shard: 1.0),
    ("_rotate", lambda self, grouped, back=False: grouped),
]


@pytest.mark.parametrize(
    ("name", "flaw"),
    FLAWS,
    ids=["no rows", "rows alone", "counted twice", "twice the friction", "no own friction", "no mass", "no basis"],
)
def test_errors_are_found(monkeypatch: pytest.MonkeyPatch, name: str, flaw: Any) -> None:
    monkeypatch.setattr(KroneckerNoise, name, flaw)
    assert off(monkeypatch, 1.0) > 0.01


def test_the_noise_is_learned_from_the_gradients() -> None:
    """Noise with a Kronecker-factored part and one direction across two tensors: their sum comes near the truth."""
    generator = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    left, right = torch.randn(6, 6, **options), torch.randn(8, 8, **options)
    across = torch.randn(48 + 5, **options) * 4
    theta, other = (torch.zeros(s, dtype=torch.float64, requires_grad=True) for s in ((6, 8), (5,)))
    mean = torch.randn(6, 8, **options)
    sampler = atmc.SGHMC([theta, other], lr=1e-6, friction=10.0, noise_rank=1, noise_kronecker=True)
    known: Any = sampler._kronecker
    found, times = torch.zeros(53, 53, dtype=torch.float64), 0
    for call in range(6400):
        shared = across * torch.randn((), **options)
        theta.grad = mean + left @ torch.randn(6, 8, **options) @ right + shared[:48].view(6, 8)
        other.grad = torch.randn(5, **options) + shared[48:]
        sampler.step()
        if call % 64 == 63 and call > 3000:
            for group in known.groups:
                basis = torch.kron(group.bases[0][0], group.bases[1][0] if group.shape[2] > 1 else torch.ones(1, 1))
                part = basis @ torch.diag(group.of(known.rest).flatten()) @ basis.T
                at = slice(0, 48) if group.shape[2] > 1 else slice(48, 53)
                found[at, at] += part
            row = torch.cat([sampler.state[p]["noise_0"].flatten() for p in (theta, other)])
            found += torch.outer(row, row)
            times += 1
    mixed = torch.kron(left, right.T.contiguous())
    right_answer = torch.block_diag(mixed @ mixed.T, torch.eye(5, dtype=torch.float64)) + torch.outer(across, across)
    found /= times
    # Not less: what is correlated between the row and the rest is left out, and the row is no eigenvector of the rest.
    assert torch.linalg.matrix_norm(found - right_answer) < 0.15 * torch.linalg.matrix_norm(right_answer)
    assert float(found.trace()) == pytest.approx(float(right_answer.trace()), rel=0.05)
    assert float(row @ row) < 0.6 * float(right_answer.trace())  # the one row alone would not do


@pytest.mark.parametrize("size", [(125, 8), (6, 8)], ids=["many", "few"])
def test_noise_without_directions_is_counted_once(size: tuple[int, int]) -> None:
    """Chance makes 16 rows too long where no direction stands out; the variances beside them make up for it."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(*size, requires_grad=True)
    sampler = atmc.SGHMC([theta], lr=1e-6, friction=10.0, noise_rank=16, noise_kronecker=True)
    known: Any = sampler._kronecker
    found, times = 0.0, 0
    for call in range(2400):
        theta.grad = torch.randn(size, generator=generator)
        sampler.step()
        if call % 16 == 15 and call > 1000:
            found += float(known.rest.sum() + known.rows.square().sum())
            times += 1
    assert found / times == pytest.approx(theta.numel(), rel=0.03)


def test_a_step_size_that_falls_takes_the_rows_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until K is renewed it must not be larger than it should be: rows would be thrown back and grow."""
    case = Case(monkeypatch, 10.0, 2.0, "SGHMC", 1.0)
    case.sampler.param_groups[0]["lr"] = H / 10
    p = torch.ones(DIM, dtype=torch.float64)
    zero = torch.zeros(DIM, dtype=torch.float64)
    for _ in range(16):
        p = torch.from_numpy(case.step(zero, p, zero, zero)[DIM:])
        assert float(p.norm()) < DIM**0.5
