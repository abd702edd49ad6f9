"""What is sampled: likelihoods, priors, and the potential U(θ) that joins them."""

from atmc.target import likelihoods, priors
from atmc.target.potential import Potential

__all__ = ["Potential", "likelihoods", "priors"]
