"""A quick fit of a regression whose noise is learned: where its chain starts, and where its step size is searched for.

The curvature of U goes with 1/σ², and σ falls by orders of magnitude while the network learns. Measured where SGD gets
in its first steps, a step size is a hundred times too large for the chain. So a copy is fitted first, by Adam, which
does not slow down as the curvature rises.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from atmc.data import DeviceStore, ImageData
from atmc.data.choose_batches import fits
from atmc.nn.scale_output import values_and_scales

LR = 0.01
# Steps of the copy, and of the chain's warm start at most: with hundreds of examples the best fit of all has far too
# little noise, and a chain that starts there is thrown out (yacht, validation: 2,000 epochs; 500 were fine).
STEPS = 500
# With MANY examples for each parameter the best fit is near the posterior, and a fit that was stopped early is not: σ
# falls on in the chain, and its step is too large then (naval, validation: 3.2 times T after 500 steps, T after 2,000).
LONG, MANY = 2000, 5
# The rate of a sampler as a multiple of what `step_size_search` allows at the fitted copy, with mini-batches.
# Thermostats damp the few directions that are too stiff for it, and the others mix faster. Set by hand, after a scan of
# rates on the validation parts of boston, concrete, energy and yacht; boston and yacht often preferred more.
FASTER = 3.0


def steps_of(model: nn.Module, num_data: int) -> int:
    """Steps of the fit; twice as many where its second half adds noise that depends on the input."""
    values, late = values_and_scales(model)
    size = sum(p.numel() for _, p in [*values, *late])
    return (LONG if num_data >= MANY * size else STEPS) * (2 if late else 1)


def warm_epochs(epochs: int, steps: int, steps_an_epoch: int) -> int:
    """Epochs of Adam before a chain of `epochs`: enough for `steps`; with mini-batches a tenth to a half of them."""
    needed = math.ceil(steps / steps_an_epoch)
    return min(needed, epochs) if steps_an_epoch == 1 else min(STEPS, max(needed, epochs // 10), math.ceil(epochs / 2))


def fitted(
    model: nn.Module,
    data: ImageData,
    make: Callable[[nn.Module], Callable[[Tensor, Tensor], Tensor]],
    batch: int,
    device: torch.device,
) -> nn.Module:
    """A copy of the network after some steps of Adam on U/N; `make` gives a network its potential."""
    steps = steps_of(model, len(data))
    own = copy.deepcopy(model).to(device)
    store: Any = DeviceStore(data, device if fits(data, device) else "cpu", torch.float32)
    potential, generator = make(own), torch.Generator().manual_seed(0)
    values, late = ([p for _, p in named] for named in values_and_scales(own))
    groups = [{"params": params} for params in (values, late) if params]
    optimizer = torch.optim.Adam(groups, lr=LR)
    for step in range(steps):
        for number, group in enumerate(optimizer.param_groups):  # as the chain does it: noise of the input comes late
            waits = number == 1 and step < steps // 2
            group["lr"] = 0.0 if waits else 0.5 * LR * (1 + math.cos(math.pi * step / steps))
        index = torch.randperm(len(data), generator=generator)[:batch]
        x, y = store.examples(index.to(store.device))
        with torch.enable_grad():
            loss = potential(x.to(device), y.to(device)) / len(data)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return own
