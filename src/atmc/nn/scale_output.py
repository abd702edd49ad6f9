"""The last layer of a regression network with a second output for each number: the logarithm of its noise."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Standard deviation of V h under the prior, for features h of size 1. With 3 or more, log σ goes on falling outside of
# the data, and a target there costs tens of nats (wine, validation: an NLL of 1.3 for 0.9).
SPREAD = 1.0


class ValueAndScale(nn.Linear):
    """Outputs [batch, 2D]: the D values W h + b of a linear layer, then the D log-scales s = log_scale + V h.

    `log_scale` [D] is the part of the noise that all inputs share, in units of the targets' standard deviation, with
    the weak prior Normal(0, 3) of `WithNoise`. V (`scale_weight`) is what depends on the input: Normal(0, 1/fan-in). It
    starts at 0 and stays there in the first half of a warm start: a fit of values and scales together explains by noise
    what the values have not learned yet, and stays there (energy, validation: an RMSE of 1.45 for 0.43).
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.scale_weight = nn.Parameter(torch.zeros_like(self.weight))
        self.log_scale = nn.Parameter(torch.zeros_like(self.weight[:, 0]))
        #: Standard deviations of Normal priors that every rule of `atmc.priors` keeps for these parameters.
        self.prior_scales = {"log_scale": 3.0, "scale_weight": SPREAD / math.sqrt(in_features)}

    def reset_parameters(self) -> None:
        """New values; the noise of a network that knows nothing, the same for every input."""
        super().reset_parameters()
        with torch.no_grad():
            for name in ("scale_weight", "log_scale"):
                if isinstance(own := getattr(self, name, None), Tensor):
                    own.zero_()

    def forward(self, input: Tensor) -> Tensor:
        values = functional.linear(input, self.weight, self.bias)
        return torch.cat([values, functional.linear(input, self.scale_weight, self.log_scale)], dim=-1)


def with_scale_output(model: nn.Module, numbers: int) -> nn.Module | None:
    """A copy whose last linear layer is a `ValueAndScale`; None where there is none with `numbers` outputs.

    Whether that layer's outputs are the network's is not looked at here.
    """
    if any(isinstance(module, ValueAndScale) for module in model.modules()):
        return model
    own = copy.deepcopy(model)
    layers = [(name, module) for name, module in own.named_modules() if type(module) is nn.Linear]
    if not layers or layers[-1][1].out_features != numbers:
        return None
    name, layer = layers[-1]
    weight = layer.weight
    new = ValueAndScale(layer.in_features, numbers, layer.bias is not None, weight.device, weight.dtype)
    new.weight, new.bias = layer.weight, layer.bias  # with their requires_grad, and tied if they were
    new.train(layer.training)
    if not name:
        return new
    parent, _, key = name.rpartition(".")
    setattr(own.get_submodule(parent), key, new)
    return own


def values_and_scales(model: nn.Module) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """The trainable parameters by name: those that a warm start fits first, and what makes the noise depend on x."""
    late = {id(module.scale_weight) for module in model.modules() if isinstance(module, ValueAndScale)}
    named: list[tuple[str, Tensor]] = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [(n, p) for n, p in named if id(p) not in late], [(n, p) for n, p in named if id(p) in late]
