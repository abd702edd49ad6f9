"""One step: batch, augmentation, forward, backward, prior, sampler.

Written once for all devices. On a CPU it is simply called; on CUDA it is recorded once in a CUDA graph and replayed,
which is why nothing in it looks at a value: the step number, the schedule and the loss all stay on the device.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atmc.engine.device_schedule import Clock
from atmc.engine.processes import World


class Feed(Protocol):
    """Where batches come from: `atmc.data.DeviceBatches`, or a stream with the same three methods."""

    num_data: int

    def start(self, step: int = 0) -> None: ...

    def ensure(self, step: int, count: int = 1) -> None: ...

    def batch(self, step: int | Tensor) -> tuple[Tensor, Tensor]: ...


class Step:
    """The step of one chain in one phase; call it to make the step that the clock shows.

    A sampler wants the gradient of U = N · mean nll − log prior; SGD wants that of U/N. Gradients are made fresh each
    time instead of being zeroed and added to: autograd then hands its own buffers over and no kernel runs for either.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        feed: Feed,
        clock: Clock,
        likelihood: Any,
        prior: Any,
        losses: Tensor,
        *,
        sampling: bool,
        world: World,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self.optimizer, self.feed, self.clock = model, optimizer, feed, clock
        self.likelihood, self.prior, self.losses = likelihood, prior, losses
        self.world, self.autocast = world, autocast
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.params = [p for _, p in named]
        by_name = dict(named)
        self.prior_params = [by_name[name] for name in prior.names] if prior is not None else []
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
        self._backward(x, y)
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.params]

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Fresh gradients of U (or U/N) in `p.grad`; returns the mean negative log-likelihood."""
        for p in self.params:
            p.grad = None
        nll = self._loss(x, y)
        torch.autograd.backward(nll, self._gain.to(nll.dtype))
        nll = nll.detach()
        if self._flat is not None:
            nll = self._exchange(nll)
        if self.prior is not None:
            for p in self.prior_params:
                if p.grad is None:  # the loss does not reach it: its posterior is its prior
                    p.grad = torch.zeros_like(p)
            self.prior.add_grad_(self.prior_params, [p.grad for p in self.prior_params], self.prior_share)
        return nll

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.autocast is not None:
            with torch.autocast(self.device.type, self.autocast):
                outputs = self.model(x)
        else:
            outputs = self.model(x)
        loss: Tensor = self.likelihood.nll(outputs, y).mean()
        return loss

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
