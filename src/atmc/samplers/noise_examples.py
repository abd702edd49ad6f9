"""Friction along the gradient of every example of the step's own mini-batch: nothing is learned, and nothing lags.

`noise_friction.py` and `noise_kronecker.py` learn the noise's covariance V from past gradients, and V changes with θ.
Here bᵢ is what example i adds to the gradient of U, dᵢ = √(n/(n−1)) (bᵢ − b̄) for n examples, and Σᵢ dᵢ dᵢᵀ is an
unbiased estimate of V at this very θ. The momentum step is the midpoint rule of `noise_friction.py` with the rows cᵢ dᵢ
in place of B:

    (1 + ρ + S) p' = (1 − ρ − S) p − h G' + √(4 m T ρ α/β) η,     S = h²/(4 m T) Σᵢ cᵢ² dᵢ dᵢᵀ

Given S it leaves the law of p as it is for noise of any strength whose signs are random. But force and friction are of
the same examples: the kick of example i would be shortened by 1 − ℓᵢ, where ℓᵢ is its leverage, the i-th diagonal
element of D (1 + ρ + S)⁻¹ Dᵀ h²/(4 m T) with the rows cᵢ dᵢ. So G' has (bᵢ − b̄)/(1 − ℓᵢ) for bᵢ − b̄, which leaves
the mean force as it is, and longer kicks need more friction: cᵢ = 1/(1 − ℓᵢ). With kᵢ = ℓᵢ/(cᵢ² (1 − ℓᵢ)) that is

    cᵢ = 2/(1 + √(1 − 4 kᵢ))     while kᵢ ≤ 1/4.

At kᵢ = 1/4 one kick is as large as the thermal momentum √(m T), and no friction in one step balances a larger one:
cᵢ = 1/√kᵢ then, which takes out the most, and T along the noise is above T. Smaller steps or larger batches help; kᵢ is
about (h N |∇nllᵢ|/2n)²/(m T).

Examples must be drawn independently of each other: in strata or without replacement their sum is less noisy than this,
and a batch of all data has no noise at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from atmc.common.matrix_views import columns_of, matrix_of
from atmc.common.tf32 import tf32
from atmc.samplers.flat_state import Shard, dense, view_like
from atmc.samplers.noise_friction import midpoint, prepare_readings, strengths, take_readings, write_gradient
from atmc.samplers.noise_rows import buffer, mass_of

# Of the fixed point for c. Forces are right whatever c is. At k = 0.2, friction is within 2 % of what the kicks of 64
# examples need in ten dimensions, within 4 % in three.
ROUNDS = 2
LIMIT = 0.25  # the largest k that friction balances
LEAST = 1e-12  # of k: where an example has no gradient


class Balance(NamedTuple):
    """What follows from the examples' Gram matrix."""

    stretch: Tensor  # c, for the friction
    leverage: Tensor  # ℓ
    inverse: Tensor  # L⁻¹ of 1 + K = L Lᵀ, K the Gram matrix of the rows c d
    excess: Tensor  # share of the examples whose kick is too large to be balanced


def balance(gram: Tensor) -> Balance:
    """From the matrix of dᵢ·dⱼ h²/(4 m T (1 + ρ))."""
    stretch = torch.ones_like(gram[0])
    inverse, leverage = _inverse(gram)
    alone = leverage / (1.0 - leverage)
    for _ in range(ROUNDS):
        stretch = torch.where(
            alone <= LIMIT, 2.0 / (1.0 + (1.0 - 4.0 * alone).clamp_min(0.0).sqrt()), alone.clamp_min(LEAST).rsqrt()
        )
        inverse, leverage = _inverse(gram * stretch[:, None] * stretch)
        alone = leverage / (stretch.square() * (1.0 - leverage))
    return Balance(stretch, leverage, inverse, (alone > LIMIT).double().mean())


def _inverse(gram: Tensor) -> tuple[Tensor, Tensor]:
    """L⁻¹, and the diagonal of K (1 + K)⁻¹."""
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    rounding = 8 * torch.finfo(gram.dtype).eps * gram.diagonal().amax()  # of a matrix of low rank
    root = torch.linalg.cholesky_ex(eye * (1.0 + rounding) + gram).L
    inverse = torch.linalg.solve_triangular(root, eye, upper=False)
    return inverse, 1.0 - inverse.square().sum(0)


