"""A fully connected network with weight-normalised layers and SELU."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from atmc.nn.effective_weights import effective_weights
from atmc.nn.weightnorm import WNLinear


class MLP(nn.Module):
    """`depth` linear layers with SELU between them. Input of any shape [batch, …] is flattened; logits in float32."""

    def __init__(
        self,
        depth: int = 3,
        width: int = 64,
        classes: int = 10,
        in_channels: int = 1,
        image_size: int = 8,
        in_features: int | None = None,
    ) -> None:
        super().__init__()
        if depth < 1 or width < 1:
            raise ValueError(f"depth and width must be at least 1, not {depth} and {width}")
        inputs = in_channels * image_size**2 if in_features is None else in_features
        # The call of `build` that makes a network like this one: saved with its samples.
        args = {"depth": depth, "width": width, "classes": classes, "in_features": inputs}
        self.made_by = {"build": "mlp", "args": args}
        sizes = [inputs, *[width] * (depth - 1), classes]
        self.layers = nn.ModuleList(WNLinear(*pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        layers = [layer for layer in self.layers if isinstance(layer, WNLinear)]
        x = x.flatten(1)
        expected = layers[0].direction.shape[1]
        if x.shape[1] != expected:
            raise ValueError(f"mlp was built for {expected} inputs an example, got {x.shape[1]}: set in_features")
        weights = effective_weights(layers[:-1], x.dtype)
        for layer, weight in zip(layers, weights, strict=False):
            x = F.selu(layer(x, weight))
        logits: Tensor = layers[-1](x.to(layers[-1].direction.dtype))
        return logits


def mlp(depth: int = 3, width: int = 64, classes: int = 10, in_channels: int = 1, image_size: int = 8) -> MLP:
    """`MLP` for square images of `in_channels` × `image_size`²."""
    return MLP(depth, width, classes, in_channels, image_size)
