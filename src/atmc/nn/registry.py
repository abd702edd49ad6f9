"""Networks by name, for recipes: `build("resnetpp", depth=56, width=32, classes=10)`."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from atmc.common.errors import InputError
from atmc.common.suggest import did_you_mean
from atmc.nn.mlp import MLP
from atmc.nn.preactivation import NETWORK_NORMS
from atmc.nn.resnet import ResNet
from atmc.nn.resnet_frn import ResNetFRN
from atmc.nn.resnetpp import ResNetPP
from atmc.nn.wide_resnet import ResNetV2, WideResNet

NETWORKS: dict[str, type[nn.Module]] = {
    "resnetpp": ResNetPP,
    "resnet": ResNet,
    "wide-resnet": WideResNet,
    "resnet-v2": ResNetV2,
    "resnet-frn": ResNetFRN,
    "mlp": MLP,
}
# What a recipe's model.norm may be; "none" is a network's own default. Those left out have no choice of normalisation.
NORMS: dict[str, tuple[str, ...]] = {
    "resnetpp": ("none", "frn"),
    "resnet": ("bn", "frn"),
    "wide-resnet": ("none", *NETWORK_NORMS),
    "resnet-v2": ("none", *NETWORK_NORMS),
}
# What a recipe knows about its data and may pass to every network; those that need it use it.
FROM_DATA = ("classes", "in_channels", "image_size")


def build(name: str, **options: Any) -> nn.Module:
    """The network of that name. An option that is None keeps its default; unknown names and options are errors."""
    if name not in NETWORKS:
        raise InputError(f"unknown network {name!r}; {did_you_mean(name, NETWORKS)}")
    network = NETWORKS[name]
    known = list(inspect.signature(network).parameters)
    options = {key: value for key, value in options.items() if value is not None}
    for key in list(options):
        if key in known:
            continue
        if key in FROM_DATA:
            del options[key]
            continue
        raise InputError(f"network {name!r} has no option {key!r}; {did_you_mean(key, known)}")
    try:
        return network(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"network {name!r}: {error}") from error
