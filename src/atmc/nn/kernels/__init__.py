"""GPU kernels of the networks. Importing a file ending in `_triton` needs Triton; the modules outside do so lazily."""
