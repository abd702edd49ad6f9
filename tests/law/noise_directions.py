"""The temperature along the gradient noise, against numbers that are known: T, or that of a linear recursion.

`harmonic` is SGHMC on a quadratic potential with gradient noise along one direction v. The step is linear, so its
stationary covariance solves a discrete Lyapunov equation, and what should be read along v follows: T without noise, and
far above it where noise comes with every gradient. `drawn` gives a sampler momenta from the law itself and reads along
random directions. `regression` is least squares with real mini-batches, where the posterior is known exactly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

import atmc
from atmc.samplers.kinetic_energy import sample_momentum

from .harness import SEED, Estimate, Verdict, judge

STIFFNESS = torch.tensor([1.0, 0.4, 3.0, 0.8], dtype=torch.float64)  # of the eigenvectors of H, in units of √m
MASS = torch.tensor([0.5, 0.5, 3.0, 3.0], dtype=torch.float64)
ALONG = torch.tensor([1.0, -0.5, 2.0, 1.5], dtype=torch.float64)  # v: mixes parameters, masses and stiffnesses
T, FRICTION, H = 1.5, 0.8, 0.9
BLOCKS = 40


def hessian() -> Tensor:
    """H: a rotation of the stiffnesses, so that it does not commute with the noise."""
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)).Q
    root = MASS.sqrt()
    return root[:, None] * (turn @ torch.diag(STIFFNESS) @ turn.T) * root


def stationary(level: float) -> np.ndarray[Any, Any]:
    """Covariance of (θ, p) under SGHMC's discrete step, with gradient noise level·v·N(0, 1)."""
    h, m, d = H, MASS.numpy(), FRICTION
    a, kick, variance = math.exp(-d * h), (1 - math.exp(-d * h)) / d, T * (1 - math.exp(-2 * d * h))
    curve, v = hessian().numpy(), ALONG.numpy()
    momentum = np.hstack([-kick * curve, a * np.eye(4)])  # p' of (θ, p)
    move = np.vstack([np.hstack([np.eye(4), np.zeros((4, 4))]) + h * momentum / m[:, None], momentum])
    into = np.vstack([h * np.diag(1 / m), np.eye(4)])
    shaken = np.diag(variance * m) + (kick * level) ** 2 * np.outer(v, v)
    return np.asarray(solve_discrete_lyapunov(move, into @ shaken @ into.T))


def predicted(level: float) -> float:
    """The mean reading along v in that law: of p less half a kick, on average over the next gradient."""
    covariance, v, w = stationary(level), ALONG.numpy(), (ALONG / MASS).numpy()
    half = math.tanh(FRICTION * H / 2) / FRICTION
    synchronised = covariance[4:, 4:] - half * covariance[4:, :4] @ hessian().numpy()
    return float(w @ synchronised @ w / (v @ w))


