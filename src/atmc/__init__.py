"""Bayesian deep learning by sampling, for PyTorch."""

__version__ = "0.1.0"
