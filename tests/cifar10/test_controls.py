"""What docs/cifar10.md tells of the rows that differ in the sampler only, one of them without any, is what is kept."""

from __future__ import annotations

import itertools
import json
import tomllib
from typing import Any

import numpy as np
import pytest
from scipy import stats

from .rescored import RESULTS, ahead, costs, limit, probabilities
from .told import TEXT, bare, between, p_of, said_by_runs, table_after

ROWS = {"none": "atmc-zero", "ATMC": "atmc-settled", "SGNHT": "sgnht-settled", "SGHMC": "sghmc-settled"}
SAMPLERS = list(ROWS)[1:]
CHAINS = 4
FLOOR = float(np.finfo(np.float16).smallest_subnormal)  # three of the four are stored in float16: then all as these


@pytest.fixture(scope="module")
def kept(explored) -> dict[str, list[dict[str, Any]]]:
    return said_by_runs(explored, ROWS)


def by_chain(row: str) -> np.ndarray:
    """A row's samples as [chain, sample, image, class]: they lie in the order of epochs, chain after chain."""
    probs = np.maximum(probabilities(row), FLOOR)
    return np.stack([probs[chain::CHAINS] for chain in range(CHAINS)])


def of_places(row: str) -> np.ndarray:
    """The averages of the samples of each place, [chain, place, image, class]."""
    epochs = np.load(RESULTS / f"{row}-0.npz")["epochs"][::CHAINS]
    cycle, chains = np.ceil((epochs - 0.5) / 50), by_chain(row)
    return np.stack([chains[:, cycle == number].mean(1) for number in np.unique(cycle)], axis=1)


def scores_of_chains(row: str, labels: np.ndarray) -> np.ndarray:
    """NLL and accuracy of the average of each chain, [2, chains]."""
    means = by_chain(row).mean(1)
    return np.array([costs(means).mean(-1), 100 * (means.argmax(-1) == labels).mean(-1)])


def with_error(values: np.ndarray, digits: int) -> str:
    """Mean ± standard error, as the page writes it."""
    return bare(f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}")


def test_the_four_rows_differ_in_the_sampler_only():
    recipes = {name: tomllib.loads((RESULTS / f"{row}.toml").read_text(encoding="utf-8")) for name, row in ROWS.items()}
    temperatures = [recipe["sampler"].pop("temperature") for recipe in recipes.values()]
    assert temperatures == [0.0, 0.02, 0.02, 0.02]
    for name, recipe in recipes.items():
        recipe.pop("name", None)
        for key in ("name", "thermostat_spread", "inertia"):  # what only some of them have
            recipe["sampler"].pop(key, None)
        for key in ("temperature_schedule", "explore_fraction"):  # without a temperature there is nothing to schedule
            value = recipe["schedule"].pop(key, None)
            assert value == {"temperature_schedule": "explore", "explore_fraction": 0.94}[key] or name == "none"
    assert all(recipe == recipes["ATMC"] for recipe in recipes.values())


def test_their_scores_are_those_of_the_probabilities(labels, kept):
    found = table_after("### The same row with other samplers")
    assert [cells[0].split(",")[0] for cells in found] == list(ROWS)
    for (_, alone, place, chain, together, many), (name, row) in zip(found, ROWS.items(), strict=True):
        accuracy, nll = (np.mean([s[f"single {score}"] for s in kept[name]]) for score in ("accuracy", "nll"))
        assert alone == bare(f"{100 * accuracy:.2f} / {nll:.3f}"), name
        places = of_places(row)
        assert places.shape[:2] == (CHAINS, 4)
        assert place == with_error(costs(places).mean((1, 2)), 4), name
        of_chain, right = scores_of_chains(row, labels)
        assert chain == f"{with_error(right, 2)} / {with_error(of_chain, 4)}", name
        mean = by_chain(row).mean((0, 1))
        assert together == bare(f"{100 * np.mean(mean.argmax(-1) == labels):.2f} / {costs(mean).mean():.3f}"), name
        assert many == bare(f"{limit(places.reshape(-1, *mean.shape))[0]:.3f}"), name
    stored = probabilities("atmc-zero")
    free, floored = (costs(probs.mean(0)).mean() for probs in (stored, np.maximum(stored, FLOOR)))
    assert bare(f"the control has {free:.4f} in *all* instead of {floored:.4f}, by one image") in TEXT


