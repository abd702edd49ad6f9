"""Monte-Carlo dropout: trained with dropout, and predicted with it, many times (Gal and Ghahramani, 2016)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from atmc.common.errors import InputError
from atmc.nn.with_noise import WithNoise

RATE = 0.1


class Dropout:
    """Dropout of RATE before every linear layer but a first one, as long as it is `on`.

    `convolutions`: also before every convolution of more than one pixel but a first one. By default they are left
    alone: dropping single pixels of their inputs does little, and needs a rate of its own.
    """

    def __init__(self, net: nn.Module, convolutions: bool = False) -> None:
        self.on = True
        own = net.network if isinstance(net, WithNoise) else net
        parts = [module for module in own.modules() if list(module.parameters(recurse=False))]
        linear = [m for m in parts[1:] if _is_linear(m) or (convolutions and _is_convolution(m))]
        if not linear:
            raise InputError("the network has no linear layer behind its first one to put dropout before")
        self.layers = len(linear)
        for module in linear:
            module.register_forward_pre_hook(self._drop)

    def _drop(self, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        first: Tensor = given[0]
        return (functional.dropout(first, RATE, training=self.on), *given[1:])


def _is_linear(module: nn.Module) -> bool:
    from atmc.nn.weightnorm import WNLinear

    return isinstance(module, nn.Linear | WNLinear)


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1
