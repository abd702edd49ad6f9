"""What docs/cifar10.md tells of T = 1 for three epochs, with each sampler and with none, is what is kept."""

from __future__ import annotations

import itertools
import tomllib
from typing import Any

import numpy as np
import pytest

from .rescored import RESULTS, ROOT, ahead, costs, limit, probabilities
from .test_controls import CHAINS, of_places, scores_of_chains, with_error
from .told import TEXT, bare, between, said_by_runs, said_of, scored, table_after

ONE = "T1 after 0, noisy Dirichlet 0.01, speed 0.001, hold 0.6, explore {}, SGD settled first, 100 epochs"
COLD = "T0, noisy Dirichlet 0.01, speed 0.001, hold 0.6, SGD settled, 100 epochs"
SHORT = {
    ("ATMC", "three epochs"): ONE.format(0.94),
    ("SGNHT", "three epochs"): f"SGNHT, {ONE.format(0.94)}",
    ("ATMC", "five epochs"): ONE.format(0.9),
    ("none, T = 0", "–"): COLD,
    ("none, T = 0, seed 1", "–"): f"{COLD}, seed 1",
}
AT_ONE = {"ATMC": "atmc-settled-one", "SGNHT": "sgnht-settled-one", "SGHMC": "sghmc-settled-one"}


@pytest.fixture(scope="module")
def kept(explored) -> dict[str, list[dict[str, Any]]]:
    return said_by_runs(explored, AT_ONE)


def test_one_for_three_epochs_and_for_five(explored):
    found = table_after("But is that what T = 1 is worth?")
    assert [tuple(cells[:2]) for cells in found] == list(SHORT)
    for sampler, length, positions, loss, last, six in found:
        run = explored[SHORT[sampler, length]]
        samples = run["samples"]
        assert len(samples) == 6
        found_positions = [f"{s['configurational_temperature']:.2f}" for s in samples[3:]]
        assert positions == ("–" if sampler.startswith("none") else bare(", ".join(found_positions)))
        rows = run["trace"]["rows"]
        assert loss == ", ".join(f"{row[1]:.1f}" for row in rows[-3:])
        assert scored(last, samples[-1], "single")
        assert scored(six, samples[-1], "predictive")
    atmc, rival = (explored[SHORT[name, "three epochs"]] for name in ("ATMC", "SGNHT"))
    less = rival["samples"][-1]["predictive nll"] - atmc["samples"][-1]["predictive nll"]
    assert bare(f"ATMC has {less:.3f} less than SGNHT") in TEXT
    above = explored["T1 after 0, noisy Dirichlet 0.01, speed 0.001, hold 0, explore 0.6, 100 epochs"]["training_loss"]
    assert f"had {above:.1f} after twenty, and fell" in TEXT
    five = [row[1] for row in explored[SHORT["ATMC", "five epochs"]]["trace"]["rows"][-3:]]
    assert five == sorted(five)
    assert five[-1] < above


def test_what_heat_does_in_a_place_at_one(explored):
    """Each warm place against the cold ones of its cycle, and what is left of it over two places."""
    warm, cold = (
        {key: [nll for _, nll in explored[SHORT[key]]["places"]["rows"]] for key in keys}
        for keys in ((("ATMC", "three epochs"), ("SGNHT", "three epochs")), tuple(SHORT)[3:])
    )
    words = "of a place have {:.3f} and {:.3f} together with ATMC, {:.3f} and {:.3f} with SGNHT, first place and second"
    assert bare(words.format(*itertools.chain(*warm.values()))) in TEXT
    words = "three points of SGD have {:.3f} and {:.3f}, and {:.3f} and {:.3f} with another seed"
    assert bare(words.format(*itertools.chain(*cold.values()))) in TEXT
    one, two = (np.array(list(of.values())) for of in (warm, cold))
    assert (one.max(0) < two.min(0)).all()
    together = [np.array([explored[SHORT[key]]["samples"][-1]["predictive nll"] for key in of]) for of in (warm, cold)]
    gains = two.mean() - one.mean(), together[1].mean() - together[0].mean()
    assert bare("by {:.3f} on average; of six samples in two places {:.3f} is left".format(*gains)) in TEXT
    many = [2 * both - places.mean(1) for both, places in zip(together, (one, two), strict=True)]
    words = "they would have {:.3f} and {:.3f} with the samplers, {:.3f} and {:.3f} without"
    assert bare(words.format(*itertools.chain(*many))) in TEXT


def test_what_the_row_of_three_epochs_is_said_to_be(labels, kept, rows):
    row = rows["atmc-settled-one", "posterior predictive"]
    words = f"It has {said_of(row, ece=True)}, ahead of the paper's 93.9 / .194 and of the row"
    nll, points = ahead("atmc-settled-one", "atmc")
    assert f"{words} before by {nll} and {points} points" in TEXT
    assert row["accuracy"] > 0.939
    assert row["nll"] < 0.194
    probs = probabilities("atmc-settled-one").reshape(4, 3, CHAINS, len(labels), 10)
    said = []
    for k, at in enumerate((48, 49, 0)):
        mean = probs[:, k].mean((0, 1))
        positions = np.mean([s["configurational_temperature"] for s in kept["ATMC"] if round(s["epoch"]) % 50 == at])
        scores = f"{100 * np.mean(mean.argmax(-1) == labels):.2f} / {costs(mean).mean():.3f}"
        said.append((bare(scores), bare(f"{positions:.2f}")))
    (first, cool), (second, warmer), (last, warm) = said
    words = (
        f"where positions have a temperature of {cool}, have {first} together; the second ({warmer}) {second}, the last"
    )
    assert f"{words} ({warm}) {last}, while the training loss rises from 16.2 to 16.4." in TEXT
    momenta = np.mean([s["kinetic_temperature"] for s in kept["ATMC"] if round(s["epoch"]) % 50 == 0])
    assert bare(f"T = 1 in momenta ({momenta:.2f}) and positions") in TEXT
    trace = np.load(RESULTS / "atmc-settled-one-0.npz")["trace"]
    ends = np.array([[trace[trace[:, 0] == c][k, 2] for k in (-3, -1)] for c in range(CHAINS)]).mean(0)
    assert [f"{loss:.1f}" for loss in ends] == ["16.2", "16.4"]
    assert f"cycle, and ahead of it, {said_of(row)}, if it comes on for three epochs" in TEXT