def test_what_is_said_of_their_differences(labels):
    chains = {name: scores_of_chains(row, labels) for name, row in ROWS.items()}
    pairs = {(a, b): (chains[b][0], chains[a][0]) for a, b in itertools.combinations(ROWS, 2)}
    most = max(pairs, key=lambda pair: abs(np.subtract(*pairs[pair]).mean()))
    assert most == ("none", "ATMC")
    assert f"ATMC against none, is {between(*pairs[most], 4)} for one chain" in TEXT
    assert all(p_of(*pair) > 0.2 for pair in pairs.values())
    behind = {name: (chains["none"][1], chains[name][1]) for name in SAMPLERS}
    words = "by {} (ATMC), {} (SGNHT) and {} points (SGHMC; p = {:.3f}, {:.3f} and {:.3f})"
    p = [p_of(*pair) for pair in behind.values()]
    assert bare(words.format(*(between(*pair, 2) for pair in behind.values()), *p)) in TEXT
    assert f"the last, {with_error(chains['SGHMC'][1] - chains['ATMC'][1], 2)} behind SGHMC's, pair by pair" in TEXT
    early = [costs(np.maximum(probabilities(row), FLOOR)[:44].mean(0)).mean() for row in ("atmc-zero", "sgnht-settled")]
    assert bare("none and SGNHT are level ({:.3f} and {:.3f})".format(*early)) in TEXT
    assert "these five by {} and by {} points".format(*ahead("atmc-zero", "ensemble-sgd")) in TEXT


def test_what_is_said_of_samples_alone(kept):
    """At the samples of a place SGD goes on learning by heart, and a sampler less so."""
    nll = {name: {(s["chain"], round(s["epoch"])): s["single nll"] for s in some} for name, some in kept.items()}
    rises = {
        name: np.array(
            [np.mean([of[chain, end - 1] - of[chain, end - 2] for end in (100, 150, 200, 250)]) for chain in range(4)]
        )
        for name, of in nll.items()
    }
    assert all((rises["none"] > rises[name]).all() for name in SAMPLERS)
    assert f"from the first to the second its NLL rises by {with_error(rises['none'], 4)}." in TEXT
    said = "rises by {}, {} and {}, less in each of the twelve chains"
    assert said.format(*(with_error(rises[name], 4) for name in SAMPLERS)) in TEXT
    alone = {
        name: np.array([np.mean([nll for (chain, _), nll in of.items() if chain == number]) for number in range(4)])
        for name, of in nll.items()
    }
    less = [(alone["none"], alone[name]) for name in SAMPLERS]
    said = "A sample alone has {:.4f}, {:.4f} and {:.4f} less NLL than SGD's points (standard errors of .004)"
    assert bare(said.format(*(np.subtract(*pair).mean() for pair in less))) in TEXT
    assert all(between(*pair, 3).endswith("± .004") for pair in less)
    last = [np.mean([nll[name][chain, 249] for chain in range(4)]) for name in ("none", "ATMC", "SGHMC")]
    assert bare(f"the rows beside it have {min(last):.3f} to {max(last):.3f}") in TEXT
    low = [alone[name].mean() - costs(probabilities(ROWS[name])).mean() for name in SAMPLERS]
    assert bare(f"by {min(low):.4f} to {max(low):.4f} in the rows *SGD settled first*") in TEXT


def test_how_long_the_runs_were_the_same(explored):
    """The three samplers up to the epoch at which they come on; the control is another program from the start."""
    traces = [
        next(run for key, run in explored.items() if f"(the row {row})" in key)["trace"]["rows"]
        for row in ROWS.values()
    ]
    none, *sampled = ([(epoch, loss) for epoch, loss, *_ in rows] for rows in traces)
    assert all(rows[:10] == sampled[0][:10] for rows in sampled)
    assert 46 < sampled[0][9][0] < 47
    assert none[1:10] != sampled[0][1:10]
    assert "share the first 46 epochs of each chain to the last bit" in TEXT


