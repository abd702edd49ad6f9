"""Average gradients over the processes of a data-parallel chain, while the backward pass still runs.

Parameters are put into buckets in the order in which their gradients arrive, last layer first, as DDP does. When the
last gradient of a bucket has arrived, a hook starts its all-reduce, and the backward pass goes on. Buckets start in the
same order everywhere. The last bucket also has the running statistics of BatchNorm and the loss. Gradients then are
views of the buckets, at fixed addresses, so that a recorded step can read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atmc.engine.processes import World

BUCKET_BYTES = 25 << 20  # DDP's default
FIRST_BYTES = 1 << 20  # the first one is small, so that the exchange starts early


class GradientExchange:
    """Call `begin` before the backward pass and `finish` after it; `close` removes the hooks."""

    def __init__(self, model: nn.Module, params: Sequence[Tensor], world: World, most: int = BUCKET_BYTES) -> None:
        self.world, self.params = world, list(params)
        self.buffers = [b for b in model.buffers() if b.is_floating_point()]
        parts = _cut([*reversed(self.params)], most)
        self.flat: list[Tensor] = []
        self.views: dict[int, Tensor] = {}  # by the parameter's position
        self.bucket_of: dict[int, int] = {}
        position = {id(p): i for i, p in enumerate(self.params)}
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            extra = sum(b.numel() for b in self.buffers) + 1 if last else 0
            flat = torch.zeros(sum(p.numel() for p in part) + extra, device=self.params[0].device)
            at = 0
            for p in part:
                self.views[position[id(p)]] = flat[at : at + p.numel()].view(p.shape)
                self.bucket_of[position[id(p)]] = number
                at += p.numel()
            self.flat.append(flat)
        tail, at = self.flat[-1], self.flat[-1].numel() - 1 - sum(b.numel() for b in self.buffers)
        self.buffer_views = []
        for b in self.buffers:
            self.buffer_views.append(tail[at : at + b.numel()].view(b.shape))
            at += b.numel()
        self._sizes = [sum(1 for n in self.bucket_of.values() if n == k) for k in range(len(self.flat))]
        self._waiting: list[int] = []
        self._arrived: set[int] = set()
        self._started: list[Any] = []
        self._active = False
        anyone: Any = self.params
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(i)) for i, p in enumerate(anyone)]

    def begin(self) -> None:
        """Expect the gradients of one backward pass."""
        self._waiting, self._started, self._arrived = list(self._sizes), [], set()
        self._active = True

    def _hook(self, index: int) -> Any:
        def arrived(p: Tensor) -> None:
            if self._active:
                self._take(index, p.grad)

        return arrived

    @torch.no_grad()
    def _take(self, index: int, grad: Tensor | None) -> None:
        view = self.views[index]
        if grad is None:
            view.zero_()  # the loss does not reach it; its slot must not keep an old gradient
        elif grad.data_ptr() != view.data_ptr():
            view.copy_(grad)
        self._arrived.add(index)
        self._waiting[self.bucket_of[index]] -= 1
        # The last bucket waits for the loss and the buffers.
        while len(self._started) < len(self.flat) - 1 and self._waiting[len(self._started)] == 0:
            self._start()

    def _start(self) -> None:
        self._started.append(torch.distributed.all_reduce(self.flat[len(self._started)], async_op=True))

    @torch.no_grad()
    def finish(self, nll: Tensor) -> Tensor:
        """Wait for all buckets; leaves the mean gradients in `p.grad` and returns the mean loss."""
        self._active = False
        for index in range(len(self.params)):
            if index not in self._arrived:
                self._take(index, self.params[index].grad)
        if self.buffers:
            torch._foreach_copy_(self.buffer_views, self.buffers)
        self.flat[-1][-1:].copy_(nll.reshape(1))
        while len(self._started) < len(self.flat):
            self._start()
        for work in self._started:
            if work is not None:
                work.wait()
        torch._foreach_div_(self.flat, self.world.data_size)
        for index, p in enumerate(self.params):
            p.grad = self.views[index]
        if self.buffers:
            torch._foreach_copy_(self.buffers, self.buffer_views)
        return self.flat[-1][-1]

    def close(self) -> None:
        """Take the hooks away, before another phase puts its own."""
        for hook in self._hooks:
            hook.remove()


def _cut(params: list[Tensor], most: int) -> list[list[Tensor]]:
    """Buckets of at most `most` bytes in float32 (a larger parameter has one of its own), the first one small."""
    parts: list[list[Tensor]] = [[]]
    size, limit = 0, min(FIRST_BYTES, most)
    for p in params:
        if parts[-1] and size + 4 * p.numel() > limit:
            parts.append([])
            size, limit = 0, most
        parts[-1].append(p)
        size += 4 * p.numel()
    return parts
