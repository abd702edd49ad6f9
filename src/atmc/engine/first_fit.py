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

LR = 0.01
STEPS = 500  # of the copy
# Of the chain's warm start, at most: with hundreds of examples the best fit of all has far too little noise, and a
# chain that starts there is thrown out (yacht, validation: 2,000 epochs; 500 were fine).
EPOCHS = 500
# The rate of a sampler as a multiple of what `step_size_search` allows at the fitted copy. Thermostats damp the few
# directions that are too stiff for it, and the others mix faster: of 1, 3 and 12 the middle one was best on validation
# parts of boston, concrete, energy and yacht.
FASTER = 3.0


def warm_epochs(epochs: int) -> int:
    """Epochs of Adam before a chain of `epochs`."""
    return min(EPOCHS, math.ceil(epochs / 10))


def fitted(
    model: nn.Module,
    data: ImageData,
    make: Callable[[nn.Module], Callable[[Tensor, Tensor], Tensor]],
    batch: int,
    device: torch.device,
) -> nn.Module:
    """A copy of the network after STEPS steps of Adam on U/N; `make` gives a network its potential."""
    own = copy.deepcopy(model).to(device)
    store: Any = DeviceStore(data, device if fits(data, device) else "cpu", torch.float32)
    potential, generator = make(own), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([p for p in own.parameters() if p.requires_grad], lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        index = torch.randperm(len(data), generator=generator)[:batch]
        x, y = store.examples(index.to(store.device))
        with torch.enable_grad():
            loss = potential(x.to(device), y.to(device)) / len(data)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return own
