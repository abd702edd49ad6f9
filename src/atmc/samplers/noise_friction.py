"""Friction along the gradient noise: the right law under mini-batches whose noise is correlated between parameters.

Gradient noise of covariance V heats the momentum by h² V in a step. It is balanced by the friction matrix hV/2T, and a
thermostat per element can supply only its diagonal. Here V is estimated as the chain goes, as B'B with `rank` rows B,
and the momentum step is the implicit midpoint rule with that friction beside the sampler's own β = (2/h) artanh ρ:

    (1 + ρ + S) p' = (1 − ρ − S) p − h G + √(4 m T ρ α/β) η,        S = h² V/(4 m T)

On a quadratic potential it leaves the momentum at the time of θ independent of θ and normal with variance mT, for noise
of any strength: the left and right sides differ by 4 m T (ρ + S) = h² V + 4 m T ρ. What V's estimate leaves out is the
thermostat's, as before. Written with p₀, the step without S,

    p' = p₀ − c B'[(1 + ρ) I + c B M⁻¹ B']⁻¹ B (K'(p) + K'(p₀)),     c = h²/4T

so it is one correction of low rank. It is put into the gradient, and the backends' own step does the rest. For a
hyperbolic K the velocity K'(p) takes the place of p/m. ρ = tanh(Dh/2) is the sampler's least friction, exact where
thermostats are below D.

`noise_kronecker.py` adds what lies within each tensor beyond these rows.

B comes from differences of the gradients of consecutive steps, so it costs no gradient. It must not know the step's own
mini-batch, or steps would be shorter for examples with large gradients: new differences are taken in after the step.
And mini-batches must be drawn independently: in a permuted epoch their noise adds up to zero, and the friction would
be too strong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atmc.samplers import backends
from atmc.samplers.flat_state import Shard
from atmc.samplers.integrator import ornstein, synchronised_virial
from atmc.samplers.kinetic_energy import inverse_momentum_scale, least_friction, slowing, thermostat_weight
from atmc.samplers.noise_rows import EVERY, buffer, derive, like_params, mass_of, rows_of, scale_of
from atmc.samplers.tensor_list import sqrt

# How long B remembers, in steps: at least LEAST, and PER_ROW for each of its rows. Noise changes with θ, so that a
# network (64–50–10, digits, batches of 20) was at 2.1 times T along the noise with 100 steps and at 3.1 with 500. But
# 50 rows from 100 steps are mostly chance: a regression in 50 dimensions had .94 of its standard deviations, with 400
# steps .99.
LEAST, PER_ROW = 100, 8


def check(groups: list[dict[str, Any]], shards: int, strang: bool, name: str) -> None:
    """Refuse what the friction is not made for: it is one matrix over all parameters."""
    if strang:
        raise ValueError(f"{name} needs integrator='leapfrog': the friction acts in one whole step")
    if shards > 1:
        raise ValueError(f"{name} needs all parameters on one device and in one precision")
    first = groups[0]
    for number, group in enumerate(groups[1:], start=1):
        for key in ("lr", "temperature", "friction", "momentum", "speed_limit"):
            mine, other = first[key], group[key]
            same = mine is other if isinstance(mine, Tensor) or isinstance(other, Tensor) else mine == other
            if not same:
                raise ValueError(f"{name} needs one {key} for all groups, and that of group {number} differs")


def gather(shard: Shard, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Copies of the gradients in one flat buffer, which stays where it is, as views shaped like the parameters."""
    flat = buffer(shard, "noise gradient")
    views = [None if g is None else v for g, v in zip(grads, like_params(shard, flat), strict=True)]
    torch._foreach_copy_([v for v in views if v is not None], [g for g in grads if g is not None])
    return views


class Midpoint(NamedTuple):
    """The step without friction along the noise: K'(p) + K'(p₀), h (1 + e^(−bh))/2, and the factor of the kick."""

    moving: Tensor
    half: Any
    kick: Any


def midpoint(sampler: Any, shard: Shard, flat: Tensor) -> Midpoint:
    """From the gradient `flat`."""
    group, mass = shard.groups[0], mass_of(shard)
    inverse_scale = inverse_momentum_scale(mass, group["speed_limit"])
    p, (alpha, beta) = shard.flat["momentum"], _coefficients(sampler, shard)
    r = slowing(p, inverse_scale)
    own = ornstein(beta * r, alpha, group["lr"], mass, group["temperature"])
    half = (own.decay_minus_one + 2.0) * (group["lr"] * 0.5)  # the kick of the midpoint rule
    eta = backends.full_noise(sampler, shard)[0]
    plain = p + p * own.decay_minus_one - flat * half + eta * sqrt(own.variance)
    return Midpoint((p * r + plain * slowing(plain, inverse_scale)) / mass, half, own.kick)


def write_gradient(flat: Tensor, step: Midpoint, taken: Tensor) -> None:
    """Make of the gradient one with which the backend's own step takes this off the momentum."""
    flat.mul_(step.half).add_(taken).div_(step.kick)


