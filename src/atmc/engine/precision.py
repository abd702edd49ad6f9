"""In which precision a network gets its inputs, and whether torch's autocast chooses the rest.

With `run.precision = "bf16"` our own networks get bf16 inputs and follow them; one kernel casts all weights. Other
networks get float32 inputs and autocast. The network alone decides, not the recipe's name for it: `atmc.sample` calls
every network "custom". Float32 inputs without autocast would compute everything in float32.
"""

from dataclasses import dataclass

import torch
from torch import nn

from atmc.nn.parts import Tail
from atmc.nn.with_noise import WithNoise
from atmc.recipe.settings import Recipe


@dataclass(frozen=True)
class Precision:
    """The dtype of the inputs, and the one that autocast computes in (None: autocast is off)."""

    inputs: torch.dtype
    autocast: torch.dtype | None


def precision_for(recipe: Recipe, model: nn.Module) -> Precision:
    """What a run of this recipe does with this network."""
    if recipe.run.precision == "float32":
        return Precision(torch.float32, None)
    return Precision(torch.bfloat16, None) if is_ours(model) else Precision(torch.float32, torch.bfloat16)


def is_ours(model: nn.Module) -> bool:
    """Whether this is a network of `atmc.nn`, and none of the user's in a wrapper of ours."""
    return type(model).__module__.startswith("atmc.nn.") and not isinstance(model, Tail | WithNoise)