def harmonic(level: float, count: int = 5000, steps: int = 0, seed: int = SEED) -> Verdict:
    """Readings along v from fresh gradients: in `count` independent draws of the law, or in a chain of `steps`."""
    parts = [torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
    sampler = atmc.SGHMC(parts, lr=H, friction=FRICTION, temperature=T, mass=[0.5, 3.0], seed=seed + 1)
    curve, rng = hessian(), torch.Generator().manual_seed(seed + 2)
    root = torch.linalg.cholesky(torch.from_numpy(stationary(level)))
    found = []

    def put(values: Tensor) -> None:
        for p, theta, momentum in zip(parts, values[:4].split(2), values[4:].split(2), strict=True):
            p.data.copy_(theta)
            sampler.state[p]["momentum"].copy_(momentum)

    put(root @ torch.randn(8, generator=rng, dtype=torch.float64))
    for number, shakes in enumerate(torch.randn(steps or count, 3, generator=rng, dtype=torch.float64).tolist()):
        exact = curve @ torch.cat([p.detach() for p in parts])
        if not steps or number % 4 == 0:
            fresh = ((exact + (level or 1.0) * shake * ALONG).split(2) for shake in shakes[:2])
            found.append(sampler.noise_temperature(*fresh))
        if not steps:
            put(root @ torch.randn(8, generator=rng, dtype=torch.float64))
            continue
        for p, grad in zip(parts, (exact + level * shakes[2] * ALONG).split(2), strict=True):
            p.grad = grad
        sampler.step()
    return judge({"along v": _in_blocks(torch.stack(found))}, {"along v": predicted(level)})


def drawn(speed_limit: float, count: int = 2500, seed: int = SEED) -> Verdict:
    """Momenta from the law exp(−K(p)/T), no gradient but the noise itself, four gradients at a time."""
    p = torch.nn.Parameter(torch.zeros(24, dtype=torch.float64))
    sampler = atmc.ATMC([p], lr=1e-6, mass=2.0, temperature=T, speed_limit=speed_limit, seed=seed)
    draws, rng = np.random.default_rng(seed + 3), torch.Generator().manual_seed(seed + 4)
    weights = torch.linspace(0.1, 3.0, 24, dtype=torch.float64)  # noise is not alike in all directions
    found = []
    for _ in range(count):
        sampler.state[p]["momentum"].copy_(sample_momentum(p, 2.0, speed_limit, T, draws))
        grads = torch.randn(4, 24, generator=rng, dtype=torch.float64) * weights
        found.append(sampler.noise_temperature(*([grad] for grad in grads)))
    return judge({"drawn": Estimate.of(torch.stack(found))}, {"drawn": T})


def regression(batch: int, steps: int, lr: float, seed: int = SEED) -> tuple[Estimate, Tensor]:
    """ATMC on least squares: the reading over T, and variances over the exact ones in the Hessian's eigenbasis.

    512 examples, 8 inputs, condition number 100, momentum 0.9; batches are drawn anew at each step. The widest
    variances need thousands of steps, the stiffest, which come last, a few.
    """
    rng = torch.Generator().manual_seed(11)
    x = torch.randn(512, 8, generator=rng, dtype=torch.float64)
    left, _, right = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    x = math.sqrt(512) * left * torch.logspace(-1, 0, 8, dtype=torch.float64) @ right
    y = x @ torch.randn(8, generator=rng, dtype=torch.float64) + torch.randn(512, generator=rng, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(x.T @ x + torch.eye(8, dtype=torch.float64))
    centre = torch.linalg.solve(x.T @ x + torch.eye(8, dtype=torch.float64), x.T @ y)
    start = centre + vectors @ (values.rsqrt() * torch.randn(8, generator=rng, dtype=torch.float64))
    p = torch.nn.Parameter(start)
    options = {"lr": lr, "friction": -math.log(0.9) / lr, "momentum_init": "law"}
    sampler = atmc.ATMC([p], mass=1.0, seed=seed + 5, **options)
    rng.manual_seed(seed + 6)

    def gradient(count: int) -> Tensor:
        index = torch.randint(512, (count,), generator=rng) if count < 512 else slice(None)
        rows = x[index]
        return rows.T @ (rows @ p.detach() - y[index]) * (512 / count) + p.detach()

    found, moments = [], torch.zeros(8, dtype=torch.float64)
    for number in range(steps):
        if number % 5 == 0:
            few = min(batch, 32)
            found.append(sampler.noise_temperature([gradient(few)], [gradient(few)]))
        p.grad = gradient(batch)
        sampler.step()
        moments += (vectors.T @ (p.detach() - centre)) ** 2 / steps
    return _in_blocks(torch.stack(found[len(found) // 10 :])), moments * values


def _in_blocks(values: Tensor) -> Estimate:
    """Readings of one chain resemble their neighbours: blocks of them do not."""
    size = len(values) // BLOCKS
    return Estimate.of(values[len(values) - size * BLOCKS :].view(BLOCKS, size).mean(1))