def test_where_thermostats_had_something_to_do_atmc_was_ahead(labels):
    own, other = (scores_of_chains(row, labels)[0] for row in ("atmc-cold", "sgnht-cold"))
    p = stats.ttest_1samp(other - own, 0.0).pvalue
    assert bare(f"by {with_error(other - own, 4)} (p = {p:.2f}, paired") in TEXT
    nll, points = ahead("atmc-cold", "sgnht-cold")
    assert f"in accuracy they are level ({points} points)" in TEXT
    assert bare(f"in NLL and by {float(nll.split()[0]):.3f} (above)") in TEXT


def test_what_is_said_of_them_in_short(kept):
    table = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    rows = {row["run"]: row for row in table if row["kind"] == "posterior predictive"}
    scores = {name: f"{100 * rows[row]['accuracy']:.2f} / {rows[row]['nll']:.3f}" for name, row in ROWS.items()}
    said = "with SGNHT have {SGNHT}, with SGHMC {SGHMC}, and without any sampler {none}:"
    assert bare(said.format(**scores)) in TEXT
    ends = (rows["atmc-settled-T0.05"]["nll"], rows["atmc-zero"]["nll"])
    assert bare("(test), {:.3f} at T = .05, and {:.3f} without the sampler |".format(*ends)) in TEXT
    share = 1e6 * np.mean([sample["silent_share"] for sample in kept["ATMC"]])
    assert f"(for {share:.0f} parameters in a million)" in TEXT
    worst = costs(probabilities("atmc-zero").mean(0)).max()
    assert f"for one image that costs {worst:.0f} nats" in TEXT
    temperature = " ".join((RESULTS.parents[1] / "docs" / "temperature.md").read_text(encoding="utf-8").split())
    nll = {name: bare(f"{rows[row]['nll']:.3f}") for name, row in ROWS.items()}
    said = "of {ATMC} with ATMC at T = .02, of {SGNHT} with SGNHT, {SGHMC} with SGHMC, and of {none} without a sampler"
    assert said.format(**nll) in temperature


def test_what_readme_says_of_them():
    readme = " ".join((RESULTS.parents[1] / "README.md").read_text(encoding="utf-8").split())
    table = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    rows = {row["run"]: row for row in table if row["kind"] in ("posterior predictive", "ensemble")}
    five, two = rows["ensemble-sgd"], rows["ensemble-sgd-batchnorm"]
    none, *sampled = (rows[row] for row in ROWS.values())
    assert (
        f"**The same cycles without a sampler are as good**: {100 * none['accuracy']:.2f} / {none['nll']:.3f}" in readme
    )
    said = "SGNHT, SGHMC and ATMC have {:.3f}, {:.3f} and {:.3f}, no more apart than chains are"
    assert said.format(*(rows[ROWS[name]]["nll"] for name in ("SGNHT", "SGHMC", "ATMC"))) in readme
    behind = [100 * (none["accuracy"] - row["accuracy"]) for row in sampled]
    assert f"and {min(behind):.1f} to {max(behind):.1f} points less accuracy" in readme
    for row in (none, *sampled):
        better = {score: row[score] < five[score] for score in ("nll", "ece", "brier")}
        assert all(better.values()), row["run"]
        assert five["accuracy"] < row["accuracy"] <= two["accuracy"] - 0.01
        assert abs(row["nll"] - two["nll"]) < 0.004  # standard errors over the test images are .005
        assert row["ece"] < two["ece"]
    assert f"and behind in ECE**: {100 * two['accuracy']:.2f} / {two['nll']:.3f} (" in readme
    assert 1.4 < two["gpu_seconds"] / np.mean([row["gpu_seconds"] for row in (none, *sampled)]) < 1.6
    worth = costs(of_places("atmc-zero")).mean() - costs(of_places("atmc-settled-T0.05")).mean()
    assert f"A sampler at T = 0.05 is worth {worth:.3f} of NLL where one cycle is averaged" in readme
