"""A network with the noise of its targets as one more parameter, so that both are sampled together."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn


class WithNoise(nn.Module):
    """Outputs [batch, 2D]: the D outputs of `network`, then `log_scale`, the same for every input.

    `log_scale` [D] is log σ of the targets' noise in units of their standard deviation. It starts at 0, the noise of a
    network that knows nothing. Its own prior, Normal(0, 3), is weak: σ may well be 400 times smaller or larger.
    """

    #: Standard deviations of Normal priors that every rule of `atmc.priors` keeps for these parameters.
    prior_scales: ClassVar[dict[str, float]] = {"log_scale": 3.0}

    def __init__(self, network: nn.Module, outputs: int = 1) -> None:
        super().__init__()
        self.network = network
        self.log_scale = nn.Parameter(torch.zeros(outputs))
        self.training = network.training  # a user's network is sampled in the mode it has

    def reset_parameters(self) -> None:
        """The noise of a network that knows nothing; the network's own layers are not touched."""
        with torch.no_grad():
            self.log_scale.zero_()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(x)
        values = found.reshape(found.shape[0], -1)
        return torch.cat([values, self.log_scale.to(values.dtype).expand_as(values)], dim=1)
