"""Readings of the temperature along the gradient noise, taken between steps and without a trace in the chain.

Every so many steps the chain stands still for three gradients, on batches of an order of its own that training does not
see: two readings (`atmc.samplers.noise_temperature`). Which batches they are depends on the step alone, so a run that
is resumed reads what an uninterrupted one does. Weights, momenta, `p.grad` and the network's buffers are left as they
were.

Left out where there is nothing to read: a batch of all data without augmentation has no noise, SGLD no momentum, and
data that stream would have to be loaded twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atmc.data import Batches
from atmc.engine.schedule import Schedule
from atmc.engine.step import Step
from atmc.recipe.build import chain_seed
from atmc.recipe.settings import Recipe, sampler_class
from atmc.samplers import Sampler

GRADIENTS = 3  # at one stop
READINGS = GRADIENTS - 1  # that they give
# Stops in a run, at most one in LEAST steps: their gradients are 6 % of a short run's and 1 % of one of 75,000 steps. A
# few hundred readings have an error of a tenth; 50 steps are what momentum remembers.
LOOKS = 250
LEAST = 50


class NoiseReader:
    """The readings of one chain, kept on its device until they are taken; each is the mean of one stop."""

    def __init__(self, recipe: Recipe, schedule: Schedule, feed: Batches, number: int) -> None:
        self.batches = feed.for_readings(chain_seed(recipe.seed, number, "noise readings"))
        self.every = max(LEAST, (schedule.steps - schedule.warm_steps) // LOOKS)
        self._found: list[Tensor] = []

    @staticmethod
    def serves(recipe: Recipe, feed: Batches) -> bool:
        """Whether this run has a momentum, gradient noise, and data at hand."""
        kind = sampler_class(recipe.sampler.name)
        noisy = feed.batch_size < feed.num_data or recipe.data.augment != "none"
        return kind is not None and kind.has_momentum and noisy and feed.capturable

    def read(self, step: Step, at: int) -> None:
        """Take the readings of stop `at` (a number of steps)."""
        if not isinstance(step.optimizer, Sampler):
            return
        first = at // self.every * GRADIENTS
        buffers = [(buffer, buffer.clone()) for buffer in step.model.buffers()]
        before = [p.grad for p in step.params]
        found = []
        for number in range(first, first + GRADIENTS):
            x, y = self.batches.batch(number)
            grads = step.gradient_on(x, y, self.batches.weights)
            found.append([grad.clone() for grad in grads] if step.world.data_size > 1 else grads)
        for p, grad in zip(step.params, before, strict=True):
            p.grad = grad
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        self._found.append(step.optimizer.noise_temperature(*found).double())

    def take(self) -> list[Tensor]:
        """What was read since the last call, in order."""
        found, self._found = self._found, []
        return found
