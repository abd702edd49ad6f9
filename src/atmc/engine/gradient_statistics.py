"""Looking before moving: masses and thermostats from the gradient itself, measured where the sampler begins.

Before the sampler's first step the gradient of U is taken on a few dozen batches, the chain standing still. Masses may
be measured again until burn-in ends (`sampler.mass_looks`), and never after: a mass that goes on following the gradient
makes the chain slow where gradients are large, and so the law wrong.
- Its second moment gives masses: a parameter whose gradient is k times as large gets k times the mass, hence √k times
  less speed. Any fixed mass leaves the same law of the parameters; this one makes one step size serve stiff and soft
  directions alike. Masses are scaled so that their geometric mean is the recipe's own.
- Its variance gives the thermostat's equilibrium ξ̄ = h Var(G)/(2 m T), where a chain otherwise arrives only after the
  thermostat has integrated that much heat.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from atmc.engine.step import Step
from atmc.recipe.settings import SamplerSection
from atmc.samplers import Sampler, noise_rows

# A mass may differ from the common one by this factor: beyond it the estimate speaks of dead units, not of stiffness.
SPAN = 30.0
Masses = list[Tensor] | list[float]


@dataclass(frozen=True)
class Gradients:
    """Mean square and variance of the gradient of U, element by element, one tensor for each parameter."""

    square: list[Tensor]
    variance: list[Tensor]


def look(step: Step, first: int, batches: int) -> Gradients:
    """Take `batches` gradients at the present weights, beginning with the data of step `first`; nothing moves."""
    total = [torch.zeros_like(p) for p in step.params]
    square = [torch.zeros_like(p) for p in step.params]
    for number in range(first, first + batches):
        grads = step.gradient(number)
        torch._foreach_add_(total, grads)
        torch._foreach_addcmul_(square, grads, grads)
    torch._foreach_div_(total, float(batches))
    torch._foreach_div_(square, float(batches))
    spread = [(s - t * t).clamp_min(0.0) * (batches / max(1, batches - 1)) for s, t in zip(square, total, strict=True)]
    return Gradients(square, spread)


def masses(found: Gradients, section: SamplerSection, common: float) -> Masses | None:
    """One mass per tensor or per element, or None where the recipe wants a common one."""
    if section.mass_from == "none":
        return None
    if section.mass_from == "tensor":
        rms = torch.stack([t.double().mean().sqrt() for t in found.square])
        sizes = torch.tensor([t.numel() for t in found.square], dtype=torch.float64, device=rms.device)
        return [common * float(r) for r in (rms / _centre(rms, sizes)).clamp(1 / SPAN, SPAN)]
    roots = [t.double().sqrt() for t in found.square]
    flat = torch.cat([r.reshape(-1) for r in roots])
    centre = _centre(flat, torch.ones_like(flat))
    return [(common * (r / centre).clamp(1 / SPAN, SPAN)).to(t) for r, t in zip(roots, found.square, strict=True)]


def _centre(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted geometric mean of those that are not 0: a dead unit says nothing about the others."""
    alive = (values > 0) * weights
    return ((values.clamp_min(1e-300).log() * alive).sum() / alive.sum().clamp_min(1e-300)).exp()


@torch.no_grad()
def change_masses(sampler: Sampler, new: Masses) -> None:
    """Give a sampler other masses, one for each parameter. Momenta go with √m, which keeps a Gaussian K in its law."""
    first = 0
    for group in sampler.param_groups:
        params, mass = group["params"], group["mass"]
        before = list(mass) if isinstance(mass, list | tuple) else [mass] * len(params)
        after = list(new[first : first + len(params)])
        for p, old, now in zip(params, before, after, strict=True):
            sampler.state[p]["momentum"].mul_((torch.as_tensor(now) / torch.as_tensor(old)).sqrt().to(p.device))
        group["mass"], first = after, first + len(params)
    for shard in sampler._shards:
        noise_rows.masses_changed(shard)
    if sampler._kronecker is not None:
        sampler._kronecker.forget()  # it is in units of √m


@torch.no_grad()
def set_thermostats(
    optimizer: Optimizer, params: Sequence[Tensor], found: Gradients, temperature: float, lr: float
) -> None:
    """Start every thermostat at its equilibrium ξ̄ = h Var(G)/(2 m T), h the step size that it is stated for."""
    if temperature <= 0:
        return
    group = optimizer.param_groups[0]
    lr = group.get("reference_lr") or lr
    for index, (p, variance) in enumerate(zip(params, found.variance, strict=True)):
        state = optimizer.state[p]
        if "thermostat" not in state:
            continue
        mass = group["mass"][index] if isinstance(group["mass"], list | tuple) else group["mass"]
        rest = lr * variance / (2 * mass * temperature)
        if state["thermostat"].numel() == p.numel():
            state["thermostat"].copy_(rest)
        else:  # one thermostat for all: it meets their mean
            state["thermostat"].add_((rest.mean() * p.numel() / sum(q.numel() for q in params)).to(state["thermostat"]))
