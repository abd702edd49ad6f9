"""Where the harness gets its chains: from the library, from the independent reference, or from either one broken.

A mutant of the library is the library itself, by its readable backend, with one function of the integrator replaced
while it steps: what is shown is that *this* implementation would be caught if it had the error.
"""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from atmc.samplers import ATMC, SGHMC, SGLD, SGNHT, Sampler, backends

from .harness import Chain, Settings
from .reference import Flaw, Reference, ReferenceSGLD

KIND = {"ATMC": "atmc", "SGNHT": "nose-hoover", "SGHMC": "none"}


class Real:
    """The library's sampler on one parameter, each row of which is a chain; on any device, seen from the CPU."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.param: Tensor = sampler.param_groups[0]["params"][0]

    @property
    def theta(self) -> Tensor:
        return self.param.detach().cpu()

    @property
    def momentum(self) -> Tensor:
        return self.sampler.state[self.param]["momentum"].cpu()

    @property
    def thermostat(self) -> Tensor:
        return self.sampler.state[self.param]["thermostat"].cpu()

    def step(self, gradient: Tensor) -> None:
        self.param.grad = gradient.to(self.param.device)
        self.sampler.step()


def sampler(settings: Settings, theta: Tensor, seed: int = 0, **options: Any) -> Sampler:
    """The library's sampler with these settings."""
    s, params = settings, [torch.nn.Parameter(theta.clone().to(options.pop("device", "cpu")))]
    # A chain that explodes is for the harness to judge, not for the input check to stop.
    options = {"seed": seed, "nonfinite": "ignore"} | options
    if s.sampler == "SGLD":
        return SGLD(params, lr=s.h, temperature=s.t, **options)
    options["integrator"] = s.integrator
    if s.sampler == "SGHMC":
        return SGHMC(params, lr=s.h, mass=s.m, friction=s.d, speed_limit=s.c, temperature=s.t, **options)
    cls = options.pop("cls", {"ATMC": ATMC, "SGNHT": SGNHT}[s.sampler])
    made: Sampler = cls(
        params, lr=s.h, mass=s.m, friction=s.d, speed_limit=s.c, temperature=s.t, inertia=s.mu, **options
    )
    return made


def real(
    settings: Settings,
    theta: Tensor,
    momentum: Tensor | None = None,
    thermostat: Tensor | None = None,
    seed: int = 0,
    **options: Any,
) -> Real:
    """Chains by the library; p and ξ start where its own defaults put them unless they are given."""
    chain = Real(sampler(settings, theta, seed, **options))
    state = chain.sampler.state[chain.param]
    for slot, value in (("momentum", momentum), ("thermostat", thermostat)):
        if value is not None and slot in state:
            state[slot].copy_(value)
    return chain


def reference(
    settings: Settings,
    theta: Tensor,
    momentum: Tensor | None = None,
    thermostat: Tensor | None = None,
    seed: int = 0,
    *,
    flaw: Flaw | None = None,
) -> Chain:
    """Chains by the independent implementation of the equations, whole or with one flaw."""
    s = settings
    if s.sampler == "SGLD":
        return ReferenceSGLD(theta, s.h, s.t, seed)
    return Reference(
        theta, s.h, s.m, s.d, s.c, s.t, s.mu, KIND[s.sampler], s.integrator, momentum, thermostat, seed, flaw
    )


class XiOrNoise(ATMC):
    """`xi or noise`: an initial ξ of zero taken for a missing one."""

    def __init__(self, params: Any, *, friction: float, thermostat_init: float = 0.0, **options: Any) -> None:
        super().__init__(params, friction=friction, thermostat_init=thermostat_init or friction, **options)


