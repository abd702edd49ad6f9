"""What docs/cifar10.md tells of the rows that differ in the sampler only, one of them without any, is what is kept."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from scipy import stats

from .rescored import RESULTS, ahead, costs, limit, probabilities
from .told import TEXT, bare, table_after

ROWS = {"none": "atmc-zero", "ATMC": "atmc-settled", "SGNHT": "sgnht-settled", "SGHMC": "sghmc-settled"}
CHAINS = 4


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.load(RESULTS / "atmc-settled-0.npz")["labels"]


def by_chain(row: str) -> np.ndarray:
    """A row's samples as [chain, sample, image, class]: they lie in the order of epochs, chain after chain."""
    return np.stack([probabilities(row)[chain::CHAINS] for chain in range(CHAINS)])


def of_places(row: str) -> np.ndarray:
    """The averages of the samples of each place, the first places of all chains first."""
    epochs = np.load(RESULTS / f"{row}-0.npz")["epochs"][::CHAINS]
    cycle = np.ceil((epochs - 0.5) / 50)
    chains = by_chain(row)
    return np.concatenate([chains[:, cycle == number].mean(1) for number in np.unique(cycle)])


def scores_of_chains(row: str, labels: np.ndarray) -> np.ndarray:
    """NLL and accuracy of the average of each chain, [2, chains]."""
    means = by_chain(row).mean(1)
    return np.array([costs(means).mean(-1), 100 * (means.argmax(-1) == labels).mean(-1)])


def error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5)


def test_the_four_rows_differ_in_the_sampler_only():
    recipes = {name: tomllib.loads((RESULTS / f"{row}.toml").read_text(encoding="utf-8")) for name, row in ROWS.items()}
    for recipe in recipes.values():
        recipe.pop("name", None)
        sampler, schedule = recipe.pop("sampler"), recipe["schedule"]
        assert (sampler["speed"], sampler["momentum"]) == (0.0025, 0.9)
        for key in ("temperature_schedule", "explore_fraction"):  # without a temperature there is nothing to schedule
            schedule.pop(key, None)
    assert all(recipe == recipes["ATMC"] for recipe in recipes.values())


def test_their_scores_are_those_of_the_probabilities(labels):
    found = table_after("**The same row with other samplers")
    assert [cells[0].split(",")[0] for cells in found] == list(ROWS)
    for (_, alone, place, chain, together, many), row in zip(found, ROWS.values(), strict=True):
        probs, places = probabilities(row), of_places(row)
        right = 100 * (probs.argmax(-1) == labels).mean()
        assert alone == bare(f"{right:.2f} / {costs(probs).mean():.3f}"), row
        each = costs(places).mean(-1)
        assert len(each) == 16
        assert place == bare(f"{each.mean():.4f} ± {error(each):.4f}"), row
        nll, accuracy = scores_of_chains(row, labels)
        words = f"{accuracy.mean():.2f} ± {error(accuracy):.2f} / {nll.mean():.4f} ± {error(nll):.4f}"
        assert chain == bare(words), row
        mean = probs.mean(0)
        assert together == bare(f"{100 * np.mean(mean.argmax(-1) == labels):.2f} / {costs(mean).mean():.3f}"), row
        assert many == bare(f"{limit(places)[0]:.3f}"), row


def test_what_is_said_of_their_differences(labels):
    chains = {name: scores_of_chains(row, labels) for name, row in ROWS.items()}
    pairs = [(a, b) for a in ROWS for b in ROWS if a < b]
    less = {pair: chains[pair[0]][0] - chains[pair[1]][0] for pair in pairs}
    most = max(less, key=lambda pair: abs(less[pair].mean()))
    assert most == ("ATMC", "none")
    assert bare(f"against none, is {less[most].mean():.4f} ± {error(less[most]):.4f} (paired)") in TEXT
    assert all(stats.ttest_1samp(difference, 0.0).pvalue > 0.3 for difference in less.values())
    behind = [chains[name][1] - chains["ATMC"][1] for name in ("none", "SGNHT", "SGHMC")]
    words = [f"{more.mean():.2f} ± {error(more):.2f}" for more in behind]
    assert bare("by {}, {} and {} points".format(*words)) in TEXT
    assert bare("(p = {:.2f}, {:.2f} and {:.2f})".format(*(stats.ttest_1samp(m, 0.0).pvalue for m in behind))) in TEXT
    _, points = ahead("atmc-zero", "atmc-settled")
    assert f"all 48 samples by {points} behind none" in TEXT
    assert "these five by {} and by {} points".format(*ahead("atmc-zero", "ensemble-sgd")) in TEXT


def test_where_thermostats_had_something_to_do_atmc_was_ahead(labels):
    own, other = (scores_of_chains(row, labels)[0] for row in ("atmc-cold", "sgnht-cold"))
    p = stats.ttest_1samp(other - own, 0.0).pvalue
    assert bare(f"by {np.mean(other - own):.4f} ± {error(other - own):.4f} (p = {p:.2f}, paired") in TEXT


def test_what_is_said_of_them_in_short(explored):
    table = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    kept = {row["run"]: row for row in table if row["kind"] in ("posterior predictive", "average")}
    scores = {name: f"{100 * kept[row]['accuracy']:.2f} / {kept[row]['nll']:.3f}" for name, row in ROWS.items()}
    said = "with SGNHT have {SGNHT}, with SGHMC {SGHMC}, and without any sampler {none}:"
    assert bare(said.format(**scores)) in TEXT
    assert min(table, key=lambda row: row["nll"])["run"] == "atmc-zero"
    assert bare(f"(test), and {kept['atmc-zero']['nll']:.3f} without the sampler |") in TEXT
    samples = next(run for name, run in explored.items() if "(the row atmc-settled)" in name)["samples"]
    share = 1e6 * np.mean([sample["silent_share"] for sample in samples])
    assert f"(for {share:.0f} parameters in a million)" in TEXT
    worst = costs(probabilities("atmc-zero").mean(0)).max()
    assert f"for one image that costs {worst:.0f} nats" in TEXT
    temperature = " ".join((RESULTS.parents[1] / "docs" / "temperature.md").read_text(encoding="utf-8").split())
    nll = {name: bare(f"{kept[row]['nll']:.3f}") for name, row in ROWS.items()}
    said = "of {ATMC} with ATMC at T = .02, of {SGNHT} with SGNHT, {SGHMC} with SGHMC, and of {none} without a sampler"
    assert said.format(**nll) in temperature
