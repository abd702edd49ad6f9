"""Samplers as `torch.optim.Optimizer`s, and the cyclic step size."""

from atmc.samplers.atmc import ATMC
from atmc.samplers.cyclic_cosine import CyclicCosine
from atmc.samplers.kinetic_sampler import speed_settings
from atmc.samplers.readings import Readings, TensorReading
from atmc.samplers.sampler import Sampler
from atmc.samplers.sghmc import SGHMC
from atmc.samplers.sgld import SGLD
from atmc.samplers.sgnht import SGNHT

#: By the names that recipes use.
SAMPLERS: dict[str, type[Sampler]] = {"atmc": ATMC, "sgnht": SGNHT, "sghmc": SGHMC, "sgld": SGLD}

__all__ = [
    "ATMC",
    "SAMPLERS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "CyclicCosine",
    "Readings",
    "Sampler",
    "TensorReading",
    "speed_settings",
]
