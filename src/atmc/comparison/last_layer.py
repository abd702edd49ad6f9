"""The Laplace approximation of a network's last layer.

The last layer is affine in its features φ: f = W φ + b. With the rest fixed, the Gauss–Newton matrix of the loss at
θ = (W, b) is H = Σ_n Λ_n ⊗ (φ_n, 1)(φ_n, 1)ᵀ with Λ the Hessian of the loss in the outputs. The posterior is close to

    N(θ̂, (H + λ I)⁻¹)

λ maximises the marginal likelihood ½ P log λ − ½ λ ‖θ̂‖² − ½ log det(H + λ I), over a grid. That is the usual choice; on
data that the network fits without error it can come out too small, and the samples too far from θ̂.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atmc.common.errors import InputError

MOST = 6000  # numbers of a last layer whose matrix is made
GRID = torch.logspace(-4, 6, 101, dtype=torch.float64)


@dataclass(frozen=True)
class LastLayer:
    """The last layer of a network as a matrix and a bias, and a way to its inputs."""

    module: nn.Module
    weight: Tensor  # [outputs, features]
    bias: Tensor

    def features(self, run: Callable[[], object]) -> Tensor:
        """What reaches the last layer when `run` calls the network, in the order of the examples."""
        seen: list[Tensor] = []
        hook = self.module.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
        try:
            run()
        finally:
            hook.remove()
        return torch.cat(seen)


def find_last_layer(net: nn.Module, example: Tensor) -> LastLayer:
    """The module whose output is the network's, if it is affine; `InputError` says why not."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def record(module: nn.Module, given: Any, made: Any) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(made, Tensor) and not list(module.children()):
            calls.append((module, given[0].detach(), made.detach()))

    hooks = [module.register_forward_hook(record) for module in net.modules()]
    try:
        with torch.no_grad():
            outputs = net(example)
    finally:
        for hook in hooks:
            hook.remove()
    for module, given, made in reversed(calls):
        if given.ndim == 2 and made.shape == outputs.shape and torch.equal(made, outputs):
            with torch.no_grad():
                bias = module(torch.zeros(1, given.shape[1]))[0]
                weight = (module(torch.eye(given.shape[1])) - bias).T
            if torch.allclose(given @ weight.T + bias, made, atol=1e-4, rtol=1e-3):
                return LastLayer(module, weight, bias)
    raise InputError("the network does not end in a linear layer")


def laplace_samples(
    layer: LastLayer, features: Tensor, hessian: Tensor, test: Tensor, samples: int, seed: int
) -> Tensor:
    """Outputs `[samples, N, outputs]` for test features, of last layers drawn from the approximate posterior.

    `hessian` `[N, C, C]` is that of the loss in the outputs, for the training examples. All is computed where the
    features are, in float64.
    """
    outs, width = layer.weight.shape
    count = outs * (width + 1)
    if count > MOST:
        raise InputError(f"its last layer has {count:,} numbers, more than {MOST:,}")
    phi = _with_one(features)
    theta = torch.cat([layer.weight, layer.bias[:, None]], 1).to(phi)
    curvature = phi.new_zeros(count, count)
    tiny, grid = 1e-12 * torch.eye(outs).to(phi), GRID.to(phi)
    for rows in torch.split(torch.arange(len(phi)), max(1, 4_000_000 // count)):
        blocks = torch.linalg.cholesky(hessian[rows].to(phi) + tiny)
        # A row for each example and column of the factor, in the order (output, feature) of θ laid out flat.
        jacobian = torch.einsum("nok,nd->nkod", blocks, phi[rows]).reshape(-1, count)
        curvature += jacobian.T @ jacobian
    values, vectors = torch.linalg.eigh(curvature)
    values = values.clamp_min(0.0)
    evidence = 0.5 * count * grid.log() - 0.5 * grid * theta.square().sum()
    evidence -= 0.5 * (values[None] + grid[:, None]).log().sum(1)
    precision = float(grid[evidence.argmax()])
    noise = torch.randn(samples, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    moved = (noise.to(phi) / (values + precision).sqrt()) @ vectors.T
    weights = theta + moved.view(samples, outs, width + 1)
    return torch.einsum("kod,nd->kno", weights, _with_one(test))


def softmax_hessian(outputs: Tensor) -> Tensor:
    """diag(p) − p pᵀ."""
    p = torch.softmax(outputs.double(), -1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def noise_hessian(scale: Tensor, degrees: float | None = None, log_scales: bool = False) -> Tensor:
    """The Fisher information of locations, and of log scales where those are outputs too: diag(a/σ², b), `[N, C, C]`.

    a = 1 and b = 2 for Gaussian noise; (ν+1)/(ν+3) and 2ν/(ν+3) for Student-t noise. `scale` is σ of each output.
    """
    a, b = (1.0, 2.0) if degrees is None else ((degrees + 1) / (degrees + 3), 2 * degrees / (degrees + 3))
    parts = a / scale.double().square()
    return torch.diag_embed(torch.cat([parts, torch.full_like(parts, b)], 1) if log_scales else parts)


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features.double(), features.new_ones(len(features), 1).double()], 1)
