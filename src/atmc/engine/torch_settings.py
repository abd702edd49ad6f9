"""PyTorch's global switches for the length of a run, put back afterwards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atmc.recipe.settings import Recipe


@contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Deterministic kernels where the recipe asks for them; else the fastest convolutions for fixed shapes.

    A CPU run is deterministic as it is, for a given number of threads: torch's own switch would take seconds to import.
    """
    if device.type != "cuda":
        threads = torch.get_num_threads()
        torch.set_num_threads(recipe.run.threads or threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
        return
    exact = recipe.run.deterministic
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    if exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    cudnn.deterministic = exact or before[1]
    cudnn.benchmark = not exact
    try:
        yield
    finally:
        if exact:
            torch.use_deterministic_algorithms(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1], before[2]
