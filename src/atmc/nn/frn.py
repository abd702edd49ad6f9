"""Filter response normalisation (Singh & Krishnan 2020): a normalisation without batch statistics.

Each channel of each example is divided by its own root mean square over the image, so the layer can be sampled. The HMC
reference runs (Izmailov et al. 2021) use it in ResNet-20.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def filter_response_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """gain · x / √(mean over the image of x² + eps) + bias, the statistics in float32 at least."""
    wide = x if x.dtype == torch.float64 else x.float()
    mean_square = wide.square().mean((2, 3), keepdim=True)
    factor = torch.rsqrt(mean_square + eps) * gain.view(1, -1, 1, 1)
    return (x * factor + bias.view(1, -1, 1, 1)).to(x.dtype)


class FilterResponseNorm2d(nn.Module):
    """Filter response normalisation with its learned threshold: max(gain · x/rms(x) + bias, threshold).

    `threshold=False` leaves the thresholded linear unit out, for an activation such as SELU to follow.
    """

    def __init__(self, channels: int, threshold: bool = True, gain: float = 1.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.full((channels,), gain))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.threshold = nn.Parameter(torch.zeros(channels)) if threshold else None

    def forward(self, x: Tensor) -> Tensor:
        y = filter_response_norm(x, self.gain, self.bias, self.eps)
        if self.threshold is None:
            return y
        return torch.maximum(y, self.threshold.to(y.dtype).view(1, -1, 1, 1))
