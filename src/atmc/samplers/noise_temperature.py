"""The temperature along the gradient noise: whether the directions that mini-batches shake are as warm as asked.

The kinetic temperature is a mean over all parameters, and the thermostat of each parameter holds it at T. Mini-batch
noise is correlated between parameters: it heats a few directions, and the thermostats take as much out of all the
others. The mean stays at T while the law is off by O(h) (docs/minibatches.md). So p is read along the noise itself.
With u the difference of two fresh mini-batch gradients at one θ, and q the momentum at the time of θ,

    (u·K'(q)) (u·q/m) / (u·u/m),      for a Gaussian K and one mass (q·u)²/(m |u|²),

has the mean T for any fixed u, since elements of q are independent with ⟨q K'(q)⟩ = T, whatever K is. Readings are
averaged as they are: weighted by |u|² they would count the places where gradients are noisiest, and read above T in
chains that are right.

q comes from the p that is kept, half a kick behind, as in `integrator.synchronised_virial`: F(p) − ½ ρG·∇F(p) for
F(p) = (u·K'(p)) (u·p/m), with ρ = tanh(b h/2)/b and G the mean of the gradients. k gradients at one θ have k − 1
contrasts of equal covariance; each is one reading.

With friction along the noise (`noise_friction.py`) each contrast is read a second time without its part in the rows B
that the friction knows. Strong directions are then at T, and in u·p they outweigh the weaker ones that a low rank
leaves out: a linear regression in 50 dimensions with rank 16 had 0.65 of its standard deviations, 1.1 T along u and
1.9 T along the rest. Where the law is right both have the mean T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atmc.samplers.integrator import TINY
from atmc.samplers.kinetic_energy import slowing
from atmc.samplers.tensor_list import expm1

Gradients = Sequence[Tensor | None]


def contrasts(grads: Sequence[Tensor]) -> list[Tensor]:
    """k − 1 combinations of k gradients that are free of their mean, uncorrelated, and as noisy as one gradient."""
    total, found = grads[0], []
    for n, grad in enumerate(grads[1:], start=1):
        found.append((total - grad * n) / math.sqrt(n * (n + 1)))
        total = total + grad
    return found


def remainders(us: Sequence[Sequence[Tensor]], rows: Sequence[Tensor], masses: Sequence[Any], scale: Tensor) -> Any:
    """The contrasts of each parameter without their part in B, whose rows are orthogonal in the metric of 1/m.

    `us` and `rows` [rank, ...] have one entry for each parameter, `scale` the diagonal of B M⁻¹ B'.
    """
    inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
    parts = zip(us, rows, masses, strict=True)
    along: Any = sum(
        torch.stack([(row.flatten(1) @ (u / mass).flatten()).double() for u in own]) for own, row, mass in parts
    )
    along = along * inverse
    return [
        [u - torch.tensordot(share.to(u.dtype), row, 1) for u, share in zip(own, along, strict=True)]
        for own, row in zip(us, rows, strict=True)
    ]


def sums_along(
    us: Sequence[Tensor], mean: Tensor, p: Tensor, beta: Any, *, lr: Any, mass: Any, inverse_scale: Any
) -> list[Tensor]:
    """One parameter's part of the five sums that `reading` needs, for each u and the mean gradient G.

    Σ u K'(p), Σ u p/m, Σ u r³ ρG/m, Σ u ρG/m and Σ u²/m, in double precision.
    """
    r = slowing(p, inverse_scale)
    x = beta * r * lr + TINY
    e = expm1(-x)
    reach = -(e / x) * lr / (e + 2.0)  # ρ = tanh(b h/2)/b, which is h/2 without friction
    kick = mean * reach / mass
    still = p / mass
    rows = []
    for u in us:
        along = [still * r, still, kick * r * r * r, kick, u / mass]
        rows.append(torch.stack([(u * v).sum(dtype=torch.float64) for v in along]))
    return rows


def reading(sums: Tensor) -> Tensor:
    """The mean over contrasts of F(p) − ½ ρG·∇F(p), over u·u/m; `sums` [contrasts, 5] are those of all parameters.

    NaN where there is no noise to read along.
    """
    moving, still, bent, kick, square = sums.unbind(1)
    product = moving * still - 0.5 * (bent * still + moving * kick)
    return (product / torch.where(square > 0, square, math.nan)).mean()


def check_gradients(gradients: Sequence[Gradients], params: int) -> None:
    """Refuse what no difference can be made of."""
    if len(gradients) < 2:
        raise ValueError("noise_temperature needs the gradients of two mini-batches or more, at the same parameters")
    for number, each in enumerate(gradients):
        if len(each) != params:
            raise ValueError(
                f"noise_temperature: gradients {number} are {len(each)} tensors, and there are {params} parameters"
            )
