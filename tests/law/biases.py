"""Biases of the step as tables, for the documentation: `python -m tests.law.biases` from the repository's root.

First the bias of Var θ at h and h/2 for the cases of `test_order.py`, on eight times the chains. Then the two
hyperbolic momentum steps: E[mK'² − T mK'']/T under the step's own stationary law, 0 for a step without bias; by
quadrature, so without Monte-Carlo error. The first rows there are the paper's CIFAR-10 setting. Then both steps in
whole chains: the relative bias of Var θ on a harmonic target of stiffness 4. Then the kinetic temperature as it is
read under gradient noise. Last, what mini-batch noise that is correlated between parameters does to variances.
"""

from __future__ import annotations

import math

import torch

import atmc

from . import makers
from .calibration import ASIDE, CENTRED, gradient, shares, simulate, variances
from .harness import Settings, combine
from .laws import atmc_harmonic, synchronised
from .makers import real
from .order import bias, momentum_bias, order
from .test_order import CASES

SETTINGS = (
    # label, m, c, D, T, and the steps
    ("the paper's: m = 11.1, c = 1, D = 105.4, T = 1", 11.1, 1.0, 105.4, 1.0, (1e-3, 5e-4)),
    ("slower limit: m = 11.1, c = 0.3, D = 105.4, T = 1", 11.1, 0.3, 105.4, 1.0, (1e-3, 5e-4)),
    ("m = c = T = 1, D = 1", 1.0, 1.0, 1.0, 1.0, (0.2, 0.1, 0.05)),
    ("m = c = T = 1, D = 5", 1.0, 1.0, 5.0, 1.0, (0.2, 0.1, 0.05)),
)


def order_table(runs: int = 8) -> str:
    """Bias of Var θ at h and h/2, and their ratio."""
    lines = ["| case | h | bias at h | at h/2 | ratio |", "| --- | --- | --- | --- | --- |"]
    for settings in CASES:
        pairs = [order(real, settings, seed=90_000 + 2 * i) for i in range(runs)]
        weights = [1 / runs] * runs
        b, half = combine(weights, [p.at_h for p in pairs]), combine(weights, [p.at_half for p in pairs])
        ratio = b.mean / half.mean
        error = ratio * math.hypot(b.se / b.mean, half.se / half.mean)
        cells = f"{b.mean:.2%} ± {b.se:.2%} | {half.mean:.2%} ± {half.se:.2%} | {ratio:.2f} ± {error:.2f}"
        lines.append(f"| {settings} | {settings.h} | {cells} |")
    return "\n".join(lines)


def momentum_table() -> str:
    """Both steps' momentum laws."""
    lines = ["| setting | Dh | frozen | corrected |", "| --- | --- | --- | --- |"]
    for label, m, c, d, t, steps in SETTINGS:
        for h in steps:
            frozen, corrected = (momentum_bias(h, kind, m, d, c, t) for kind in ("frozen", "corrected"))
            lines.append(f"| {label} | {d * h:.3g} | {frozen:+.2%} | {corrected:+.3%} |")
    return "\n".join(lines)


