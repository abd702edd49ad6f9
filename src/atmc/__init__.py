"""Bayesian deep learning by sampling, for PyTorch.

Samplers are optimizers (`ATMC`, `SGNHT`, `SGHMC`, `SGLD`), `Potential` makes the gradient they want, `sample` does all
of it, and `Posterior` says what the samples say. What a plain training loop does not need is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .samplers import ATMC, SGHMC, SGLD, SGNHT, CyclicCosine
from .target import Potential, likelihoods, priors

if TYPE_CHECKING:
    from .chain.api import sample
    from .posterior import Posterior, Prediction

__version__ = "0.1.0"

__all__ = [
    "ATMC",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "CyclicCosine",
    "Posterior",
    "Potential",
    "Prediction",
    "likelihoods",
    "priors",
    "sample",
]

_LAZY = {"sample": "atmc.chain.api", "Posterior": "atmc.posterior", "Prediction": "atmc.posterior"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in ("chain", "data", "nn", "posterior", "report"):
        return importlib.import_module(f"atmc.{name}")
    raise AttributeError(f"module 'atmc' has no attribute {name!r}")
