"""Networks and layers that can be sampled, a check for networks that cannot, and a conversion."""

from atmc.nn.check import Finding, check
from atmc.nn.convert import FrozenAffine, convert
from atmc.nn.effective_weights import effective_weights, weight_layers
from atmc.nn.frn import FilterResponseNorm2d
from atmc.nn.measurements import BlockSignal, signals, top_eigenvalue
from atmc.nn.mlp import MLP, mlp
from atmc.nn.normalisation import BatchNormAct, NormAct
from atmc.nn.registry import build
from atmc.nn.resnet import ResNet, resnet
from atmc.nn.resnet_frn import ResNetFRN, resnet_frn
from atmc.nn.resnetpp import ResNetPP, resnetpp
from atmc.nn.scale_output import ValueAndScale
from atmc.nn.standardisation import WSConv2d
from atmc.nn.weightnorm import WNConv2d, WNLinear
from atmc.nn.wide_resnet import ResNetV2, WideResNet, wide_resnet
from atmc.nn.with_noise import WithNoise

__all__ = [
    "MLP",
    "BatchNormAct",
    "BlockSignal",
    "FilterResponseNorm2d",
    "Finding",
    "FrozenAffine",
    "NormAct",
    "ResNet",
    "ResNetFRN",
    "ResNetPP",
    "ResNetV2",
    "ValueAndScale",
    "WNConv2d",
    "WNLinear",
    "WSConv2d",
    "WideResNet",
    "WithNoise",
    "build",
    "check",
    "convert",
    "effective_weights",
    "mlp",
    "resnet",
    "resnet_frn",
    "resnetpp",
    "signals",
    "top_eigenvalue",
    "weight_layers",
    "wide_resnet",
]