def test_the_rows_at_one_differ_in_the_sampler_only():
    recipes = [tomllib.loads((RESULTS / f"{row}.toml").read_text(encoding="utf-8")) for row in AT_ONE.values()]
    for recipe in recipes:
        recipe.pop("name")
        for key in ("name", "thermostat_spread"):  # what SGHMC has not
            recipe["sampler"].pop(key, None)
    assert recipes[0]["sampler"]["temperature"] == 1.0
    assert recipes[0] == recipes[1]
    for key in set(recipes[0]["sampler"]) - set(recipes[2]["sampler"]):
        assert key in ("inertia", "kinetic"), key
        for recipe in recipes[:2]:
            recipe["sampler"].pop(key)
    assert recipes[0] == recipes[2]


def test_the_samplers_at_one(labels, kept, rows):
    found = table_after("### The other samplers at T = 1")
    assert [cells[0] for cells in found] == list(AT_ONE)
    chains = {name: scores_of_chains(row, labels) for name, row in AT_ONE.items()}
    for name, single, place, chain, together, many in found:
        places = of_places(AT_ONE[name])
        means = [np.mean([s[f"single {score}"] for s in kept[name]]) for score in ("accuracy", "nll")]
        assert single == bare(f"{100 * means[0]:.2f} / {means[1]:.3f}"), name
        assert place == with_error(costs(places).mean((1, 2)), 4), name
        assert chain == f"{with_error(chains[name][1], 2)} / {with_error(chains[name][0], 4)}", name
        assert together == said_of(rows[AT_ONE[name], "posterior predictive"]), name
        assert many == bare(f"{limit(places.reshape(-1, *places.shape[2:]))[0]:.3f}"), name
        row = rows[AT_ONE[name], "posterior predictive"]
        assert row["accuracy"] > 0.939
        assert row["nll"] < 0.194
    behind, points = ahead(AT_ONE["ATMC"], AT_ONE["SGNHT"])
    nll, right = (between(chains["ATMC"][k], chains["SGNHT"][k], digits) for k, digits in ((0, 4), (1, 2)))
    words = f"has {behind.removeprefix('-')} more NLL than SGNHT's and is {points} points more accurate (over the test"
    assert behind.startswith("-")
    assert f"{words} images); by chains {nll} and {right}." in TEXT
    pairs = itertools.permutations(AT_ONE, 2)
    most = max(pairs, key=lambda pair: chains[pair[1]][0].mean() - chains[pair[0]][0].mean())
    assert most == ("SGNHT", "ATMC")
    apart = max(itertools.permutations(AT_ONE.values(), 2), key=lambda pair: float(ahead(*pair)[0].split()[0]))
    assert apart == (AT_ONE["SGNHT"], AT_ONE["SGHMC"])
    words = f"SGHMC against SGNHT, is {ahead(*apart)[0]}, by chains"
    assert f"{words} {between(chains['SGHMC'][0], chains['SGNHT'][0], 4)}. SGNHT's run" in TEXT
    share = 1e6 * max(sample["silent_share"] for sample in kept["ATMC"])
    assert f"for {share:.1f} parameters in a million at most" in TEXT
    assert {f"{kept[name][-1]['thermostat_q99']:.1f}" for name in ("ATMC", "SGNHT")} == {"8.4"}
    ends = {
        name: [
            np.mean([s[f"{kind}_temperature"] for s in some if round(s["epoch"]) % 50 == 0])
            for kind in ("kinetic", "configurational")
        ]
        for name, some in kept.items()
    }
    words = "{:.3f} in momenta, {:.2f} in positions; theirs are ".format(*ends["SGHMC"])
    for name in ("ATMC", "SGNHT"):
        assert bare("{}{:.3f} and {:.2f})".format(words, *ends[name])) in TEXT
    less, more = ahead("atmc-cold", "sgnht-cold")
    words = f"only where steps are larger and T is low, by {less}; in accuracy they are level there ({more} points)."
    assert words in TEXT
    assert f"There its NLL is lower by {less}, with level accuracy ({more} points)" in TEXT
    scores = [said_of(rows[row, "posterior predictive"]) for row in AT_ONE.values()]
    assert "({} with ATMC, {} with SGNHT, {} with SGHMC)".format(*scores) in TEXT
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    nlls = [rows[AT_ONE[name], "posterior predictive"]["nll"] for name in ("SGNHT", "SGHMC", "ATMC")]
    assert "SGNHT, SGHMC and ATMC have {:.3f}, {:.3f} and {:.3f}. Samples are".format(*nlls) in readme
    assert f"only at larger ones, by {float(less.split()[0]):.3f}, in rows" in readme
