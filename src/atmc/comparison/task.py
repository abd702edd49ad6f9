"""What all methods of a comparison share: network, data, target, rate, budget, and a count of gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from atmc.data import DeviceStore, ImageData
from atmc.engine import first_fit
from atmc.engine.step_size_search import find_step_size
from atmc.target import Potential
from atmc.target.likelihoods import Categorical, LocationScale

MOMENTUM = 0.9
MOST_RATE = 0.1  # of SGD with momentum 0.9, as in `atmc.sample`
AT_ONCE = 512  # examples of one forward pass without gradients


@dataclass
class Counter:
    """How many gradients of one example's loss were computed."""

    gradients: int = 0


@dataclass
class Task:
    """A network to be fitted to data by several methods, each with the same number of gradients.

    Baselines minimise U(θ)/N, the sampler's potential with cross-entropy for classes: the prior is their weight decay.
    Where the noise of a regression is learned, log σ is one of θ, and Adam takes the place of SGD: the curvature of U
    goes with 1/σ², so that a rate which suits the first steps is too large for the last.
    """

    model: nn.Module
    train: ImageData
    test: ImageData
    likelihood: Any  # that of the sampler
    prior: Any  # a rule of `atmc.priors`
    batch: int
    steps: int  # of gradient descent that the budget allows
    seed: int = 0
    counter: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = DeviceStore(self.train, "cpu", torch.float32)
        self.held = DeviceStore(self.test, "cpu", torch.float32)
        self.is_regression = bool(self.likelihood.task != "classification")
        self.loss: Any = self.likelihood if self.is_regression else Categorical()
        self.learns_noise = isinstance(self.likelihood, LocationScale)
        if self.learns_noise:
            self.model = self.likelihood.network(self.model)  # with σ as one more parameter

    @property
    def optimizer(self) -> str:
        """What the baselines are trained by."""
        return "Adam" if self.learns_noise else "SGD"

    def potential(self, net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        """U of a network, counted at each call."""
        inner = Potential(net, len(self.train), self.prior.assign(net), self.loss, improper_ok=True)

        def counted(x: Tensor, y: Tensor) -> Tensor:
            self.counter.gradients += len(x)
            return inner(x, y)

        return counted

    def rate(self) -> float:
        """The rate of SGD, found as `atmc.sample` finds its speed: by curvature, on a copy. Its gradients count.

        Where noise is learned the sampler's search is done too, so that all have spent the same; Adam has its own rate.
        """
        begin = self.model
        if self.learns_noise:
            begin = first_fit.fitted(begin, self.train, self.potential, self.batch, torch.device("cpu"))
        found = find_step_size(begin, self.train, self.potential, self.batch, MOST_RATE, "cpu").start
        return first_fit.LR if self.learns_noise else found

    def fresh(self, member: int = 0) -> nn.Module:
        """A copy of the network: the first with its own weights, others with new ones."""
        return anew(self.model, 1_000_003 * self.seed + member) if member else copy.deepcopy(self.model)

    def descend(
        self,
        net: nn.Module,
        steps: int,
        factor: Callable[[float], float],
        rate: float,
        member: int = 0,
        after_epoch: Callable[[int], None] | None = None,
    ) -> None:
        """SGD with momentum on U/N, epoch by epoch in random order; `factor` of the time, 0 to 1, scales the rate."""
        potential = self.potential(net)
        net.train()
        parameters = [p for p in net.parameters() if p.requires_grad]
        optimizer: torch.optim.Optimizer
        if self.learns_noise:
            optimizer = torch.optim.Adam(parameters, lr=rate)
        else:
            optimizer = torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM, nesterov=True)
        generator = torch.Generator().manual_seed(7 + 1_000_003 * self.seed + member)
        done = 0
        while done < steps:
            order = torch.randperm(len(self.train), generator=generator)
            for rows in torch.split(order, self.batch):
                if done == steps:
                    break
                if len(rows) < self.batch and len(self.train) >= self.batch:
                    continue  # every step has a whole batch, as the sampler's have
                optimizer.param_groups[0]["lr"] = rate * factor(done / steps)
                x, y = self.store.examples(rows)
                optimizer.zero_grad(set_to_none=True)
                (potential(x, y) / len(self.train)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                done += 1
            if after_epoch is not None:
                after_epoch(done)
        net.eval()

    def outputs(self, net: nn.Module, store: DeviceStore | None = None) -> Tensor:
        """The network's outputs for the test examples, or for others."""
        where = self.held if store is None else store
        with torch.no_grad():
            every = torch.split(torch.arange(len(where.labels)), AT_ONCE)
            parts = [net(where.examples(rows)[0]) for rows in every]
        return torch.cat(parts)


def anew(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a network whose layers have drawn their first weights again."""
    net = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in net.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return net


def cosine(time: float) -> float:
    """From 1 at the beginning to 0 at the end."""
    return 0.5 * (1 + math.cos(math.pi * time))
