"""Likelihoods, priors, and the potential U(θ)."""

from atmc.target import likelihoods, priors
from atmc.target.potential import Potential

__all__ = ["Potential", "likelihoods", "priors"]
