"""Law 12: friction along the gradient noise leaves the right law, however strong and correlated that noise is.

On a quadratic potential one step is linear in (θ, p), the gradient's noise and the added noise. Its matrices are read
off the sampler, column by column, and the stationary covariance solves a discrete Lyapunov equation: no Monte Carlo, so
every digit counts.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

import atmc
from atmc.samplers import backends, noise_friction, noise_rows

H, D, T, DIM = 0.1, 3.0, 1.5, 4
STIFF = torch.tensor(np.diag([1.0, 4.0, 20.0, 60.0]))
TURN = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
K = TURN @ STIFF @ TURN.T


def noise(strength: float, mass: Any) -> torch.Tensor:
    """A factor B of gradient noise B'B of rank 2, correlated between all parameters; h² λ/(4 m T) is `strength`."""
    rows = torch.randn(2, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    metric = torch.as_tensor(mass, dtype=torch.float64)
    scale = torch.linalg.matrix_norm((rows / metric.sqrt()), ord=2)
    return rows / scale * math.sqrt(4 * T * strength) / H


def one_step(monkeypatch: pytest.MonkeyPatch, factor: torch.Tensor | None, mass: Any, kind: str) -> Callable[..., Any]:
    """(θ, p, G, η) → (θ', p') of a sampler that knows this factor; None: one without the friction."""
    theta = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    rank = 0 if factor is None else 2
    masses: Any = [mass] if isinstance(mass, torch.Tensor) else mass
    options: dict[str, Any] = {} if kind == "SGHMC" else {"inertia": math.inf}
    sampler = getattr(atmc, kind)([theta], lr=H, mass=masses, friction=D, temperature=T, noise_rank=rank, **options)
    sampler.backend = "single"
    given = torch.zeros(DIM, dtype=torch.float64)
    monkeypatch.setattr(backends, "full_noise", lambda sampler, shard: [given])
    shard = sampler._shards[0]
    if factor is not None:
        orthogonal = torch.linalg.eigh(factor @ (factor / mass).T).eigenvectors.T @ factor
        for row, value in enumerate(orthogonal):
            shard.flat[f"noise_{row}"].copy_(value)
        noise_rows.derive(shard, rank)

    def step(theta0: Any, p: Any, grad: Any, eta: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            theta.copy_(theta0)
            sampler.state[theta]["momentum"].copy_(p)
            given.copy_(eta)
        theta.grad = grad.clone()
        sampler._calls = 0  # so that the factor stays as it is
        sampler.step()
        return theta.detach().clone(), sampler.state[theta]["momentum"].clone()

    return step


def stationary(step: Callable[..., Any], factor: torch.Tensor) -> Any:
    """The covariance of (θ, p) that the step leaves invariant, with gradient noise B'B."""
    zero, eye = torch.zeros(DIM, dtype=torch.float64), torch.eye(DIM, dtype=torch.float64)

    def column(theta: Any, p: Any, grad: Any, eta: Any) -> Any:
        return torch.cat(step(theta, p, grad, eta)).numpy()

    on_theta = [column(e, zero, K @ e, zero) for e in eye]
    on_p = [column(zero, e, zero, zero) for e in eye]
    on_noise = np.stack([column(zero, zero, row, zero) for row in factor], 1)
    on_eta = np.stack([column(zero, zero, zero, e) for e in eye], 1)
    move = np.stack([*on_theta, *on_p], 1)
    return solve_discrete_lyapunov(move, on_noise @ on_noise.T + on_eta @ on_eta.T)


def expected(mass: Any) -> Any:
    """T (K − h² K M⁻¹ K/4)⁻¹: the potential's own covariance, and leapfrog's bias of second order."""
    inverse = torch.diag(1 / torch.as_tensor(mass, dtype=torch.float64).expand(DIM))
    return T * torch.linalg.inv(K - H * H / 4 * K @ inverse @ K).numpy()


def off(monkeypatch: pytest.MonkeyPatch, strength: float, mass: Any = 2.0, kind: str = "SGHMC") -> float:
    """The largest relative error of a variance along an eigenvector of K."""
    factor = noise(strength, mass)
    found = stationary(one_step(monkeypatch, factor, mass, kind), factor)[:DIM, :DIM]
    turn, right = TURN.numpy(), expected(mass)
    ratios = np.einsum("ij,ik,kj->j", turn, found, turn) / np.einsum("ij,ik,kj->j", turn, right, turn)
    return float(np.abs(ratios - 1).max())


@pytest.mark.parametrize("kind", ["SGHMC", "ATMC", "SGNHT"])
@pytest.mark.parametrize("strength", [0.0, 0.01, 1.0, 30.0])
def test_the_covariance_is_exact_at_any_strength_of_the_noise(
    monkeypatch: pytest.MonkeyPatch, strength: float, kind: str
) -> None:
    assert off(monkeypatch, strength, kind=kind) < 1e-9


def test_masses_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    mass = torch.tensor([0.5, 1.0, 2.0, 6.0], dtype=torch.float64)
    assert off(monkeypatch, 1.0, mass) < 1e-9


def test_without_it_the_same_noise_widens_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = noise(1.0, 2.0)
    found = stationary(one_step(monkeypatch, None, 2.0, "SGHMC"), factor)[:DIM, :DIM]
    assert np.trace(found) > 2 * np.trace(expected(2.0))


def test_the_momentum_at_the_time_of_the_parameters_is_independent_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = noise(3.0, 2.0)
    both = stationary(one_step(monkeypatch, factor, 2.0, "SGHMC"), factor)
    # p is kept half a kick behind: q = p − (h/2) K θ.
    turn = np.block([[np.eye(DIM), np.zeros((DIM, DIM))], [-H / 2 * K.numpy(), np.eye(DIM)]])
    found = turn @ both @ turn.T
    assert np.abs(found[DIM:, :DIM]).max() < 1e-9
    assert np.allclose(found[DIM:, DIM:], 2.0 * T * np.eye(DIM), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("_strength", lambda lr, temperature: lr * lr / (2.0 * temperature)),
        ("_strength", lambda lr, temperature: lr * lr / 4.0),
        ("_tanh", lambda x: 0.0),
        ("mass_of", lambda shard: 1.0),
        ("ornstein", lambda *args: noise_friction_ornstein(*args)._replace(decay_minus_one=0.0)),
    ],
    ids=["twice the friction", "no temperature", "no own friction", "no mass", "no kick of the midpoint"],
)
def test_errors_are_found(monkeypatch: pytest.MonkeyPatch, name: str, flaw: Any) -> None:
    monkeypatch.setattr(noise_friction, name, flaw)
    assert off(monkeypatch, 1.0) > 0.01


noise_friction_ornstein = noise_friction.ornstein


def test_the_noise_is_learned_from_the_gradients() -> None:
    """Independent gradients of a known covariance: B'B comes near it, in the metric of the masses."""
    generator = torch.Generator().manual_seed(3)
    true = torch.randn(3, 20, generator=generator, dtype=torch.float64) * torch.tensor([[5.0], [3.0], [2.0]])
    theta = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    mean = torch.randn(20, generator=generator, dtype=torch.float64)
    sampler = atmc.SGHMC([theta], lr=1e-6, friction=10.0, noise_rank=6)
    total = torch.zeros(20, 20, dtype=torch.float64)
    for call in range(3200):
        theta.grad = mean + torch.randn(3, generator=generator, dtype=torch.float64) @ true
        sampler.step()
        if call % 16 == 15 and call > 200:
            rows = torch.stack([sampler.state[theta][f"noise_{i}"] for i in range(6)])
            total += rows.T @ rows
    found, right = total / total.trace(), true.T @ true / (true * true).sum()
    assert torch.linalg.matrix_norm(found - right) < 0.1 * torch.linalg.matrix_norm(right)
    assert total.trace() / len(range(207, 3200, 16)) == pytest.approx(float((true * true).sum()), rel=0.1)
