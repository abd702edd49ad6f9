"""Running a sampler: recipes, the loop, checkpoints and resuming, the sample bank, several chains and processes.

Heavy parts are imported when they are first used, so that reading a recipe or a bank stays quick.
"""

from typing import Any

_HOMES = {
    "Recipe": "settings",
    "load_recipe": "recipe",
    "recipe_to_toml": "recipe",
    "run": "runner",
    "RunResult": "runner",
    "RunDir": "rundir",
    "SampleBank": "bank",
    "Progress": "progress",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
