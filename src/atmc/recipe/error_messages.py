"""A recipe's mistakes, each in one line: the key, what is wrong, and the nearest that would be right."""

from collections.abc import Iterable, Sequence
from typing import Any

from atmc.common.suggest import nearest
from atmc.recipe.settings import SECTIONS, Recipe, flat

# What people write who come from elsewhere.
_ALIASES = {
    "learning_rate": "sampler.lr",
    "step_size": "sampler.lr",
    "h": "sampler.lr",
    "batch": "data.batch_size",
    "batchsize": "data.batch_size",
    "dataset": "data.name",
    "optimizer": "sampler.name",
    "num_epochs": "schedule.epochs",
    "cycle": "schedule.cycle_epochs",
    "cycle_length": "schedule.cycle_epochs",
    "burnin": "schedule.burn_in_epochs",
    "mu": "sampler.inertia",
    "t": "sampler.temperature",
    "d": "sampler.friction",
    "c": "sampler.speed_limit",
    "m": "sampler.mass",
    "num_chains": "chains",
    "augmentation": "data.augment",
}
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
}


def nearest_key(key: str) -> str | None:
    """The valid key that `key` most likely meant: of its own section first, then of any."""
    section, _, last = key.rpartition(".")
    words = _ALIASES | {known.rpartition(".")[2]: known for known in reversed(list(flat(Recipe())))}
    own = {word: known for word, known in words.items() if known.startswith(f"{section}.")} | {
        known.rpartition(".")[2]: known for known in flat(Recipe()) if known.startswith(f"{section}.")
    }
    for choices in (own if section in SECTIONS else {}, words | {name: name for name in SECTIONS}):
        if near := nearest(last, choices):
            return choices[near]
    return None


def unknown(key: str, value: Any) -> str:
    """The line for a key that does not exist."""
    section, _, _ = key.rpartition(".")
    if not section and isinstance(value, dict):
        near = nearest(key, SECTIONS)
        return f"unknown section [{key}]; " + (
            f"did you mean [{near}]?" if near else f"there are {', '.join(SECTIONS)}"
        )
    near = nearest_key(key)
    if near:
        return f"unknown key {key}; did you mean {near}?"
    valid = [known for known in flat(Recipe()) if known.rpartition(".")[0] == section]
    return f"unknown key {key}; there are {', '.join(valid)}"


def must_be_one_of(key: str, value: Any, choices: Iterable[str]) -> str:
    """The line for a value that is none of its key's."""
    near = nearest(str(value), choices)
    return f"{key} = {value!r} must be one of {', '.join(choices)}" + (f"; did you mean {near}?" if near else "")


def either(choices: Sequence[str]) -> str:
    """`"a"`, `"a" or "b"`, `"a", "b" or "c"`."""
    *others, last = (f'"{choice}"' for choice in choices)
    return f"{', '.join(others)} or {last}" if others else last


def explain(problem: Any) -> str:
    """One of pydantic's errors as one line of ours."""
    key = ".".join(str(part) for part in problem["loc"])
    value = problem.get("input")
    kind = problem["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown(key, value)
    if kind.startswith("dataclass"):
        return f"{key} must be a section, [{key}], not {value!r}"
    if kind == "literal_error":
        choices = [choice.strip(" '") for choice in problem["ctx"]["expected"].replace(" or ", ", ").split(",")]
        return must_be_one_of(key, value, choices)
    if kind in _WANTED:
        return f"{key} = {value!r} must be {_WANTED[kind]}"
    return f"{key} = {value!r}: {problem['msg']}"
