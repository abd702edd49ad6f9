"""How the chain moves: samplers that are `torch.optim.Optimizer`s, their integrator, and the cyclic step size."""

from .atmc import ATMC
from .kinetic_sampler import speed_settings
from .readings import Readings, TensorReading
from .sampler import Sampler
from .schedule import CyclicCosine
from .sghmc import SGHMC
from .sgld import SGLD
from .sgnht import SGNHT

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
