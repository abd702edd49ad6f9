"""The baselines of a comparison. Each takes a `Task` and returns its networks' outputs for the test examples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from atmc.comparison import swag
from atmc.comparison.dropout import RATE, Dropout
from atmc.comparison.last_layer import find_last_layer, laplace_samples, noise_hessian, softmax_hessian
from atmc.comparison.task import Task, cosine
from atmc.nn.with_noise import WithNoise
from atmc.target.likelihoods.learned_noise import halves

Made = TypeVar("Made")
Result = tuple[Tensor, str, tuple[int, float]]  # outputs, how they came about, and shared gradients and seconds
MEMBERS = 5  # of the deep ensemble
DRAWS = 30  # of SWAG, dropout and Laplace


@dataclass(frozen=True)
class Fit:
    """What a method made of its budget: outputs `[networks, N, ...]`, its gradients and its seconds."""

    outputs: Tensor
    gradients: int
    seconds: float
    how: str


class Fits:
    """All baselines of one task. SGD and Laplace share one trained network, SWA and SWAG one run; each counts it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._trained: tuple[nn.Module, int, float] | None = None
        self._averaged: tuple[swag.Swag, int, float] | None = None
        began = time.perf_counter()
        self.rate = task.rate()
        self.search = task.counter.gradients, time.perf_counter() - began

    def fit(self, method: str) -> Fit:
        """One of METHODS. Raises `InputError` with the reason where the network does not allow it."""
        began, counted = time.perf_counter(), self.task.counter.gradients
        outputs, how, shared = METHODS[method](self)
        gradients = self.task.counter.gradients - counted + shared[0] + self.search[0]
        return Fit(outputs, gradients, time.perf_counter() - began + shared[1] + self.search[1], how)

    def trained(self) -> tuple[nn.Module, tuple[int, float]]:
        """One network trained with the whole budget, and what that cost if it was done before."""
        if self._trained is not None:
            return self._trained[0], self._trained[1:]
        net, cost = self._timed(self._train)
        self._trained = (net, *cost)
        return net, (0, 0.0)

    def averaged(self) -> tuple[swag.Swag, tuple[int, float]]:
        """The averaged run of SGD, and what it cost if it was done before."""
        if self._averaged is not None:
            return self._averaged[0], self._averaged[1:]
        found, cost = self._timed(lambda: swag.fit(self.task, self.rate))
        self._averaged = (found, *cost)
        return found, (0, 0.0)

    def _timed(self, work: Callable[[], Made]) -> tuple[Made, tuple[int, float]]:
        began, counted = time.perf_counter(), self.task.counter.gradients
        made = work()
        return made, (self.task.counter.gradients - counted, time.perf_counter() - began)

    def _train(self) -> nn.Module:
        net = self.task.fresh()
        self.task.descend(net, self.task.steps, cosine, self.rate)
        return net


def sgd(fits: Fits) -> Result:
    """One network."""
    net, shared = fits.trained()
    return fits.task.outputs(net)[None], f"one network, {fits.task.optimizer}, cosine", shared


def ensemble(fits: Fits) -> Result:
    """Several networks from different first weights, each with its share of the budget."""
    task, parts = fits.task, []
    for member in range(MEMBERS):
        net = task.fresh(member)
        task.descend(net, task.steps // MEMBERS, cosine, fits.rate, member)
        parts.append(task.outputs(net))
    return torch.stack(parts), f"{MEMBERS} networks, 1/{MEMBERS} of the steps each", (0, 0.0)


def swa(fits: Fits) -> Result:
    """The mean of the late weights."""
    found, shared = fits.averaged()
    return fits.task.outputs(found.average())[None], f"mean of {found.count} late iterates", shared


def swag_samples(fits: Fits) -> Result:
    """Samples of the Gaussian around that mean."""
    found, shared = fits.averaged()
    generator = torch.Generator().manual_seed(fits.task.seed)
    parts = [fits.task.outputs(found.sample(generator)) for _ in range(DRAWS)]
    return torch.stack(parts), f"{DRAWS} samples, rank {len(found.deviations)}", shared


def mc_dropout(fits: Fits) -> Result:
    """One network with dropout, in training and in prediction."""
    task = fits.task
    net = task.fresh()
    dropout = Dropout(net)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        task.descend(net, task.steps, cosine, fits.rate)
        parts = [task.outputs(net) for _ in range(DRAWS)]
    return torch.stack(parts), f"{DRAWS} draws, rate {RATE} before {dropout.layers} layers", (0, 0.0)


def laplace(fits: Fits) -> Result:
    """The Laplace approximation of the last layer of SGD's network."""
    task = fits.task
    net, shared = fits.trained()
    inner = net.network if isinstance(net, WithNoise) else net  # σ stays at its fitted value
    layer = find_last_layer(inner, task.store.examples(torch.arange(min(8, len(task.train))))[0])
    outputs: list[Tensor] = []
    learned = layer.features(lambda: outputs.append(task.outputs(net, task.store)))
    asked = layer.features(lambda: outputs.append(task.outputs(net)))
    if task.learns_noise:  # of standardised targets, as the network's outputs are
        hessian = noise_hessian(halves(outputs[0])[1].exp(), task.likelihood.degrees(), log_scales=inner is net)
    elif task.is_regression:
        hessian = noise_hessian(task.likelihood.noise(outputs[0]))
    else:
        hessian = softmax_hessian(outputs[0])
    made = laplace_samples(layer, learned, hessian, asked, DRAWS, task.seed)
    if inner is not net:
        made = torch.cat([made, outputs[1][:, made.shape[2] :].double().expand_as(made)], 2)
    return made, f"{DRAWS} samples of the last layer", shared


METHODS: dict[str, Callable[[Fits], Result]] = {
    "SGD": sgd,
    "deep ensemble": ensemble,
    "SWA": swa,
    "SWAG": swag_samples,
    "MC dropout": mc_dropout,
    "last-layer Laplace": laplace,
}
