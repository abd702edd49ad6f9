"""One step: batch, augmentation, forward, backward, prior, sampler.

Written once for all devices. On a CPU it is simply called; on CUDA it is recorded once in a CUDA graph and replayed,
which is why nothing in it looks at a value: the step number, the schedule and the loss all stay on the device.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from atmc.engine.device_schedule import DeviceSchedule
from atmc.engine.processes import World
from atmc.target import Potential


class Feed(Protocol):
    """Where batches come from: `atmc.data.DeviceBatches`, or a stream with the same three methods."""

    num_data: int

    def start(self, step: int = 0) -> None: ...

    def ensure(self, step: int, count: int = 1) -> None: ...

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]: ...


class Step:
    """The step of one chain in one phase; call it to make the step that the clock shows.

    `loss` is the potential's mean nll, perhaps compiled. A sampler wants the gradient of U; SGD that of U/N. Gradients
    are made fresh each time instead of being zeroed and added to: autograd then hands its own buffers over and no
    kernel runs for either.
    """

    def __init__(
        self,
        potential: Potential,
        optimizer: Optimizer,
        feed: Feed,
        clock: DeviceSchedule,
        loss: Callable[[Tensor, Tensor], Tensor],
        losses: Tensor,
        *,
        sampling: bool,
        world: World,
    ) -> None:
        self.model, self.optimizer, self.feed, self.clock = potential.model, optimizer, feed, clock
        self.loss, self.prior, self.losses, self.world = loss, potential.prior_set, losses, world
        self.params: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        self.prior_params = potential.parameters() if potential.has_prior else []
        self.scale = float(feed.num_data) if sampling else 1.0
        self.prior_share = self.scale / feed.num_data
        self.device = self.params[0].device
        self._gain = torch.tensor(self.scale, device=self.device)  # where backpropagation begins
        self._flat = self._exchange_buffer() if world.data_size > 1 else None

    def __call__(self) -> None:
        self.clock.look_up()
        step = self.clock.step
        nll = self._backward(*self.feed.batch(step))
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
        return self.gradient_on(x, y)

    def gradient_on(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """The gradient on a batch of any origin, left in `p.grad` too."""
        self._backward(x, y)
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.params]

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Fresh gradients of U (or U/N) in `p.grad`; returns the mean negative log-likelihood."""
        for p in self.params:
            p.grad = None
        nll = self.loss(x, y)
        torch.autograd.backward(nll, self._gain.to(nll.dtype))
        nll = nll.detach()
        if self._flat is not None:
            nll = self._exchange(nll)
        if self.prior_params:
            for p in self.prior_params:
                if p.grad is None:  # the loss does not reach it: its posterior is its prior
                    p.grad = torch.zeros_like(p)
            grads = [p.grad for p in self.prior_params if p.grad is not None]
            self.prior.add_grad_(self.prior_params, grads, self.prior_share)
        return nll

    def _exchange_buffer(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """One flat tensor for what processes average: gradients, the running statistics of BatchNorm, the loss."""
        buffers = [b for b in self.model.buffers() if b.is_floating_point()]
        shapes = [*self.params, *buffers]
        flat = torch.zeros(sum(t.numel() for t in shapes) + 1, device=self.device)
        views, at = [], 0
        for t in shapes:
            views.append(flat[at : at + t.numel()].view(t.shape))
            at += t.numel()
        return flat, views, buffers

    @torch.no_grad()
    def _exchange(self, nll: Tensor) -> Tensor:
        assert self._flat is not None
        flat, views, buffers = self._flat
        # A parameter that the loss does not reach has no gradient; its slot must not keep an old one.
        mine = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.params]
        torch._foreach_copy_(views, [*mine, *buffers])
        flat[-1:].copy_(nll.reshape(1))
        self.world.average_(flat)
        for p, view in zip(self.params, views, strict=False):
            p.grad = view
        if buffers:
            torch._foreach_copy_(buffers, views[len(self.params) :])
        return flat[-1]
