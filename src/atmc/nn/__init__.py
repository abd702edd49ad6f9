"""Networks that can be sampled: weight-normalised layers, ResNet++ and its BatchNorm sibling, a check, a conversion."""

from atmc.nn.check import Finding, check
from atmc.nn.convert import FrozenAffine, convert
from atmc.nn.effective_weights import effective_weights, weight_layers
from atmc.nn.frn import FilterResponseNorm2d
from atmc.nn.measurements import BlockSignal, signals, top_eigenvalue
from atmc.nn.mlp import MLP, mlp
from atmc.nn.registry import build
from atmc.nn.resnet import ResNet, resnet
from atmc.nn.resnetpp import ResNetPP, resnetpp
from atmc.nn.weightnorm import WNConv2d, WNLinear

__all__ = [
    "MLP",
    "BlockSignal",
    "FilterResponseNorm2d",
    "Finding",
    "FrozenAffine",
    "ResNet",
    "ResNetPP",
    "WNConv2d",
    "WNLinear",
    "build",
    "check",
    "convert",
    "effective_weights",
    "mlp",
    "resnet",
    "resnetpp",
    "signals",
    "top_eigenvalue",
    "weight_layers",
]
