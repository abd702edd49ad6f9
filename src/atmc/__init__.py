"""Bayesian deep learning by sampling, for PyTorch.

Samplers are optimizers (`ATMC`, `SGNHT`, `SGHMC`, `SGLD`), `Potential` makes the gradient they want, `sample` does all
of it, and `Posterior` says what the samples say. Names are imported when first used: the command line's help does not
wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atmc.api.sampling import sample
    from atmc.common.errors import InputError, RunError
    from atmc.comparison.compare import compare
    from atmc.posterior import Posterior, Prediction
    from atmc.recipe import Recipe
    from atmc.samplers import ATMC, SGHMC, SGLD, SGNHT, CyclicCosine
    from atmc.target import Potential, likelihoods, priors

__version__ = "0.1.0"

__all__ = [
    "ATMC",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "CyclicCosine",
    "InputError",
    "Posterior",
    "Potential",
    "Prediction",
    "Recipe",
    "RunError",
    "compare",
    "likelihoods",
    "priors",
    "sample",
]

_HOMES = {
    **dict.fromkeys(("ATMC", "SGHMC", "SGLD", "SGNHT", "CyclicCosine"), "samplers"),
    **dict.fromkeys(("Potential", "likelihoods", "priors"), "target"),
    **dict.fromkeys(("Posterior", "Prediction"), "posterior"),
    **dict.fromkeys(("InputError", "RunError"), "common.errors"),
    "Recipe": "recipe",
    "compare": "comparison.compare",
    "sample": "api.sampling",
}
_FOLDERS = (
    "comparison",
    "data",
    "diagnose",
    "engine",
    "nn",
    "posterior",
    "recipe",
    "report",
    "samplers",
    "storage",
    "target",
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"atmc.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _FOLDERS:
        return importlib.import_module(f"atmc.{name}")
    raise AttributeError(f"module 'atmc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_FOLDERS})
