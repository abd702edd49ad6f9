"""The folders of the package: which may import which, and that every module has a name of its own."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "atmc"

# Each folder (or single module) may import those it lists, and `common`. No arrow points back.
MAY_IMPORT = {
    "common": set(),
    "data": set(),
    "nn": set(),
    "samplers": set(),
    "target": {"nn"},
    "recipe": {"nn", "target", "samplers"},
    "storage": {"recipe"},
    "engine": {"data", "nn", "target", "samplers", "recipe", "storage"},
    "posterior": {"data", "nn", "target", "recipe", "storage"},
    "diagnose": {"recipe", "storage", "engine", "posterior"},
    "report": {"data", "recipe", "storage", "engine", "posterior", "diagnose"},
    "api": {"data", "nn", "target", "samplers", "recipe", "storage", "engine", "posterior", "diagnose"},
    "comparison": {
        "data",
        "nn",
        "target",
        "recipe",
        "storage",
        "engine",
        "posterior",
        "api",
    },
    "serve": {"data", "posterior", "report"},
    "cli": {"data", "recipe", "storage", "engine", "posterior", "diagnose", "report", "comparison", "serve"},
    "__init__": {"api", "comparison", "posterior", "recipe", "samplers", "target"},
    "__main__": {"cli"},
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The folders of the package that a module imports from, wherever in it the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which folder it is from"
            if node.module == "atmc":
                found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
            elif node.module and node.module.startswith("atmc."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("atmc.")}
    return found


def home(path: Path) -> str:
    """The folder of a module, or its own name at the top."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def test_no_arrow_points_back() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in modules()
        for other in sorted(imported(path) - {home(path), "common"} - MAY_IMPORT[home(path)])
    ]
    assert not wrong, wrong


def test_the_rule_itself_has_no_circle() -> None:
    done: set[str] = set()
    while left := MAY_IMPORT.keys() - done:
        free = {name for name in left if MAY_IMPORT[name] <= done}
        assert free, f"a circle among {sorted(left)}"
        done |= free


def test_the_rule_names_what_is_there() -> None:
    assert {home(path) for path in modules()} == MAY_IMPORT.keys()


def test_no_two_modules_have_one_name() -> None:
    """A verb of the command line may have the name of the module that does its work."""
    names = Counter(path.stem for path in modules() if path.stem != "__init__" and path.parent.name != "cli")
    assert [name for name, count in names.items() if count > 1] == []
