"""SWA and SWAG: the mean of SGD's late iterates, and a Gaussian around it (Maddox et al., 2019).

The first three quarters of the budget decay the rate to a fifth, where the last quarter stays. After each epoch there
the weights enter the running mean θ̄ and mean square, and the last COLUMNS deviations θ_i − θ̄ a matrix D. A sample is

    θ̄ + diag(σ²)^½ z₁/√2 + D z₂/√(2 (COLUMNS − 1))
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from atmc.comparison.task import Task

COLUMNS = 20
LEVEL, AVERAGED = 0.2, 0.25  # of the rate while averaging, and of the budget


def schedule(time: float) -> float:
    """The rate's factor: a cosine down to LEVEL, then constant."""
    before = 1 - AVERAGED
    if time >= before:
        return LEVEL
    return LEVEL + (1 - LEVEL) * 0.5 * (1 + math.cos(math.pi * time / before))


class Swag:
    """Running moments of a network's weights."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.count = 0
        self.mean = torch.zeros_like(parameters_to_vector(net.parameters())).detach()
        self.square = torch.zeros_like(self.mean)
        self.deviations: list[Tensor] = []

    def collect(self) -> None:
        """Take the present weights in."""
        now = parameters_to_vector(self.net.parameters()).detach()
        self.mean += (now - self.mean) / (self.count + 1)
        self.square += (now.square() - self.square) / (self.count + 1)
        self.count += 1
        self.deviations = [*self.deviations, now - self.mean][-COLUMNS:]

    def average(self) -> nn.Module:
        """The network with the mean weights: SWA."""
        return self._with(self.mean)

    def sample(self, generator: torch.Generator) -> nn.Module:
        """A network drawn from the Gaussian."""
        spread = (self.square - self.mean.square()).clamp_min(0.0).sqrt()
        weights = self.mean + spread * torch.randn(self.mean.shape, generator=generator) / math.sqrt(2)
        if len(self.deviations) > 1:
            columns = torch.stack(self.deviations)
            mix = torch.randn(len(columns), generator=generator) / math.sqrt(2 * (len(columns) - 1))
            weights = weights + mix @ columns
        return self._with(weights)

    def _with(self, weights: Tensor) -> nn.Module:
        net = copy.deepcopy(self.net)
        vector_to_parameters(weights, net.parameters())
        return net.eval()


def fit(task: Task, rate: float) -> Swag:
    """Run SGD and collect its late iterates."""
    net = task.fresh()
    found = Swag(net)
    first = (1 - AVERAGED) * task.steps

    def after_epoch(done: int) -> None:
        if done > first or done == task.steps:
            found.collect()

    task.descend(net, task.steps, schedule, rate, after_epoch=after_epoch)
    return found
