"""Priors: densities on parameters, rules that hand them out, and the set that a model ends up with."""

from .base import Flat, Prior
from .element import Horseshoe, Laplace, Normal, StudentT
from .prior_set import PriorSet
from .rows import Direction, GroupLaplace
from .rules import Clause, PriorRule, build, gaussian, normalised, on, resnetpp

__all__ = [
    "Clause",
    "Direction",
    "Flat",
    "GroupLaplace",
    "Horseshoe",
    "Laplace",
    "Normal",
    "Prior",
    "PriorRule",
    "PriorSet",
    "StudentT",
    "build",
    "gaussian",
    "normalised",
    "on",
    "resnetpp",
]
