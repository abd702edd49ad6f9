"""What a run is: its settings, their validation, and recipes as TOML files."""

from atmc.common.lazy import lazy_names

__all__ = ["Recipe", "load_recipe", "recipe_to_toml"]

__getattr__ = lazy_names(__name__, {"Recipe": "settings", "load_recipe": "toml_files", "recipe_to_toml": "toml_files"})
