"""Priors on parameters, rules that assign them, and the set of priors of a model."""

from atmc.target.priors.elementwise import Horseshoe, Laplace, Normal, StudentT
from atmc.target.priors.prior import Flat, Prior
from atmc.target.priors.prior_set import PriorSet
from atmc.target.priors.rowwise import Direction, GroupLaplace
from atmc.target.priors.rules import RULES, Clause, PriorRule, build, gaussian, limited, normalised, on, resnetpp

__all__ = [
    "RULES",
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
    "limited",
    "normalised",
    "on",
    "resnetpp",
]
