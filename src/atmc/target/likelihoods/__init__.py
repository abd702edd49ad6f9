"""Likelihoods p(target | network output)."""

from __future__ import annotations

from typing import Any

from atmc.common.errors import InputError
from atmc.common.suggest import did_you_mean
from atmc.target.likelihoods.dirichlet import DirClip, NoisyDirichlet
from atmc.target.likelihoods.likelihood import Likelihood
from atmc.target.likelihoods.standard import Categorical, Gaussian

__all__ = ["LIKELIHOODS", "Categorical", "DirClip", "Gaussian", "Likelihood", "NoisyDirichlet", "build"]

#: By the names that recipes use.
LIKELIHOODS: dict[str, type[Likelihood]] = {
    "categorical": Categorical,
    "gaussian": Gaussian,
    "noisy-dirichlet": NoisyDirichlet,
    "dirclip": DirClip,
}


def build(name: str, **options: Any) -> Likelihood:
    """The likelihood a recipe names: categorical, gaussian, noisy-dirichlet or dirclip, with its numbers."""
    if name not in LIKELIHOODS:
        raise InputError(f"unknown likelihood {name!r}; {did_you_mean(name, LIKELIHOODS)}")
    try:
        return LIKELIHOODS[name](**options)
    except TypeError as error:
        raise InputError(f"likelihood {name!r}: {error}") from None