def chain_table(rows: int = 32_768, time: float = 120.0) -> str:
    """Both steps in chains of the library."""
    lines = ["| sampler | Dh | frozen | corrected |", "| --- | --- | --- | --- |"]
    for sampler in ("SGHMC", "ATMC"):
        for h in (0.2, 0.1, 0.05):
            cells = []
            for integrator in ("leapfrog-frozen", "leapfrog"):
                settings = Settings(sampler, h=h, d=5.0, c=1.0, mu=0.5, integrator=integrator)
                found = bias(real, settings, rows, time, seed=0)
                cells.append(f"{found.mean:+.2%} ± {found.se:.2%}")
            lines.append(f"| {sampler}, m = c = T = 1, D = 5 | {5 * h:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def temperature_table(rows: int = 200_000, steps: int = 200) -> str:
    """The kinetic temperature of ATMC on θ²/2 by its reading, beside the exact one, the variance of one element's
    reading, and p²/m half way through a kick, which the gradient's noise biases."""
    lines = ["| hξ̄ | half way, squared | reading | exact | variance |", "| --- | --- | --- | --- | --- |"]
    s = Settings("ATMC", h=0.1, d=14.0, mu=4.0)
    for level in (0.0, 1.0, 5.0, 10.0):
        sd = math.sqrt(2 * level / s.h)
        variance, centre = atmc_harmonic(1.0, s.h, s.m, s.d, s.t, sd**2)
        generator = torch.Generator().manual_seed(round(level))
        one = makers.sampler(s, torch.randn(rows, generator=generator) * math.sqrt(variance), momentum_init="law")
        one.measure_every = 1
        (param,) = one.param_groups[0]["params"]
        p, xi = one.state[param]["momentum"], one.state[param]["thermostat"]
        xi.normal_(centre, 0.5, generator=generator)
        x = s.d * s.h
        reach, half = math.tanh(x / 2) / s.d, -math.expm1(-x / 2) / s.d
        read = squared = spread = 0.0
        for _ in range(steps):
            param.grad = param.detach() + sd * torch.randn(rows, generator=generator)
            spread += float((p * (p - reach * param.grad)).var()) / steps
            middle = math.exp(-x / 2) * p - half * param.grad
            squared += float((middle**2 + (1 - xi / s.d) * -math.expm1(-x)).mean()) / steps
            one.step()
            read += float(one.kinetic_temperature()) / steps
        exact = synchronised(s.m * s.t, 1.0, s.h, s.m, s.d)
        lines.append(f"| {level * s.h:g} | {squared:.4f} | {read:.4f} | {exact:.4f} | {spread:.3f} |")
    return "\n".join(lines)


def correlated_table() -> str:
    """Variances in chains with mini-batches, as shares of the posterior's, on the regression of law 8 and beside it."""
    lines = ["| sampler | h | x | Var a | Var b | Var(a − 2b) |", "| --- | --- | --- | --- | --- | --- |"]
    for x, design in (("−1.5…1.5", CENTRED), ("0…3", ASIDE)):
        for sampler, h in (("ATMC", 0.1), ("ATMC", 0.05), ("SGHMC", 0.1)):
            found = variances(real, Settings(sampler, h=h, m=4.0, d=2.0), design).values()
            lines.append(f"| {sampler} | {h} | {x} | {' | '.join(f'{each.mean:.2f}' for each in found)} |")
    for cycle in (100, 400, 1000):
        cells = " | ".join(f"{share:.2f}" for share in at_ends_of_cycles(cycle))
        lines.append(f"| ATMC, cycles of {cycle} | from 0.1 | 0…3 | {cells} |")
    return "\n".join(lines)


def at_ends_of_cycles(cycle: int, rows: int = 1500, cycles: int = 30) -> list[float]:
    """Shares of the posterior's variances with correlated noise, where cosine cycles of the step size end."""
    generator = torch.Generator().manual_seed(cycle)
    y = simulate(torch.randn((rows, 2), generator=generator), generator, ASIDE)
    estimate = gradient(y, 4, generator, ASIDE)
    theta = torch.nn.Parameter(torch.randn((rows, 2), generator=generator))
    sampler = atmc.ATMC([theta], lr=0.1, mass=4.0, friction=2.0)
    schedule = atmc.CyclicCosine(sampler, cycle=cycle)
    found = []
    for step in range(cycles * cycle):
        theta.grad = estimate(theta.detach())
        sampler.step()
        schedule.step()
        if schedule.ends_cycle() and step >= 10 * cycle:
            found.append(shares(theta.detach(), y, ASIDE).mean(0))
    return [float(share) for share in torch.stack(found).mean(0)]


if __name__ == "__main__":
    tables = (order_table, momentum_table, chain_table, temperature_table, correlated_table)
    print(*(table() for table in tables), sep="\n\n")
