"""Bayesian deep learning by sampling, for PyTorch."""

from .samplers import ATMC, SGHMC, SGLD, SGNHT, CyclicCosine
from .target import Potential, likelihoods, priors

__version__ = "0.1.0"

__all__ = ["ATMC", "SGHMC", "SGLD", "SGNHT", "CyclicCosine", "Potential", "likelihoods", "priors"]