def example_matrix(shard: Shard) -> Tensor:
    """What the examples add to the gradient, `p.grad_sample` of all parameters, as a matrix [examples, flat].

    They are then taken away: those of one step must not serve the next, whose gradient may come from elsewhere.
    """
    given = [getattr(p, "grad_sample", None) for p in shard.params]
    counts = {len(g) for g in given if isinstance(g, Tensor) and g.ndim}
    for name, p, g in zip(shard.names, shard.params, given, strict=True):
        fits = isinstance(g, Tensor) and g.shape[1:] == p.shape and len(counts) == 1
        if g is not None and not fits:
            shape = list(g.shape) if isinstance(g, Tensor) else type(g).__name__
            raise ValueError(
                f"grad_sample of parameter {name} must be [examples, *{list(p.shape)}], with as many examples as the "
                f"others, and is {shape}"
            )
    count = next(iter(counts), 0)
    if count < 2:
        raise ValueError(
            "noise_examples needs what each example of the batch adds to the gradient, two examples or more, in "
            "p.grad_sample: call potential.backward_each(x, y) in place of potential(x, y).backward(), and leave out a "
            "last batch of one example"
        )
    name = f"noise examples {count}"  # a recorded step goes on reading the one for its batches
    kept: Tensor | None = shard.scratch.get(name)
    if kept is None:
        kept = shard.scratch[name] = torch.zeros(count, shard.total, device=shard.device, dtype=shard.dtype)
    whole = [g for g in given if g is not None]
    for p in shard.params:
        p.grad_sample = None  # type: ignore[attr-defined]
    matrix = matrix_of(whole) if len(whole) == len(given) and whole[0].dtype == shard.dtype else None
    if matrix is not None:
        columns, gaps = _places(shard, matrix, whole)
        torch.index_select(matrix, 1, columns, out=kept)
        if len(gaps):
            kept.index_fill_(1, gaps, 0.0)
        return kept
    for p, offset, g in zip(shard.params, shard.offsets, given, strict=True):
        stride = p.stride() if dense(p) else torch.empty(p.shape, device="meta").stride()
        own = kept.as_strided((count, *p.shape), (shard.total, *stride), offset)
        if g is None:
            own.zero_()
        else:
            own.copy_(g)
    return kept


def _places(shard: Shard, matrix: Tensor, views: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The columns of the matrix in the order of the flat buffers, and which of these belong to no parameter."""
    layout = [(v.stride()[1:], v.storage_offset()) for v in views]
    known = shard.scratch.get("noise columns")
    if known is None or known[0] != layout:
        every = torch.arange(matrix.shape[1], device=matrix.device)
        places = torch.full((shard.total,), -1, device=shard.device)
        for p, offset, view in zip(shard.params, shard.offsets, views, strict=True):
            view_like(places, offset, p).copy_(columns_of(view, every))
        known = shard.scratch["noise columns"] = layout, places.clamp_min(0), (places < 0).nonzero().flatten()
    found: tuple[Tensor, Tensor] = known[1:]
    return found


def correct(sampler: Any, shard: Shard, grads: list[Tensor | None], measure: bool) -> None:
    """Put the friction, and what it would take off the forces, into the gathered gradient."""
    flat, rows = buffer(shard, "noise gradient"), example_matrix(shard)
    prepare_readings(shard, grads)
    if measure:
        take_readings(sampler, shard, flat)
    strength, drag = strengths(shard.groups[0])
    scale = strength / (drag + 1.0)
    found = balance(_gram(rows, mass_of(shard), scale))
    if "kick excess" not in shard.scratch:
        shard.scratch["kick excess"] = torch.zeros_like(found.excess)
    shard.scratch["kick excess"].copy_(found.excess)
    flat.add_(_centred(1.0 / (1.0 - found.leverage) - 1.0) @ rows)
    step = midpoint(sampler, shard, flat)
    along = _centred(rows @ step.moving) * found.stretch
    along = found.inverse.T @ (found.inverse @ along) * found.stretch
    count = len(rows)
    taken = (_centred(along) * (scale * count / (count - 1))).to(shard.dtype) @ rows
    write_gradient(flat, step, taken)


def _gram(rows: Tensor, mass: Any, scale: Any) -> Tensor:
    """The matrix of dᵢ·dⱼ/m, times `scale`."""
    scaled = rows / mass.sqrt() if isinstance(mass, Tensor) else rows
    with tf32():
        whole = scaled @ scaled.T
    whole = _centred(_centred(whole).T)
    count = len(rows)
    by = scale * count / (count - 1) / (1.0 if isinstance(mass, Tensor) else mass)
    gram: Tensor = (whole * by).to(rows.dtype)
    return gram


def _centred(values: Tensor) -> Tensor:
    """Without the mean over the last dimension."""
    return values - values.mean(-1, keepdim=True)
