"""README and docs say what is so: their Python runs, their commands exist, their tables are those of results/."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import itertools
import json
import math
import re
import shlex
import statistics
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
from atmc.samplers import speed_settings

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


def results(path: str) -> Any:
    return json.loads((ROOT / "results" / path).read_text(encoding="utf-8"))


def test_readmes_three_lines_of_speed_are_measured():
    said = " ".join(text_of("README.md").split())
    speed = results("train/cuda-56x32-b128.json")["speed"]
    assert f"takes {speed['ratio']:.3f} times as long as SGD's: {speed['atmc']:,.0f} images a second" in said
    step = results("step/cuda.json")["milliseconds"]["resnet-50"]
    times = [step[key] for key in ("ATMC, fused", "AdamW, fused", "posteriors sgnht")]
    assert "takes {:.2f} ms; PyTorch's fused AdamW {:.2f} ms, `posteriors` (sgnht) {:.1f} ms".format(*times) in said
    row = results("cifar10/atmc-settled.row.json")
    shape = f"({row['chains']} chains × {row['epochs']} epochs, {row['samples']} samples)"
    assert f"{shape} takes {row['gpu_seconds']:.0f} s end to end" in said
    faq = " ".join(text_of("docs/faq.md").split())
    assert f"takes {times[0]:.2f} ms against {times[2]:.1f} ms" in faq
    assert f"one epoch takes {speed['ratio']:.3f} times" in faq


def test_every_benchmark_is_in_the_index():
    folder = ROOT / "benchmarks"
    named = re.findall(r"`([\w*]+\.py)`", (folder / "README.md").read_text(encoding="utf-8"))
    scripts = [path.name for path in folder.glob("*.py")]
    assert [name for name in scripts if not any(fnmatch(name, each) for each in named)] == []
    assert [each for each in named if not any(fnmatch(name, each) for name in scripts)] == []


def test_what_is_said_of_cycles_on_the_small_posterior_is_in_its_table():
    said = " ".join(text_of("docs/hmc.md").split())
    found = {}
    for row in results("hmc/small.json"):
        found.setdefault(row["row"], []).append(row)

    def mean(name, key):
        return sum(row[key] for row in found[name]) / len(found[name])

    follow = ("cycles-0.007-follow", "cycles-0.002-follow")
    heat = sorted(mean(name, "noise_temperature") for name in follow)
    flat = sorted(mean(name, "curvature") for name in follow)
    assert f"It is {heat[0]:.1f} to {heat[1]:.1f} where samples are taken" in said
    assert f"λ is {round(flat[0], -3):,.0f} to {round(flat[1], -3):,.0f} (all data: 56,000 and more)" in said
    assert min(mean(name, "curvature") for name in ("full-0.007", "full-0.002")) > 56_000
    right = mean("full-0.002", "ambiguity")
    worst, friction, all_of_it = (
        mean("cycles-0.002-follow" + more, "ambiguity") for more in ("", "-noise16", "-kronecker16-importance")
    )
    assert 0.35 < (friction - worst) / (right - worst) < 0.65, "by a half"
    assert 0.0 <= right - all_of_it < 0.02
    constant, large = "mini-0.0014-kronecker16-importance", "cycles-0.007-follow-noise16"
    for key in ("training_loss", "nll_alone", "nll"):
        assert mean(constant, key) < min(mean(large, key), mean("cycles-0.007-follow", key))
    best, hot = (results(f"hmc/atmc-{name}-0.json")["validation"]["curve"] for name in ("corrected", "follow"))
    now = [f"{curve[key][9]:.3f}" for curve in (best, hot) for key in ("nll", "ambiguity")]
    assert "an NLL of {} and an ambiguity of {}, `atmc-follow` {} and {}.".format(*now) in said


def test_what_is_said_of_friction_along_each_example_is_in_its_rows():
    said = " ".join(text_of("docs/minibatches.md").split())
    rows = results("minibatch/law.json")

    def only(problem, **wanted):
        keys = {"problem": problem, "sampler": "ATMC", **wanted}
        (row,) = [row for row in rows if all(row.get(key) == value for key, value in keys.items())]
        return row

    digits = [
        only("digits", batch=20, rate=0.05, noise_rank="examples"),
        only("digits", batch=20, rate=0.05, noise_kronecker=True),
        only("digits", batch=600),
    ]
    losses = [f"{row['training_loss'][0]:.3f}" for row in digits]
    words = "is {} at batches of 20 and rate 0.05, where rank 16 with Kronecker factors has {} and all data {};"
    assert words.format(*losses) in said
    chains = results("hmc/small.json")
    names = ["batch64-0.002-examples", "batch64-0.002-kronecker16-importance", "full-0.002"]
    groups = [[row for row in chains if row["row"] == name] for name in names]
    nll = [f"{sum(row['nll'] for row in rows) / len(rows):.3f}" for rows in groups]
    assert "an NLL of {}, with Kronecker factors and importance {}, with all data {};".format(*nll) in said
    heat = [f"{sum(row['noise_temperature'] for row in rows) / len(rows):.1f}" for rows in groups[:2]]
    assert "T along the noise is {} there, and {} with Kronecker factors.".format(*heat) in said
    small = [row for row in chains if row.get("noise_examples") and row["batch"] == 64]
    share = {
        (row["step_size"], row["importance"]): round(100 * row["kick_excess"]) for row in small if row["seed"] == 0
    }
    words = "it is {} % at h = 0.002, with importance {} %, and {} % at h = 0.001."
    assert words.format(share[0.002, False], share[0.002, True], share[0.001, False]) in said
    truth, error = digits[2]["training_loss"]
    for batch, rate in ((20, 0.0125), (100, 0.05)):
        found, own = only("digits", batch=batch, rate=rate, noise_rank="examples")["training_loss"]
        assert abs(found - truth) < 2.5 * (error**2 + own**2) ** 0.5, "weaker noise"

    def stiffest(problem, rank, step=1.0):
        return "{:.2f} ± {:.2f}".format(*only(problem, noise_rank=rank, step=step)["stiffest_variance"])

    assert f"is {stiffest('logistic', 'examples')}, with rank 16 {stiffest('logistic', 16)}." in said
    deviation = only("linear", noise_rank="examples", step=1.0)["sd_ratio"][1]
    assert f"it is {stiffest('linear', 'examples')}, and standard deviations are {deviation:.2f} of the" in said
    halves = [stiffest(problem, "examples", 0.5) for problem in ("logistic", "linear")]
    assert "At half the steps it is {} and {}.".format(*halves) in said


def hmc_row(name):
    return results(f"hmc/atmc-{name}-0.json")


def test_what_corrections_of_gradient_noise_do_on_the_hmc_benchmark_is_in_its_rows():
    said = " ".join(text_of("docs/hmc.md").split())
    corrected, follow, half, double = (
        hmc_row(name) for name in ("corrected", "follow", "corrected-half", "corrected-double")
    )
    alike = [
        {key: row[key] for key in ("gradients", "samples", "temperature", "augment")} for row in (corrected, follow)
    ]
    assert alike[0] == alike[1] == {"gradients": 500_000, "samples": 100, "temperature": 1.0, "augment": "none"}
    curve, other = corrected["validation"]["curve"], follow["validation"]["curve"]
    pairs = [f"{curve['nll'][k - 1]:.3f} against {other['nll'][k - 1]:.3f} after {k}" for k in (10, 20, 100)]
    ahead = [f"{other['nll'][k - 1] - curve['nll'][k - 1]:.2f}".lstrip("0") for k in (10, 100)]
    assert f"by {ahead[0]} to {ahead[1]}: {pairs[0]} samples, {pairs[1]}, {pairs[2]}." in said
    best = next(row for row in results("hmc/published.json")["rows"] if row["row"].startswith("PX"))
    assert next(k for k, nll in enumerate(curve["nll"], 1) if nll < best["nll"]) == 15
    assert "passes the lowest of these NLLs after 15 samples" in said
    ambiguities = [row["validation"]["average"]["ambiguity"] for row in (corrected, follow)]
    assert "(ambiguity {:.3f} against {:.3f}), as HMC's do (0.484)".format(*ambiguities) in said
    assert f"{curve['nll'][49]:.3f} after 50, {curve['nll'][99]:.3f} after 100." in said
    alone = corrected["validation"]["singles"]["nll"]
    words = "at {:.3f} on average from the 11th to the 20th and {:.3f} among the last twenty"
    assert words.format(statistics.mean(alone[10:20]), statistics.mean(alone[80:])) in said
    (mixing,) = [row for row in results("hmc/mixing.json") if row["row"] == "atmc-corrected"]
    assert f"of an image's prediction is {mixing['ess_median']:.0f} of {mixing['draws']} samples;" in said
    assert f"R-hat between its halves is above {mixing['rhat_q95']:.2f} for 5 % of images" in said
    assert f"correlated by up to {max(mixing['slowest'].values()):.2f} from one sample to the next" in said
    rows = [half["validation"], corrected["validation"], double["validation"]]
    nll, apart = ([f"{row['curve'][key][9]:.3f}" for row in rows] for key in ("nll", "ambiguity"))
    assert "h = 0.0002 has {}, h = 0.0004 {} and h = 0.0008 {}.".format(*nll) in said
    single = [f"{statistics.mean(row['singles']['nll'][5:10]):.3f}" for row in rows]
    assert "({}, {} and {}) and a single one is worse ({}, {} and {} on average".format(*apart, *single) in said


def test_what_is_said_of_the_default_prior_is_in_its_results():
    said = " ".join(text_of("docs/tutorials/small-data.md").split())
    rows = results("small_data/default_prior.json")
    pairs = [[f"{row[name]['nll']:.3f}" for name in ("gaussian-limited", "gaussian")] for row in rows]
    assert f"has an NLL of {pairs[0][0]} with it and {pairs[0][1]} with Normal(0, 1)." in said
    assert "on 2,000 images has {} and {}, on 5,000 digits of MNIST {} and {},".format(*pairs[1], *pairs[2]) in said
    assert "a convolutional network on 10,000 images {} and {};".format(*pairs[3]) in said
    apart = sorted(abs(row["gaussian"]["nll"] - row["gaussian-limited"]["nll"]) for row in rows[4:])
    assert len(apart) == 4
    assert apart[2] < 0.01 < apart[3]


def test_what_corrections_do_with_the_same_steps_is_in_its_rows():
    said = " ".join(text_of("docs/hmc.md").split())
    plain, corrected = hmc_row("constant-small"), hmc_row("corrected-half")
    assert plain["settings"]["lr"] == corrected["settings"]["lr"] == 0.0002
    assert plain["settings"]["friction"] == corrected["settings"]["friction"]
    nll, apart = (
        " to ".join(f"{row['validation']['curve'][key][9]:.3f}" for row in (plain, corrected))
        for key in ("nll", "ambiguity")
    )
    assert f"average of ten samples from {nll} and their ambiguity from {apart};" in said
    assert f"noise T is {corrected['noise_temperature']:.1f} instead of {plain['noise_temperature']:.0f}." in said
    larger = hmc_row("constant"), hmc_row("constant-kronecker16-importance")
    assert {row["gradients"] for row in larger} == {50_080}
    averages = [row["validation"]["average"] for row in larger]
    pairs = [" to ".join(f"{row[key]:.3f}" for row in averages) for key in ("nll", "ambiguity")]
    assert "with D = 30, {} and {}.".format(*pairs) in said
    large = hmc_row("follow-kronecker16-importance")["validation"]["curve"]["nll"]
    assert f"{min(large):.3f} after {'seven' if large[6] == min(large) else '?'} samples and {large[9]:.3f}" in said


def test_scores_against_hmc_are_those_of_results():
    ours, cycles, other = hmc_row("corrected"), hmc_row("follow"), results("hmc/sghmc-0.json")
    held, test = ours["validation"]["average"], ours["test"]["average"]
    words = (
        f"an error of {held['error']:.3f} and an NLL of {held['nll']:.3f} on held-out images (one seed; on the test "
    )
    words += f"set {test['error']:.3f} and {test['nll']:.3f})"
    said, readme = (" ".join(text_of(name).split()) for name in ("docs/hmc.md", "README.md"))
    assert words in said
    assert f"an NLL of {held['nll']:.3f} where published SGHMC has 0.409 and full-batch HMC 0.309" in readme
    assert f"gives an NLL of {held['nll']:.3f}, where published SGHMC" in " ".join(
        text_of("docs/minibatches.md").split()
    )
    held = cycles["validation"]["average"]
    assert f"at {held['error']:.3f} / {held['nll']:.3f}." in said
    mine, theirs = cycles["validation"]["curve"]["nll"], other["validation"]["curve"]["nll"]
    pairs = [f"{mine[k - 1]:.3f} against {theirs[k - 1]:.3f} after {k}" for k in (10, 20, other["samples"])]
    assert f"at equal gradients**: {pairs[0]} samples, {pairs[1]}, {pairs[2]}." in said
    assert f"the training loss of `atmc-follow` is {cycles['training_loss']:.3f} after" in said
    assert f"`atmc-corrected` has a training loss of {ours['training_loss']:.3f}." in said


def test_times_and_accuracies_that_are_said_of_cifar10():
    rows = {row["run"]: row for row in results("cifar10/table.json") if row["kind"] != "last sample"}
    ours = [rows[run]["gpu_seconds"] for run in ("atmc-zero", "atmc-settled", "ensemble-sgd")]
    assert {round(seconds / 60) for seconds in ours} == {8, 9}
    assert round(rows["ensemble-sgd-batchnorm"]["gpu_seconds"] / 60) == 13
    behind = [
        100 * (rows["atmc-zero"]["accuracy"] - rows[f"{name}-settled"]["accuracy"])
        for name in ("atmc", "sgnht", "sghmc")
    ]
    said = " ".join(text_of("docs/concepts/when-it-pays.md").split())
    assert f"they are {min(behind):.1f} to {max(behind):.1f} points behind" in said
    nll = [abs(rows[f"{name}-settled"]["nll"] - rows["atmc-zero"]["nll"]) for name in ("atmc", "sgnht", "sghmc")]
    assert max(nll) < 2 * rows["atmc-zero"]["spread"]["nll"]


def test_numbers_that_follow_from_formulas():
    said = text_of("docs/tutorials/own-network.md")
    assert f"D is {speed_settings(lr=1e-3, speed=1.0, momentum=0.9)['friction']:.0f}" in said
    lines = text_of("docs/tutorials/regression.md").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("| K |"))
    counts, _, errors = (line.strip("|").split("|") for line in lines[at : at + 3])
    expected = [f"{100 * math.sqrt(2 / (int(k) - 1)):.0f} %" for k in counts[1:]]
    assert [cell.strip() for cell in errors[1:]] == expected


def test_the_page_of_pretrained_networks_says_what_was_measured():
    said = " ".join(text_of("docs/tutorials/pretrained.md").split())
    rows = results("pretrained/cpu.json")["rows"]

    def mean(row: str, score: str) -> str:
        return f"{statistics.mean(seed[score] for seed in rows[row].values()):.3f}".replace("0.", ".")

    net, one = "the network", "T = 1"
    nll, ece = (f"{mean(net, score)} to {mean(one, score)}" for score in ("nll", "ece"))
    assert f"lowers the NLL from {nll} and the ECE from {ece}." in said
    assert f"more NLL ({mean('the network, logits scaled', 'nll')})" in said
    assert f"the most ({mean('the networks of all seeds together', 'nll')})" in said


# -- README -----------------------------------------------------------------------------------------------------------


def test_readme_is_short():
    assert len(text_of("README.md").split()) <= 900


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_linked_to_exist(name):
    """mkdocs checks links between its pages; README is none of them, and files elsewhere are none either."""
    for target in re.findall(r"\]\(([^)#\s]+)", text_of(name)):
        generated = target.endswith(("reference/recipes.md", "reference/cli.md"))
        assert generated or target.startswith(("http", "mailto")) or ((ROOT / name).parent / target).exists(), target
