"""What is sampled: likelihoods, priors, and the potential U(θ) that joins them."""

from . import likelihoods, priors
from .potential import Potential

__all__ = ["Potential", "likelihoods", "priors"]
