"""Law 14: friction along the gradients of a step's own examples leaves the right law, with real mini-batches.

The step is held against its formula with explicit matrices; what force and friction of one example do to each other
against the same step without that example's friction; and chains on a least-squares problem, whose posterior is known,
against its variances. Every error that is put back is found.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import atmc
from atmc.samplers import backends, noise_examples

H, D, T, DIM, COUNT = 0.1, 3.0, 1.5, 6, 9


def rows(strength: float, seed: int = 0) -> Tensor:
    """What nine examples add to the gradient; the largest k without other examples is about `strength`."""
    given = torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    return given / given.norm(dim=1).max() * math.sqrt(4 * T * strength) / H


def moved(monkeypatch: pytest.MonkeyPatch, b: Tensor, mass: Any, kind: str = "SGHMC") -> tuple[Tensor, ...]:
    """(p, prior's gradient, η, p') of one step."""
    generator = torch.Generator().manual_seed(5)
    p, prior, eta = torch.randn(3, DIM, generator=generator, dtype=torch.float64)
    theta = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    masses: Any = [mass] if isinstance(mass, Tensor) else mass
    options: dict[str, Any] = {} if kind == "SGHMC" else {"inertia": math.inf}
    sampler = getattr(atmc, kind)([theta], lr=H, mass=masses, friction=D, temperature=T, noise_examples=True, **options)
    sampler.backend = "single"
    monkeypatch.setattr(backends, "full_noise", lambda sampler, shard: [eta])
    sampler.state[theta]["momentum"].copy_(p)
    theta.grad_sample = b.clone()  # type: ignore[attr-defined]
    theta.grad = b.sum(0) + prior
    sampler.step()
    return p, prior, eta, sampler.state[theta]["momentum"].clone()


def friction(b: Tensor, mass: Any) -> tuple[Tensor, Tensor]:
    """The rows d in units of √m, and what is asked of c: S of the rows c d."""
    d = (b - b.mean(0)) * math.sqrt(COUNT / (COUNT - 1)) / torch.as_tensor(mass, dtype=torch.float64).sqrt()
    return d, H * H / (4 * T) * d.T @ d


def stretched(b: Tensor, mass: Any) -> tuple[Tensor, Tensor]:
    """c and ℓ by a slow fixed point on explicit matrices."""
    rho, d = math.tanh(D * H / 2), friction(b, mass)[0] * H / math.sqrt(4 * T)
    c = torch.ones(COUNT, dtype=torch.float64)
    for _ in range(200):
        whole = (1 + rho) * torch.eye(DIM, dtype=torch.float64) + (c[:, None] * d).T @ (c[:, None] * d)
        leverage = ((c[:, None] * d) @ torch.linalg.inv(whole) * (c[:, None] * d)).sum(1)
        c = 0.5 * c + 0.5 / (1 - leverage)
    return c, leverage


@pytest.mark.parametrize("kind", ["SGHMC", "ATMC", "SGNHT"])
@pytest.mark.parametrize("mass", [2.0, torch.tensor([0.5, 1.0, 2.0, 6.0, 1.5, 3.0], dtype=torch.float64)], ids=str)
@pytest.mark.parametrize("strength", [0.001, 0.05, 0.2])
def test_the_step_is_the_midpoint_rule(monkeypatch: pytest.MonkeyPatch, strength: float, mass: Any, kind: str) -> None:
    if noise_examples.ROUNDS:
        monkeypatch.setattr(noise_examples, "ROUNDS", 60)
    b, rho = rows(strength), math.tanh(D * H / 2)
    p, prior, eta, found = moved(monkeypatch, b, mass, kind)
    root = torch.as_tensor(mass, dtype=torch.float64).sqrt()
    c, leverage = stretched(b, mass)
    d = c[:, None] * friction(b, mass)[0] * H / math.sqrt(4 * T)
    s, eye = d.T @ d, torch.eye(DIM, dtype=torch.float64)
    force = b.sum(0) + ((b - b.mean(0)) * (1 / (1 - leverage) - 1)[:, None]).sum(0) + prior
    own = 2 * math.sqrt(rho * T) * eta  # α = β: √(4 m T ρ), in units of √m
    right = ((1 - rho) * eye - s) @ (p / root) - H * force / root + own
    assert torch.allclose(found / root, torch.linalg.solve((1 + rho) * eye + s, right), rtol=1e-8, atol=1e-10)


def test_a_kick_is_as_long_as_without_its_own_friction() -> None:
    """(1 + ρ + S)⁻¹ d/(1 − ℓ) = (1 + ρ + S − own part)⁻¹ d: what makes forces right on average."""
    b, rho = rows(0.2), math.tanh(D * H / 2)
    d = friction(b, 1.0)[0] * H / math.sqrt(4 * T)
    found = noise_examples.balance(d @ d.T / (1 + rho))
    cd = found.stretch[:, None] * d
    eye = torch.eye(DIM, dtype=torch.float64)
    for i in range(COUNT):
        others = torch.cat([cd[:i], cd[i + 1 :]])
        with_own = torch.linalg.solve((1 + rho) * eye + cd.T @ cd, d[i]) / (1 - found.leverage[i])
        assert torch.allclose(with_own, torch.linalg.solve((1 + rho) * eye + others.T @ others, d[i]))


def test_the_fixed_point_is_near_after_its_rounds() -> None:
    """k of 0.2 at most and Gram matrices from one direction to many: c within 1.5 % of what kicks need."""
    for seed in range(5):
        for dim in (1, 3, 40):
            given = torch.randn(32, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            gram = given @ given.T
            gram = gram * 0.2 / gram.diagonal().max()
            found = noise_examples.balance(gram)
            assert float(found.excess) == 0.0
            assert float((found.stretch * (1 - found.leverage) - 1).abs().max()) < 0.015


def test_kicks_larger_than_the_thermal_momentum_are_counted() -> None:
    gram = torch.diag(torch.tensor([0.01, 0.1, 0.3, 4.0], dtype=torch.float64))
    found = noise_examples.balance(gram)
    assert float(found.excess) == 0.5
    assert torch.allclose(found.leverage[2:], torch.full((2,), 0.5, dtype=torch.float64))  # takes out the most


# -- chains ------------------------------------------------------------------------------------------------------------

EXAMPLES, INPUTS, BATCH = 512, 8, 32


def variances(steps: int, lr: float, by_example: bool, seed: int = 0) -> tuple[Tensor, float]:
    """Variances over those of leapfrog in the Hessian's eigenbasis, the stiffest last, and T along the noise.

    Least squares with condition number 100. Leapfrog has 1/(λ (1 − h²λ/4)) along an eigenvector.
    """
    rng = torch.Generator().manual_seed(11)
    x = torch.randn(EXAMPLES, INPUTS, generator=rng, dtype=torch.float64)
    left, _, right = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    x = math.sqrt(EXAMPLES) * left * torch.logspace(-1, 0, INPUTS, dtype=torch.float64) @ right
    y = x @ torch.randn(INPUTS, generator=rng, dtype=torch.float64)
    y += torch.randn(EXAMPLES, generator=rng, dtype=torch.float64)
    curve = x.T @ x + torch.eye(INPUTS, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(curve)
    centre = torch.linalg.solve(curve, x.T @ y)
    start = centre + vectors @ (values.rsqrt() * torch.randn(INPUTS, generator=rng, dtype=torch.float64))
    p = torch.nn.Parameter(start)
    options: dict[str, Any] = {"lr": lr, "friction": -math.log(0.9) / lr, "momentum_init": "law"}
    sampler = atmc.ATMC([p], mass=1.0, seed=seed + 5, noise_examples=by_example, **options)
    rng.manual_seed(seed + 6)

    def parts() -> Tensor:
        index = torch.randint(EXAMPLES, (BATCH,), generator=rng)
        return x[index] * (x[index] @ p.detach() - y[index])[:, None] * (EXAMPLES / BATCH)

    found, moments = [], torch.zeros(INPUTS, dtype=torch.float64)
    for number in range(steps):
        if number % 5 == 0:
            found.append(float(sampler.noise_temperature(*([parts().sum(0) + p.detach()] for _ in range(2)))))
        given = parts()
        p.grad, p.grad_sample = given.sum(0) + p.detach(), given  # type: ignore[attr-defined]
        sampler.step()
        moments += (vectors.T @ (p.detach() - centre)) ** 2 / steps
    return moments * values * (1 - lr * lr * values / 4), sum(found) / len(found)


def test_least_squares_has_its_posterior() -> None:
    """The stiffest three variances are within 2 % over 6 seeds of this length, one seed scatters by 2 %."""
    ratios, heat = variances(6_000, 0.02, True)
    assert float(ratios[-3:].mean()) == pytest.approx(1.0, abs=0.08)
    assert heat == pytest.approx(1.0, abs=0.12)
    without, hot = variances(3_000, 0.02, False)
    assert float(without[-3:].mean()) > 1.7
    assert hot > 1.5


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("_centred", lambda values: values),
        ("ROUNDS", 0),
        ("LIMIT", 0.0),
        ("strengths", lambda group: (2 * true_strengths(group)[0], true_strengths(group)[1])),
        ("strengths", lambda group: (true_strengths(group)[0], 0.0)),
        ("mass_of", lambda shard: 1.0),
        ("balance", lambda gram: true_balance(gram)._replace(leverage=torch.zeros(COUNT, dtype=torch.float64))),
    ],
    ids=["mean kept", "c = 1", "c too large", "twice the friction", "no own friction", "no mass", "kicks left short"],
)
def test_errors_are_found(monkeypatch: pytest.MonkeyPatch, name: str, flaw: Any) -> None:
    monkeypatch.setattr(noise_examples, name, flaw)
    with pytest.raises(AssertionError):
        test_the_step_is_the_midpoint_rule(monkeypatch, 0.2, 2.0, "SGHMC")


true_strengths, true_balance = noise_examples.strengths, noise_examples.balance
