"""Whether a network's weights are still as its layers drew them: then chains may begin at weights of their own.

Layers draw their weights by `reset_parameters`, mostly within a range that training soon leaves. So a network counts as
untrained where each sampled parameter is within the range of new draws, and as large as they are. One that is in doubt
(weights drawn in another way, a pre-trained body) counts as trained, and its weights are used.
"""

import copy

import torch
from torch import Tensor, nn

DRAWS = 8
RANGE = 1.02  # of the largest number of all draws
SPREADS = 5.0  # standard deviations, over draws, by which a size may be off


def untrained(model: nn.Module) -> bool:
    """Whether every parameter that is sampled looks like a new draw of its layer."""
    own = copy.deepcopy(model).cpu()
    given = {name: p.detach().clone() for name, p in own.named_parameters() if p.requires_grad}
    draws: dict[str, list[Tensor]] = {name: [] for name in given}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(DRAWS):
            drawn: set[int] = set()
            for module in own.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
                    drawn |= {id(p) for p in module.parameters(recurse=False)}
            for name, p in own.named_parameters():
                if name in given:
                    if id(p) not in drawn:
                        return False
                    draws[name].append(p.detach().clone())
    return bool(given) and all(_alike(p, draws[name]) for name, p in given.items())


def _alike(given: Tensor, draws: list[Tensor]) -> bool:
    """Whether a tensor is within the range of new draws, and of their size."""
    if not given.is_floating_point():
        return False
    largest = max(float(draw.abs().max()) for draw in draws)
    sizes = torch.stack([draw.square().mean().sqrt() for draw in draws])
    size = float(given.square().mean().sqrt())
    near = abs(size - float(sizes.mean())) <= SPREADS * float(sizes.std()) + 0.001 * float(sizes.mean())
    return near and float(given.abs().max()) <= RANGE * largest