def correct(sampler: Any, shard: Shard, grads: list[Tensor | None], measure: bool) -> None:
    """Put the friction into the gathered gradient, and keep its difference from the last one for later steps."""
    flat = buffer(shard, "noise gradient")
    rows = rows_of(shard, sampler.noise_rank)
    factor, fresh, last = rows[: sampler.noise_rank], rows[sampler.noise_rank : -1], rows[-1]
    prepare_readings(shard, grads)
    if measure:
        take_readings(sampler, shard, flat)
    step = midpoint(sampler, shard, flat)
    strength, drag = strengths(shard.groups[0])
    if sampler._kronecker is None:
        along = (factor @ step.moving).double() * strength
        along = along / (scale_of(shard, sampler.noise_rank) * strength + (drag + 1.0))
        taken = factor.T @ along.to(shard.dtype)
    else:
        taken = sampler._kronecker.friction(shard, step.moving, strength, drag)
    difference = torch.sub(flat, last).mul_(math.sqrt(0.5))
    new = torch.where(shard.step > 0, difference, torch.zeros_like(difference))  # the first step has none
    fresh.index_copy_(0, torch.remainder(shard.step, EVERY).reshape(1), new[None])
    last.copy_(flat)
    write_gradient(flat, step, taken)


def update(sampler: Any, steps: int) -> None:
    """Take the differences of the last EVERY steps into B. To be called after every EVERY-th step.

    B becomes the best factor of its rank, in the metric of 1/m, of an average over the last steps (over all of them at
    first). Its rows are orthogonal in that metric. Cannot be captured in a CUDA graph: eigenvectors of a small matrix
    are found on the host, while the device learns what lies within tensors.
    """
    (shard,), rank, within = sampler._shards, sampler.noise_rank, sampler._kronecker
    share = max(-math.expm1(-EVERY / max(LEAST, PER_ROW * rank)), EVERY / max(steps, EVERY))
    rows = rows_of(shard, rank)
    factor, fresh = rows[:rank], rows[rank:-1]
    both = torch.cat([factor * math.sqrt(1.0 - share), fresh * math.sqrt(share / EVERY)])
    gram = on_host((both @ (both / mass_of(shard)).T).double())
    learned = None if within is None else on_host(within.learn(shard, rank))
    found = gram()
    if bool(found.isfinite().all()):  # else the chain diverges, which is told elsewhere
        best = torch.linalg.eigh(found).eigenvectors[:, -rank:].T.to(both.dtype)
        factor.copy_(on_device(best, both.device) @ both)
    derive(shard, rank)
    if within is not None and learned is not None:
        within.derive(shard, *strengths(shard.groups[0]))
        within.updates += int(learned())


def on_host(value: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host; call what is returned to have it."""
    copied = value.to("cpu", non_blocking=True)
    if not value.is_cuda:
        return lambda: copied
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(value.device))

    def wait() -> Tensor:
        done.synchronize()
        return copied

    return wait


def on_device(value: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for what is under way there."""
    return value.contiguous().pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value


def strengths(group: dict[str, Any]) -> tuple[Any, Any]:
    """h²/4T, which makes a covariance of the noise a friction, and ρ of the sampler's least friction."""
    lr = group["lr"]
    return _strength(lr, group["temperature"]), _tanh(lr * (0.5 * least_friction(group)))


def _strength(lr: Any, temperature: Any) -> Any:
    """h²/4T; 0 at T = 0, where nothing is to be kept at a temperature."""
    if isinstance(lr, Tensor) or isinstance(temperature, Tensor):
        value = lr * lr / (temperature * 4.0)
        return torch.where(torch.isfinite(value), value, torch.zeros_like(value)).double()
    return lr * lr / (4.0 * temperature) if temperature > 0.0 else 0.0


def _tanh(x: Any) -> Any:
    return torch.tanh(x).double() if isinstance(x, Tensor) else math.tanh(x)


def _coefficients(sampler: Any, shard: Shard) -> tuple[Any, Any]:
    """(α, β) of the sampler's own noise and friction."""
    kept, group = shard.flat.get("thermostat"), shard.groups[0]
    xi = None if kept is None else kept * thermostat_weight(group)
    found: tuple[Any, Any] = sampler.coefficients(xi, least_friction(group))
    return found


def prepare_readings(shard: Shard, grads: list[Tensor | None]) -> None:
    """Lengths and gaps that readings need, from the host: before a step that measures is recorded."""
    if "noise lengths" not in shard.scratch:
        lengths = torch.tensor([*shard.offsets, shard.total], device="cpu").diff()
        absent = torch.tensor([0.0 if grad is not None else math.nan for grad in grads], dtype=torch.float64)
        shard.scratch["noise lengths"] = lengths.to(shard.device), absent.to(shard.device)


def take_readings(sampler: Any, shard: Shard, flat: Tensor) -> None:
    """The sums that the backends would take, from the gradient as it is before the friction is put into it."""
    group, mass = shard.groups[0], mass_of(shard)
    inverse_scale = inverse_momentum_scale(mass, group["speed_limit"])
    p, beta = shard.flat["momentum"], _coefficients(sampler, shard)[1]
    virial = synchronised_virial(p, flat, beta, lr=group["lr"], mass=mass, inverse_scale=inverse_scale)
    shard.scratch["own readings"] = True
    weights = buffer(shard, "noise weights")
    torch._foreach_copy_(like_params(shard, weights), [p.detach() for p in shard.params])
    lengths, absent = shard.scratch["noise lengths"]
    for column, values in enumerate((virial, weights * flat)):
        sums = torch.segment_reduce(values.double(), "sum", lengths=lengths, unsafe=True)
        shard.readings[:, column].copy_(sums + absent)
