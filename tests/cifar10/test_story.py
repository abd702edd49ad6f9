"""What docs/cifar10.md tells of the way there is what results/cifar10 holds: exploration.json and the probabilities."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest

from atmc.diagnose.convergence import gain_of_pairs
from atmc.target.likelihoods import NoisyDirichlet

from .rescored import RESULTS, exploring
from .told import CONTROLS, DOCS, FOUR, TEXT, agree, scored, table_after


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (
            "### Thermostats that follow the step size",
            {
                ".02": "T0.02, thermostats that follow, 150 epochs",
                ".05": "T0.05, thermostats that follow, 150 epochs",
                ".03 from .3 (annealed)": "T0.03 from 0.3, thermostats that follow, 150 epochs",
                ".05 from .2 (annealed)": "T0.05 from 0.2, thermostats that follow, 150 epochs",
            },
        ),
        (
            "### Exploring at T = 0, sampling at T",
            {
                ".02 after 0": "T0.02 after 0, thermostats that follow, 100 epochs",
                ".05 after 0": "T0.05 after 0, thermostats that follow, 100 epochs",
            },
        ),
    ],
)
def test_scores_of_short_runs_are_those_kept(explored, words, runs):
    found = table_after(words)
    assert [row[0] for row in found] == list(runs)
    for name, *cells in found:
        run = explored[runs[name]]
        single = ", ".join(cells[:-2]).split(", ")
        assert all(scored(cell, s, "single") for cell, s in zip(single, run["samples"], strict=True)), name
        assert scored(cells[-2], run["samples"][-1], "predictive"), name
        assert agree(cells[-1], run["training_loss"]), name


@pytest.mark.parametrize(
    ("words", "first", "columns"),
    [
        ("### Large steps for longer", "T{:g} after 0", ["many", "loss"]),
        ("### T = 1", "T1 after 0, noisy Dirichlet {:g}", ["many"]),
    ],
)
def test_scores_of_runs_that_explore_are_those_kept(explored, words, first, columns):
    found = table_after(words)
    assert len(found) > 2
    for what, speed, hold, explore, one, two, both, *rest in found:
        name = f"{first.format(float(what))}, speed {float(speed):g}, hold {float(hold):g}, explore {float(explore):g}"
        run = explored.get(f"{name}, 100 epochs") or explored["T0.02 after 0, thermostats that follow, 100 epochs"]
        samples = run["samples"]
        assert all(scored(cell, sample, "single") for cell, sample in zip((one, two), samples, strict=True)), name
        assert scored(both, samples[-1], "predictive"), name
        parts = [{what: {"nll": sample[f"{what} nll"]} for what in ("single", "predictive")} for sample in samples]
        kept = {"many": exploring.limit({"samples": parts}), "loss": run["training_loss"]}
        assert all(agree(cell, kept[column]) for cell, column in zip(rest, columns, strict=True)), name


def test_narrow_priors_were_worse(explored):
    base = "T0.02 after 0, speed 0.003, hold 0, explore 0.6, prior scale"
    for scale, pattern in (
        (0.2, r"had (\S+ / \S+) for its two samples \(b = \.2 .*?training loss (\S+)\)"),
        (0.02, r"and (\S+ / \S+) with b = \.02 \(training loss (\S+)\)"),
    ):
        run, said = explored[f"{base} {scale:g}, 100 epochs"], re.search(pattern, TEXT)
        assert scored(said[1], run["samples"][-1], "predictive")
        assert agree(said[2], run["training_loss"])


def test_how_the_heat_comes_in_at_one(explored):
    run = explored["T1 after 0, noisy Dirichlet 0.01, speed 0.001, hold 0, explore 0.6, 100 epochs"]
    loss = {round(row[0]): row[1] for row in run["trace"]["rows"]}
    assert f"the loss is {loss[29]:.1f} at epoch 29" in TEXT
    assert f"and {loss[33]:.1f} at epoch 33" in TEXT
    assert f"is {loss[49]:.1f} at epoch 49" in TEXT
    momenta, positions = run["trace"]["rows"][-1][2], run["samples"][-1]["configurational_temperature"]
    assert f"(momenta {momenta:.2f}, positions {positions:.2f})" in TEXT
    variances = [NoisyDirichlet(0.01).moments(right)[1] for right in (True, *[False] * 9)]
    assert f"({sum(np.log(2 * np.pi * v) for v in variances) / 2:.1f} would be a perfect fit.)" in TEXT
    fast = explored["T1 after 0, noisy Dirichlet 0.01, speed 0.003, hold 0, explore 0.6, 100 epochs"]
    steps = [back["diverged_at"] for back in fast["rollbacks"]] + [int(re.search(r"at step (\d+)", fast["note"])[1])]
    assert len(steps) == 4
    assert max(steps) < 5 * 45_000 / 128


def test_the_run_that_was_the_row_before_is_kept(explored):
    run = next(run for name, run in explored.items() if name.endswith("(the row atmc-cold as it was)"))
    said = re.search(r"(\d+) samples with test (.+) together, and (.+) for the last", DOCS)
    assert int(said[1]) == len(run["samples"])
    assert scored(said[2], run["samples"][-1], "predictive")
    assert scored(said[3], run["samples"][-1], "single")
    now = next(run for name, run in explored.items() if name.endswith("(the row atmc-cold-one)"))
    assert max(s["single nll"] for s in now["samples"]) < min(s["single nll"] for s in run["samples"])


def test_neighbours_in_the_chain_differ_nearly_as_much_as_distant_samples():
    labels = np.load(RESULTS / "atmc-cold-one-0.npz")["probs"].astype(np.float32).argmax(-1)
    one, four, twelve = (100 * np.mean(labels[lag:] != labels[:-lag]) for lag in (1, 4, 12))
    assert f"disagree on {one:.1f} % of the test images, samples four cycles apart on {four:.1f} %, twelve" in TEXT
    assert f"cycles apart on {twelve:.1f} %" in TEXT


def test_another_start_brings_more_than_another_sample():
    stored = np.load(RESULTS / "atmc-cold-one-0.npz")
    chain, labels = stored["probs"].astype(np.float64), stored["labels"]
    other = np.load(RESULTS / "sgd-0.npz")["probs"].astype(np.float64)
    differ = 100 * np.mean(chain.argmax(-1) != other.argmax(-1))
    before, after = (
        float(-np.log(p.mean(0)[np.arange(len(labels)), labels]).mean())
        for p in (chain, np.concatenate([chain, other]))
    )
    said = f"on {differ:.1f} %, and as an {len(chain) + 1}th member it takes {before:.4f} to {after:.4f}"
    assert said.replace("0.", ".") in TEXT


def test_two_chains_gain_more_than_one_on_held_out_images(explored):
    runs = json.loads((RESULTS / "exploration.json").read_text(encoding="utf-8"))["runs"]
    small = next(run for run in runs if "four chains of 60 epochs" in run["name"])
    for (_, _, one, two, p), run in zip(table_after("### One chain does not"), (small, explored[FOUR]), strict=True):
        assert all(map(agree, (one, two), (run["pairs"]["one"], run["pairs"]["two"]), (len(one) - 1, len(two) - 1)))
        assert float(p.split()[0]) == pytest.approx(run["pairs"]["p_value"], rel=0.1)
    last = explored[FOUR]["samples"][-1]
    assert scored(re.search(r"eight samples of the second had (.+?)\. So", DOCS)[1], last, "predictive")


def test_what_several_chains_gain_is_what_the_probabilities_say():
    several, one, rival = (np.load(RESULTS / f"{name}-0.npz") for name in ("atmc-cold", "atmc-cold-one", "sgnht-cold"))
    labels, chains = several["labels"], [0, 1, 2, 3] * 4
    rows = np.arange(len(labels))
    costs, right = {}, {}
    for name, stored in (("several", several), ("one", one), ("rival", rival)):
        mean = stored["probs"].astype(np.float64).mean(0)
        costs[name], right[name] = -np.log(mean[rows, labels]), mean.argmax(-1) == labels

    def lower(kept: dict[str, Any], than: str) -> tuple[float, float]:
        change = np.subtract(kept[than], kept["several"], dtype=np.float64)
        return change.mean(), change.std(ddof=1) / len(change) ** 0.5

    groups = [np.load(RESULTS / f"{name}-0.npz")["probs"].astype(np.float64) for name in ("atmc-cold", "sgnht-cold")]
    own, other = ([-np.log(p[c::4].mean(0)[rows, labels]).mean() for c in range(4)] for p in groups)
    assert all(np.less(own, other))
    assert f"lower in all four ({np.mean(own):.3f} and {np.mean(other):.3f} on average)".replace("0.", ".") in TEXT
    for words, than in (("The NLL is lower by", "one"), ("ATMC's NLL is lower by", "rival")):
        mean, error = lower(costs, than)
        assert f"{words} {mean:.4f} ± {error:.4f}".replace("0.", ".") in TEXT
    mean, error = lower(right, "one")
    assert f"the accuracy by {100 * mean:.2f} ± {100 * error:.2f} points".replace("0.", ".") in TEXT
    probs = several["probs"].astype(np.float64)
    gains = gain_of_pairs(probs, labels, chains, orders=3999)
    said = f"two samples gain {gains.one:.4f} if they are of one chain and {gains.two:.4f} if they are of two"
    assert f"{said} (p = {gains.p_value:.4f}".replace("0.", ".") in TEXT
    pairs = list(itertools.combinations(range(16), 2))
    differ = [np.mean(probs[i].argmax(-1) != probs[j].argmax(-1)) for i, j in pairs]
    same = np.array([chains[i] == chains[j] for i, j in pairs])
    within, between = (100 * np.mean(np.array(differ)[some]) for some in (same, ~same))
    assert f"and disagree on {within:.1f} % and {between:.1f} %" in TEXT
    alone, together = -np.log(probs[:, rows, labels]).mean(), costs["several"].mean()
    limit = (16 * together - alone) / 15
    assert f"nearly {limit:.3f} + {alone - limit:.3f}/n. Four".replace("0.", ".") in TEXT


def test_the_first_of_four_chains_is_the_one_chain_again():
    several, one = (np.load(RESULTS / f"{name}-0.npz") for name in ("atmc-cold", "atmc-cold-one"))
    assert one["epochs"][:2] == pytest.approx(several["epochs"][[8, 12]])
    assert np.array_equal(one["probs"][:2], several["probs"][[8, 12]])


def test_what_is_left_without_the_sampler(explored):
    names = (FOUR, "T0.01 after 0, speed 0.0025, hold 0.6, explore 0.8, 100 epochs", *CONTROLS)
    controls = [explored[name] for name in CONTROLS]
    usual = [
        np.mean([s["single accuracy"] for s in explored[FOUR]["samples"] if s["epoch"] == e]) for e in (50.0, 100.0)
    ]
    for (*_, first, second, both, many, loss), name in zip(table_after("### Take the sampler"), names, strict=True):
        run = explored[name]
        epochs = [[s for s in run["samples"] if s["epoch"] == epoch] for epoch in (50.0, 100.0)]
        means = [{key: np.mean([s[key] for s in some]) for key in ("single accuracy", "single nll")} for some in epochs]
        assert all(scored(cell, mean, "single") for cell, mean in zip((first, second), means, strict=True)), name
        alone = np.mean([mean["single nll"] for mean in means])
        together = alone - run["pairs"]["one"] if name == FOUR else run["samples"][-1]["predictive nll"]
        assert agree(both.split(" / ")[-1], together), name
        assert agree(many, 2 * together - alone), name
        assert agree(loss, run["training_loss"]), name
        if name != FOUR:
            assert scored(both, run["samples"][-1], "predictive"), name
    gains = [np.mean([s["single nll"] for s in r["samples"]]) - r["samples"][1]["predictive nll"] for r in controls]
    assert (
        f"({gains[0]:.3f} and {gains[1]:.3f}; {explored[FOUR]['pairs']['one']:.4f} with it)".replace("0.", ".") in TEXT
    )
    more = [100 * (s["single accuracy"] - mean) for r in controls for s, mean in zip(r["samples"], usual, strict=True)]
    assert f"by {min(more):.1f} to {max(more):.1f} points, and two of them".replace("0.", ".") in TEXT
    cooler, two, three = (
        explored[f"T{of} after 0, speed {speed}, hold 0.6, explore 0.8, 100 epochs"]["training_loss"]
        for of, speed in ((0.01, 0.0025), (0.02, 0.002), (0.03, 0.002))
    )
    coldest, settled = (
        explored[f"T{of} after 0, speed 0.0025, hold 0.6, explore {rest}, 100 epochs"]["training_loss"]
        for of, rest in ((0.005, "0.8"), (0.02, "0.943, SGD settled first"))
    )
    assert (
        f"T = .01 came to {cooler:.3f}, as low as SGD alone, and T = .005 to {coldest:.3f}".replace("0.", ".") in TEXT
    )
    assert f"(below) T = .02 came to {settled:.3f}".replace("0.", ".") in TEXT
    assert f"T = .02 and .03 came to {two:.3f} and {three:.3f}".replace("0.", ".") in TEXT
    before = {round(row[0]): row[1] for row in explored[FOUR]["trace"]["rows"]}[89]
    assert f"a training loss of {before:.2f} (epoch 89".replace("0.", ".") in TEXT


def test_heat_goes_with_the_temperature(explored):
    def loss(of: float, rest: str) -> float:
        return explored[f"T{of:g} after 0, {rest}, 100 epochs"]["training_loss"]

    fast, slow = "speed 0.003, hold 0, explore 0.6", "speed 0.002, hold 0.6, explore 0.8"
    usual = "speed 0.0025, hold 0.6, explore 0.8"
    runs = [
        (0.01, loss(0.01, fast), 0.02, loss(0.02, "thermostats that follow")),
        (0.02, loss(0.02, "thermostats that follow"), 0.05, loss(0.05, "thermostats that follow")),
        (0.005, loss(0.005, usual), 0.01, loss(0.01, usual)),
        (0.01, loss(0.01, usual), 0.02, loss(0.02, usual)),
        (0.02, loss(0.02, slow), 0.03, loss(0.03, slow)),
    ]
    *found, dirichlet = table_after("### How hot is T?")
    directions = []
    for (_, said, losses, per, d), (low, one, high, two) in zip(found, runs, strict=True):
        slope = (two - one) / (high - low)
        assert [float(value) for value in said.split(", ")] == [low, high]
        assert all(map(agree, losses.split(", "), (one, two)))
        assert float(per) == pytest.approx(slope, abs=0.051)
        assert float(d.replace(",", "")) == pytest.approx(2 * 45_000 * slope, abs=5_001)
        directions.append(float(d.replace(",", "")))
    run = explored["T1 after 0, noisy Dirichlet 0.01, speed 0.001, hold 0, explore 0.6, 100 epochs"]
    fit = sum(np.log(2 * np.pi * NoisyDirichlet(0.01).moments(right)[1]) for right in (True, *[False] * 9)) / 2
    assert dirichlet[2].startswith(f"{run['training_loss']:.1f} ({fit:.1f} is")
    assert float(dirichlet[3]) == pytest.approx(run["training_loss"] - fit, abs=0.06)
    assert float(dirichlet[4].replace(",", "")) == pytest.approx(90_000 * (run["training_loss"] - fit), abs=5_001)
    assert f"determine {min(directions):,.0f} to {max(directions):,.0f}" in TEXT


def test_two_tries_that_gave_nothing(explored):
    for pattern, name in (
        (
            r"twice as long: (\S+ / \S+) for two",
            "T0.02 after 0, speed 0.0025, hold 0.6, explore 0.8, cycles of 100, 200 epochs",
        ),
        (
            r"as the first otherwise: (\S+ / \S+) for its two",
            "T1 after 0, categorical, speed 0.001, hold 0, explore 0.6, 100 epochs",
        ),
    ):
        assert scored(re.search(pattern, TEXT)[1], explored[name]["samples"][-1], "predictive"), name
    assert agree(re.search(r"for its two samples, training loss (\.\d+)\.\)", TEXT)[1], explored[name]["training_loss"])


def test_noise_is_left_out_where_the_gradient_brings_enough(explored):
    row, rival = (
        next(run for key, run in explored.items() if name in key) for name in ("row atmc-cold)", "row sgnht-cold)")
    )
    share = np.mean([s["silent_share"] for s in row["samples"] if s["epoch"] == 250.0])
    assert f"for {100 * share:.0f} % of the parameters at the end of these chains" in TEXT
    assert all(s["silent_share"] == 0 for s in rival["samples"])


def test_positions_were_not_at_their_temperature(explored):
    samples = explored["T0.02, thermostats that follow, 150 epochs"]["samples"]
    one, two, three = (f"{s['configurational_temperature'] / 0.02:.2f}".removeprefix("0") for s in samples)
    assert f"was {one}, {two} and {three} of T at the three samples" in TEXT


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("It was the wrong choice", "T.02-s.003, 1000 epochs"),
        ("the row *one chain* in the table.", "(the row atmc-cold-one)"),
    ],
)
def test_the_course_of_long_runs_is_the_one_kept(explored, words, name):
    run = next(run for key, run in explored.items() if name in key and "cycles" in run)
    samples = {round(sample["epoch"]): sample for sample in run["samples"]}
    cycles = {row[0]: row[1:] for row in run["cycles"]["rows"]}
    found = table_after(words)
    assert found[-1][0] == "1,000"
    for epoch, single, average, highest, end, *rest in found:
        at = int(epoch.replace(",", ""))
        assert all(map(agree, (highest, end), cycles[at])), epoch
        if at not in samples:
            assert (single, average) == ("–", "–")
            continue
        count = sorted(samples).index(at) + 1
        assert scored(single, samples[at], "single"), epoch
        if count > 1:
            assert average.endswith(f" ({count})")
            assert scored(average.removesuffix(f" ({count})"), samples[at], "predictive"), epoch
        assert agree(rest[-1], samples[at]["thermostat_q99"], -1 if len(rest) == 1 else 0), epoch
        if len(rest) == 2:
            assert agree(rest[0], samples[at]["kinetic_temperature"] / 0.02, 2), epoch


def test_what_is_said_of_the_row_follows_from_its_readings(explored):
    run = next(run for name, run in explored.items() if "(the row atmc-cold-one)" in name)
    nll = np.array([sample["single nll"] for sample in run["samples"]])
    cycle = np.arange(len(nll))
    slope, level = np.polyfit(cycle, nll, 1)
    error = np.sqrt(((nll - slope * cycle - level) ** 2).sum() / (len(nll) - 2) / ((cycle - cycle.mean()) ** 2).sum())
    assert f"({slope:+.4f} ± {error:.4f} a cycle)".replace("0.", ".") in DOCS
    virial = np.array([sample["configurational_temperature"] for sample in run["samples"]]) / 0.02
    assert f"{virial.mean():.2f} ± {virial.std(ddof=1) / len(virial) ** 0.5:.2f} of T".replace("0.", ".") in TEXT
    four = next(run for name, run in explored.items() if "(the row atmc-cold)" in name)["samples"]
    virial = np.array([sample["configurational_temperature"] for sample in four]) / 0.02
    said = f"{virial.mean():.2f} ± {virial.std(ddof=1) / len(virial) ** 0.5:.2f} over the {len(four)} of the four"
    assert said.replace("0.", ".") in TEXT
    kinetic = [row[2] / 0.02 for row in run["trace"]["rows"] if row[0] > 150 and row[0] % 50 > 41]
    assert f"up to {max(kinetic):.2f} T" in DOCS


def test_the_nll_of_many_samples_is_foretold_by_few():
    """What `explore.py` prints, on the samples of the row: from pairs, threes and all of them nearly the same limit."""
    stored = np.load(RESULTS / "atmc-cold-one-0.npz")
    probs = stored["probs"].astype(np.float64)[:, np.arange(len(stored["labels"])), stored["labels"]]
    alone = [float(-np.log(each).mean()) for each in probs]
    limits = {}
    for n in (2, 3, len(probs)):
        together = [-np.log(probs[list(some)].mean(0)).mean() for some in itertools.combinations(range(len(probs)), n)]
        samples = [{"single": {"nll": np.mean(alone)}, "predictive": {"nll": np.mean(together)}}] * n
        limits[n] = exploring.limit({"samples": samples})
        assert limits[n] < np.mean(together)
    assert max(limits.values()) - min(limits.values()) < 0.003
    rest = float(np.mean(alone)) - limits[len(probs)]
    assert f"is nearly {limits[len(probs)]:.3f} + {rest:.3f}/n".replace("0.", ".") in DOCS
    said = re.search(r"make a (\.\d+), (\.\d+) and (\.\d+)", exploring.limit.__doc__)
    assert all(map(agree, said.groups(), limits.values()))
    assert exploring.limit({"samples": samples[:1]}) is None


@pytest.mark.parametrize("row", ["atmc-cold", "sgnht-cold"])
def test_how_much_float16_makes_of_the_last_samples(explored, row):
    run = next(run for name, run in explored.items() if f"(the row {row})" in name)
    exact = np.mean([sample["single nll"] for sample in run["samples"] if sample["epoch"] == 250.0])
    table = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    kept = next(found["nll"] for found in table if (found["run"], found["kind"]) == (row, "last sample"))
    assert f"too low by {exact - kept:.4f}.)".replace("0.", ".") in TEXT
