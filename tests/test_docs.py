"""README and docs say what is so: their Python runs, their commands exist, their tables are those of results/."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import itertools
import math
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from atmc.cli.app import app
from atmc.cli.main import run
from atmc.recipe import load_recipe

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
Names = dict[str, Any]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(name), re.DOTALL | re.MULTILINE)


def commands(name: str) -> list[list[str]]:
    """Every `atmc …` line of a page's shell blocks, as words."""
    lines = [line for block in blocks(name, "sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("atmc ")]


# -- Python -----------------------------------------------------------------------------------------------------------


def check_sums(names: Names) -> None:
    prediction = names["prediction"]
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.epistemic)


def check_quickstart(names: Names) -> None:
    check_sums(names)
    assert (prediction := names["prediction"]).probs.shape == (500, 10)
    assert float((prediction.label == names["test"].labels).double().mean()) > 0.8
    assert Path("digits-posterior").is_dir()


def check_regression(names: Names) -> None:
    estimate = names["estimate"]
    torch.testing.assert_close(estimate.std.square(), estimate.aleatoric + estimate.epistemic)
    assert 11 < float(estimate.aleatoric[1]) ** 0.5 < 21, "the noise of the targets, 15"
    assert float(estimate.epistemic[2]) > 2 * float(estimate.epistemic[1]), "150 is far from all ages seen"


def check_own_network(names: Names) -> None:
    assert len(names["samples"]) == 8
    assert 0.7 < names["sampler"].readings().kinetic < 1.4
    loop = names["atmc"].Posterior(names["samples"], names["model"])
    assert loop.evaluate(*names["test"])["predictive"]["accuracy"] > 0.75


def check_pretrained(names: Names) -> None:
    assert names["prediction"].epistemic.shape == (100,)
    torch.testing.assert_close(
        names["ready"](names["test"][0]), names["trained"](names["test"][0]), atol=1e-3, rtol=1e-3
    )


def check_small_data(names: Names) -> None:
    assert names["nll"].keys() == {0.0, 0.3, 1.0}
    best = names["best"]
    assert names["nll"][best] == min(names["nll"].values())
    assert names["calibrated"](names["runs"][best]) < math.log(2)


def check_extending(names: Names) -> None:
    flat, biased = (names["variance"](kind) for kind in (names["LeimkuhlerMatthews"], names["atmc"].SGLD))
    error = 5 * math.sqrt(2 / 4000)  # five standard errors of a variance from as many chains
    assert abs(flat - 1) < error
    assert abs(biased - 1 / 0.7) < error / 0.7
    theta = torch.randn(50, dtype=torch.float64)
    exact = torch.tanh(theta / 4) / 2  # of the logistic density of scale 2
    torch.testing.assert_close(names["Logistic"](2.0).neg_grad(theta), exact)
    assert float(torch.trapezoid(names["density"], names["grid"][::20])) == pytest.approx(1, abs=1e-3)
    assert set(names["logistic_biases"](0.5).assign(names["model"]).describe().split()) >= {"Logistic(scale=0.5)"}
    assert names["atmc"].nn.build("small", depth=3)(torch.zeros(5, 1, 8, 8)).shape == (5, 10)
    probs, labels = np.array([[0.6, 0.8]]) / 1.4, np.array([1])
    assert names["spherical"](probs, labels) == pytest.approx(0.8)
    assert 0.5 < names["scores"]["predictive"]["spherical"] <= 1


CHECKS: dict[str, Callable[[Names], None]] = {
    "docs/index.md": check_quickstart,
    "docs/tutorials/classify.md": check_sums,
    "docs/tutorials/regression.md": check_regression,
    "docs/tutorials/own-network.md": check_own_network,
    "docs/tutorials/pretrained.md": check_pretrained,
    "docs/tutorials/small-data.md": check_small_data,
    "docs/extending.md": check_extending,
}


@pytest.fixture
def registries():
    """What a page registers is gone after it."""
    from atmc.data.catalogue import NAMED
    from atmc.nn.registry import NETWORKS
    from atmc.posterior.metric_entries import entries, remove
    from atmc.samplers import SAMPLERS
    from atmc.target.priors import RULES

    kept = [(registry, dict(registry)) for registry in (NETWORKS, SAMPLERS, NAMED, RULES)]
    metrics = entries("classification")
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
    for metric in entries("classification"):
        if metric not in metrics:
            remove(metric)


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(name, "python")])
def test_a_pages_python_runs(name, tmp_path, monkeypatch, registries):
    """All blocks in order in one namespace, and then the commands on runs that they made."""
    monkeypatch.chdir(tmp_path)
    names: Names = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "only .* sample")  # runs here are short
        warnings.filterwarnings("ignore", "the chain was at")
        for block in blocks(name, "python"):
            exec(compile(block, name, "exec"), names)
    if name in CHECKS:
        CHECKS[name](names)
    for words in commands(name):
        if words[0] in ("doctor", "report") and Path(words[1]).exists():
            assert run(words) == 0, words