def broken_momentum_step(flaw: Flaw, p: Any, grad: Any, eta: Any, alpha: Any, beta: Any, **kw: Any) -> Any:
    """B(h) by the library with one of the errors that B can have."""
    if flaw is Flaw.NO_MASS:
        kw["temperature"] = kw["temperature"] / kw["mass"]  # which enters B through the noise alone
    if flaw is Flaw.FULL_FRICTION:
        kw["inverse_scale"] = 0.0
    if flaw is Flaw.NOISE_OF_ONE_B:
        # Variance 2Tαm hφ(bh) for 2Tαm hφ(2bh): their ratio is 2/(1 + e^(−bh)).
        r = (1 + p * p * kw["inverse_scale"]) ** -0.5
        eta = eta * (2 / (1 + torch.exp(-beta * r * kw["lr"]))) ** 0.5
    new = _momentum_step(p, grad, eta, alpha, beta, **kw)
    if flaw is Flaw.SIGN:
        r = (1 + p * p * kw["inverse_scale"]) ** -0.5
        new = new * torch.exp(2 * beta * r * kw["lr"])
    return new


class Mutant(Real):
    """The library's sampler with one error put into it."""

    def __init__(self, sampler: Sampler, flaw: Flaw) -> None:
        super().__init__(sampler)
        self.flaw = flaw
        self.generator = torch.Generator().manual_seed(sampler.seed)

    def momentum_step(self, p: Any, grad: Any, eta: Any, alpha: Any, beta: Any, **kw: Any) -> Any:
        if self.flaw is Flaw.NO_EXCESS_FRICTION:
            beta = beta.clamp(max=self.sampler.param_groups[0]["friction"])
        return broken_momentum_step(self.flaw, p, grad, eta, alpha, beta, **kw)

    def drift_step(self, p: Any, **kw: Any) -> tuple[Any, Any]:
        if self.flaw is Flaw.GAUSSIAN_A:
            kw["inverse_scale"] = 0.0
        if self.flaw is Flaw.NO_CORRECTION:
            kw["temperature"] = 0.0
        if self.flaw is Flaw.NO_TEMPERATURE:
            kw["temperature"] = 1.0
        if self.flaw is Flaw.NO_INERTIA:
            kw["inverse_inertia"] = 1.0
        move, warming = _drift_step(p, **kw)
        if self.flaw is Flaw.CORRECTION_IS_ONE:
            r3 = (1 + p * p * kw["inverse_scale"]) ** -1.5
            warming = warming - (1 - r3) * kw["temperature"] * kw["lr"] * kw["inverse_inertia"]
        return move, warming

    def full_noise(self, _: Sampler, shard: Any) -> list[Tensor]:
        return [torch.randn(shard.total, generator=self.generator, dtype=shard.dtype)]

    def step(self, gradient: Tensor) -> None:
        patches: dict[str, Any] = {"momentum_step": self.momentum_step, "drift_step": self.drift_step}
        if self.flaw is Flaw.SAME_STREAM:
            patches["full_noise"] = self.full_noise
        before = self.thermostat.clone() if self.flaw is Flaw.ASSIGN_THERMOSTAT else None
        if self.flaw is Flaw.ASSIGN_PARAMS:
            self.param.data.zero_()
        with mock.patch.multiple(backends, **patches):
            super().step(gradient)
        if before is not None:
            self.thermostat.sub_(before)


_momentum_step, _drift_step = backends.momentum_step, backends.drift_step


def _mutant(
    settings: Settings,
    theta: Tensor,
    momentum: Tensor | None = None,
    thermostat: Tensor | None = None,
    seed: int = 0,
    *,
    flaw: Flaw,
    **options: Any,
) -> Chain:
    if flaw is Flaw.XI_OR_NOISE:
        return real(settings, theta, momentum, thermostat, seed, cls=XiOrNoise, **options)
    whole = real(settings, theta, momentum, thermostat, seed, backend="single", **options)
    return Mutant(whole.sampler, flaw)


def mutant(flaw: Flaw) -> functools.partial[Chain]:
    """Makes chains by the library with one error."""
    return functools.partial(_mutant, flaw=flaw)
