"""Running a sampler: the device loop, schedule, divergence guard, checkpoints, several chains and processes."""

from atmc.common.lazy import lazy_names

__all__ = ["Progress", "RunResult", "run"]

__getattr__ = lazy_names(__name__, {"run": "runner", "RunResult": "runner", "Progress": "progress"})
