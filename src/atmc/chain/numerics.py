"""PyTorch's global switches for the length of a run, put back afterwards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atmc.chain.settings import Recipe


@contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Deterministic kernels where the recipe asks for them; else the fastest convolutions for fixed shapes."""
    exact = recipe.run.deterministic and device.type == "cuda"
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )
    if exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(exact or before[0])
    torch.backends.cudnn.deterministic = exact or before[1]
    torch.backends.cudnn.benchmark = not exact
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic = before[1]
        torch.backends.cudnn.benchmark = before[2]