# -- commands ---------------------------------------------------------------------------------------------------------


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the others."""
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands"):
        assert words, "a group of commands is none"
        assert words[0] in found.commands, f"there is no command {words[0]}"
        found, words = found.commands[words[0]], words[1:]
    return found, words


@pytest.mark.parametrize("name", [name for name in NAMES if commands(name)])
def test_a_pages_commands_exist(name):
    for typed in commands(name):
        command, words = command_of(typed)
        context = command.make_context(command.name, list(words))  # parses and runs nothing
        assert not context.args, f"too many arguments: {typed}"
        if typed[0] == "sample" and not typed[1].startswith("folder:"):
            load_recipe(typed[1], [word for flag, word in itertools.pairwise(words) if flag == "--set"])


def test_a_wrong_command_is_noticed():
    with pytest.raises(AssertionError, match="no command"):
        command_of(["smaple", "digits-atmc"])
    command, words = command_of(["report", "runs/x", "--odd"])
    with pytest.raises(Exception, match="--odd"):
        command.make_context(command.name, words)


# -- generated references ---------------------------------------------------------------------------------------------


def tool(name: str) -> Any:
    """A module of tools/docs."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / f"tools/docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_says_what_each_setting_means():
    reference = tool("recipe_reference")
    page = reference.recipes_page()
    for name, section in reference.SECTIONS.items():
        part = page.partition(f"## `[{name}]`")[2].partition("\n## ")[0]
        for field in dataclasses.fields(section):
            [row] = re.findall(rf"^\| `{field.name}` \|.*$", part, re.MULTILINE)
            assert re.split(r"(?<!\\)\|", row)[-2].strip(), f"{name}.{field.name} has no comment in settings.py"
    shipped = {str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in (ROOT / "recipes").rglob("*.toml")}
    assert shipped == set(re.findall(r"^\| `([\w/.-]+)` \|", page.partition("## Recipes that ship")[2], re.MULTILINE))


def test_the_reference_has_every_command_and_option():
    page = tool("cli_reference").cli_page()
    for words in (["sample"], ["report"], ["data", "get"]):
        command, _ = command_of(words)
        part = page.partition(f"## `atmc {' '.join(words)}`")[2].partition("\n## ")[0]
        assert all(f"`{param.opts[0]}`" in part for param in command.params if param.opts[0].startswith("--"))


# -- numbers ----------------------------------------------------------------------------------------------------------


sys.path.append(str(ROOT / "benchmarks"))  # scripts there import each other by their bare names
tables = importlib.import_module("docs_tables")


@functools.cache
def made() -> dict[str, str]:
    return {name: make() for name, make in tables.BLOCKS.items()}


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_those_of_results(name):
    assert tables.fill(text_of(name), made()) == text_of(name), "run python benchmarks/docs_tables.py"


def test_every_table_is_on_a_page():
    whole = "".join(text_of(name) for name in NAMES)
    assert all(f"<!-- {name} -->" in whole for name in tables.BLOCKS)


def test_every_benchmark_is_in_the_index():
    folder = ROOT / "benchmarks"
    named = re.findall(r"`([\w*]+\.py)`", (folder / "README.md").read_text(encoding="utf-8"))
    scripts = [path.name for path in folder.glob("*.py")]
    assert [name for name in scripts if not any(fnmatch(name, each) for each in named)] == []
    assert [each for each in named if not any(fnmatch(name, each) for name in scripts)] == []


# -- README -----------------------------------------------------------------------------------------------------------


def test_readme_is_short():
    assert len(text_of("README.md").split()) <= 900


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_linked_to_exist(name):
    """mkdocs checks links between its pages; README is none of them, and files elsewhere are none either."""
    for target in re.findall(r"\]\(([^)#\s]+)", text_of(name)):
        generated = target.endswith(("reference/recipes.md", "reference/cli.md"))
        assert generated or target.startswith(("http", "mailto")) or ((ROOT / name).parent / target).exists(), target
