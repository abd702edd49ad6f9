"""Likelihoods p(target | network output)."""

from __future__ import annotations

from typing import Any

from atmc.common.errors import InputError
from atmc.common.suggest import did_you_mean
from atmc.target.likelihoods.dirichlet import DirClip, NoisyDirichlet
from atmc.target.likelihoods.learned_noise import (
    NO_PLACE,
    Heteroscedastic,
    InputNoise,
    LearnedNoise,
    LocationScale,
    StudentT,
)
from atmc.target.likelihoods.likelihood import Likelihood, RegressionLikelihood
from atmc.target.likelihoods.own import OwnLikelihood, is_law, own_likelihood
from atmc.target.likelihoods.standard import Categorical, Gaussian

__all__ = [
    "LIKELIHOODS",
    "NO_PLACE",
    "Categorical",
    "DirClip",
    "Gaussian",
    "Heteroscedastic",
    "InputNoise",
    "LearnedNoise",
    "Likelihood",
    "LocationScale",
    "NoisyDirichlet",
    "OwnLikelihood",
    "RegressionLikelihood",
    "StudentT",
    "build",
    "is_law",
    "own_likelihood",
]

#: By the names that recipes use.
LIKELIHOODS: dict[str, type[Likelihood]] = {
    "categorical": Categorical,
    "gaussian": Gaussian,
    "noisy-dirichlet": NoisyDirichlet,
    "dirclip": DirClip,
    "input-noise": InputNoise,
    "learned-noise": LearnedNoise,
    "heteroscedastic": Heteroscedastic,
    "student-t": StudentT,
}


def build(name: str, **options: Any) -> Likelihood:
    """The likelihood that a recipe names, with its numbers."""
    if name not in LIKELIHOODS:
        raise InputError(f"unknown likelihood {name!r}; {did_you_mean(name, LIKELIHOODS)}")
    try:
        return LIKELIHOODS[name](**options)
    except TypeError as error:
        raise InputError(f"likelihood {name!r}: {error}") from None
