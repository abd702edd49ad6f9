"""Networks that take several inputs at once, as `model(input_ids=…, attention_mask=…)` or `model(image, numbers)`.

Several inputs are packed into one tensor (`atmc.common.packed_inputs`), and a hook of the network takes it apart again
just before its `forward`. Names of parameters stay as they are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atmc.common.packed_inputs import Layout

ATTRIBUTE = "several_inputs"  # of a network with the hook


def taking(model: nn.Module, layout: Layout) -> nn.Module:
    """A copy of the network that takes packed inputs; of an output with `.logits` it gives these."""
    own = copy.deepcopy(model)
    object.__setattr__(own, ATTRIBUTE, layout)
    own.register_forward_pre_hook(_Unpacking(layout), with_kwargs=True, prepend=True)
    own.register_forward_hook(_logits)
    return own


def layout_of(model: nn.Module) -> Layout | None:
    """How the network's packed inputs are laid out, where it takes several, also inside of `WithNoise`."""
    found = (getattr(part, ATTRIBUTE, None) for part in (model, getattr(model, "network", None)) if part is not None)
    return next((layout for layout in found if isinstance(layout, Layout)), None)


@dataclass(frozen=True)
class _Unpacking:
    layout: Layout

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], Tensor) and args[0].dtype == torch.int32:
            return self.layout.unpack(args[0])
        return None


def _logits(module: nn.Module, args: Any, output: Any) -> Any:
    return output if isinstance(output, Tensor) else getattr(output, "logits", None)
