"""One step: batch, augmentation, forward, backward, prior, sampler.

Written once for all devices. On a CPU it is simply called; on CUDA it is recorded once in a CUDA graph and replayed,
which is why nothing in it looks at a value: the step number, the schedule and the loss all stay on the device.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from atmc.common.errors import InputError
from atmc.engine.compiled_loss import BatchLoss
from atmc.engine.device_schedule import DeviceSchedule
from atmc.engine.gradient_exchange import GradientExchange
from atmc.engine.processes import World
from atmc.samplers import Sampler
from atmc.target import Potential
from atmc.target.example_gradients import store_gradients


class Feed(Protocol):
    """Where batches come from: `atmc.data.Batches`, or a stream with the same methods."""

    num_data: int
    weights: Tensor | None
    scores: Tensor | None

    def start(self, step: int = 0) -> None: ...

    def ensure(self, step: int, count: int = 1) -> None: ...

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]: ...

    def note(self, sizes: Tensor) -> None: ...


class Step:
    """The step of one chain in one phase; call it to make the step that the clock shows.

    `loss` is the potential's mean nll, perhaps compiled. A sampler wants the gradient of U; SGD that of U/N. Gradients
    are made fresh each time instead of being zeroed and added to: autograd then hands its own buffers over and no
    kernel runs for either. Where examples are drawn by importance, a step alone gives them new scores: looking at a
    gradient does not.
    """

    def __init__(
        self,
        potential: Potential,
        optimizer: Optimizer,
        feed: Feed,
        clock: DeviceSchedule,
        loss: BatchLoss,
        losses: Tensor,
        *,
        sampling: bool,
        world: World,
    ) -> None:
        self.model, self.optimizer, self.feed, self.clock = potential.model, optimizer, feed, clock
        self.loss, self.prior, self.losses, self.world = loss, potential.prior_set, losses, world
        self.likelihood = potential.likelihood
        self.params: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        self.prior_params = potential.parameters() if potential.has_prior else []
        self.scale = float(feed.num_data) if sampling else 1.0
        self.prior_share = self.scale / feed.num_data
        self.device = self.params[0].device
        self._gain = torch.tensor(self.scale, device=self.device)  # where backpropagation begins
        self.by_example = isinstance(optimizer, Sampler) and optimizer.noise_examples
        if self.by_example and world.data_size > 1:
            raise InputError(
                f"sampler.noise_examples needs all examples of a batch in one process, and {world.data_size} share "
                'this chain: use run.parallel = "chains", with as many chains as processes'
            )
        self.exchange = GradientExchange(self.model, self.params, world) if world.data_size > 1 else None

    def __call__(self) -> None:
        self.clock.look_up()
        step = self.clock.step
        x, y = self.feed.batch(step)
        nll, outputs = self._backward(x, y, self.feed.weights, self.by_example)
        if outputs is not None:
            self.feed.note(self.likelihood.sizes(outputs, y))
        self.optimizer.step()
        slot = torch.remainder(step, len(self.losses)).reshape(1)
        self.losses.index_copy_(0, slot, nll.reshape(1).float())
        self.clock.tick()

    def gradient(self, step: int) -> list[Tensor]:
        """The gradient on the batch of a step, the chain standing still. For looking around, not for the hot path."""
        fetch: Any = getattr(self.feed, "fetch", None)
        if fetch is not None:
            fetch(step)
            x, y = self.feed.batch(self.clock.step)
        else:
            x, y = self.feed.batch(step)
        return self.gradient_on(x, y, self.feed.weights)

    def gradient_on(self, x: Tensor, y: Tensor, weights: Tensor | None) -> list[Tensor]:
        """The gradient on a batch of any origin, left in `p.grad` too."""
        self._backward(x, y, weights, by_example=False)
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.params]

    def _backward(self, x: Tensor, y: Tensor, weights: Tensor | None, by_example: bool) -> tuple[Tensor, Tensor | None]:
        """Fresh gradients of U (or U/N) in `p.grad`; returns the mean nll and, where there are weights, the outputs."""
        for p in self.params:
            p.grad = None
        outputs = None
        if by_example:
            share = torch.full_like(self._gain, 1 / len(x)) if weights is None else weights
            each, outputs, gradients = self.loss.each(x, y, self._gain * share)
            store_gradients(self.model, gradients)
            nll, outputs = (each * share).sum(), None if weights is None else outputs
        else:
            nll, outputs = (self.loss(x, y), None) if weights is None else self.loss.weighted(x, y, weights)
            if self.exchange is not None:
                self.exchange.begin()
            torch.autograd.backward(nll, self._gain.to(nll.dtype))
            nll = nll.detach()
            if self.exchange is not None:
                nll = self.exchange.finish(nll)
        if self.prior_params:
            for p in self.prior_params:
                if p.grad is None:  # the loss does not reach it: its posterior is its prior
                    p.grad = torch.zeros_like(p)
            grads = [p.grad for p in self.prior_params if p.grad is not None]
            self.prior.add_grad_(self.prior_params, grads, self.prior_share)
        return nll, outputs
