"""What docs/cifar10.md tells of cycles in which SGD settles first, and of T = 1, is what is kept."""

from __future__ import annotations

import itertools
import json

import numpy as np

from atmc.diagnose.convergence import gain_of_pairs

from .rescored import RESULTS, ahead, costs, limit, probabilities
from .told import TEXT, agree, bare, scored, table_after

FIRST = "hold 0.6, explore 0.94, SGD settled first, 100 epochs"
RUNS = {
    "0": "T0, speed 0.0025, hold 0.6, SGD settled first, 100 epochs",
    ".005": f"T0.005 after 0, speed 0.0025, {FIRST}",
    ".02": "T0.02 after 0, speed 0.0025, hold 0.6, explore 0.943, SGD settled first, 100 epochs",
    ".05": f"T0.05 after 0, speed 0.0025, {FIRST}",
    ".1": f"T0.1 after 0, speed 0.0025, {FIRST}",
}
CHAINS, PER_PLACE = 4, 3


def places() -> np.ndarray:
    """The row's samples as [cycle, sample of the cycle, chain, image, class]: samples lie in the order of epochs."""
    probs = probabilities("atmc-settled")
    epochs = np.load(RESULTS / "atmc-settled-0.npz")["epochs"].reshape(-1, PER_PLACE, CHAINS)
    assert (epochs == epochs[..., :1]).all()
    assert np.allclose(np.diff(epochs[..., 0], axis=1), 1.0, atol=0.01)
    return probs.reshape(-1, PER_PLACE, CHAINS, *probs.shape[1:])


def kept(explored, row):
    """The readings of a row's samples."""
    return next(run for name, run in explored.items() if f"(the row {row})" in name)


def test_scores_where_sgd_has_settled_are_those_kept(explored):
    found = table_after("### SGD settles first")
    assert [row[0] for row in found] == list(RUNS)
    for of, alone, one, two, six, many, loss in found:
        run = explored[RUNS[of]]
        samples = run["samples"]
        assert len(samples) == 2 * PER_PLACE
        means = {key: np.mean([s[key] for s in samples]) for key in ("single accuracy", "single nll")}
        assert scored(alone, means, "single"), of
        assert scored(one, samples[PER_PLACE - 1], "predictive"), of
        assert scored(six, samples[-1], "predictive"), of
        assert agree(loss, run["training_loss"]), of
        if "places" not in run:
            assert (two, many) == ("–", "–")
            continue
        (_, first), (accuracy, second) = run["places"]["rows"]
        assert first == samples[PER_PLACE - 1]["predictive nll"], of
        assert scored(two, {"x accuracy": accuracy, "x nll": second}, "x"), of
        assert agree(many, 2 * samples[-1]["predictive nll"] - (first + second) / 2), of
    zero, best = (explored[RUNS[of]]["places"]["rows"] for of in ("0", ".05"))
    words = "two places at T = .05 had {:.3f} and {:.3f}, where SGD had {:.3f} and {:.3f}"
    assert bare(words.format(*(nll for rows in (best, zero) for _, nll in rows))) in TEXT


def test_what_the_sampler_adds_in_a_place(explored):
    zero, *warm = (explored[RUNS[of]] for of in ("0", ".05", ".1"))
    for run in warm:
        alone = [np.mean([s["single nll"] for s in some["samples"]]) for some in (zero, run)]
        assert round(alone[0] - alone[1], 3) in (0.024, 0.025)
        together = [a[1] - b[1] for a, b in zip(zero["places"]["rows"], run["places"]["rows"], strict=True)]
        assert all(0.02 < less < 0.03 for less in together)
    assert "alone by .025 and three together by .02 to .03" in TEXT
    cold = explored[RUNS[".005"]]["places"]["rows"][1][1] - zero["places"]["rows"][1][1]
    assert bare(f"T = .005 is behind T = 0 by {cold:.3f} in its second place") in TEXT
    assert bare("T = 0, {:.3f} at .02, {:.3f} at .05, {:.3f} at .1.".format(*averages(explored)[1:])) in TEXT
    assert bare("places: {:.3f} at T = 0,".format(*averages(explored))) in TEXT


def averages(explored) -> list[float]:
    """The NLL of all six samples, by temperature."""
    return [explored[RUNS[of]]["samples"][-1]["predictive nll"] for of in ("0", ".02", ".05", ".1")]


def test_sgd_goes_on_learning_by_heart_where_steps_are_small(explored):
    zero, warm = (explored[RUNS[of]] for of in ("0", ".05"))
    loss = {round(row[0]): row[1] for row in zero["trace"]["rows"]}
    assert bare(f"from {loss[47]:.3f} at epoch 47 to {loss[49]:.3f} at 49") in TEXT
    rising, level = ([s["single nll"] for s in run["samples"][:PER_PLACE]] for run in (zero, warm))
    assert bare("points rises, {:.3f}, {:.3f}, {:.3f}; at T = .05".format(*rising)) in TEXT
    assert bare("does not ({:.3f}, {:.3f}, {:.3f})".format(*level)) in TEXT


def test_two_of_the_runs_are_the_same_up_to_where_they_sample(explored):
    one, two = (explored[RUNS[of]] for of in (".02", ".05"))
    assert one["trace"]["rows"][:23] == two["trace"]["rows"][:23]
    assert 44 < one["trace"]["rows"][22][0] < 47.2
    places = [run["samples"][PER_PLACE - 1]["predictive nll"] for run in (one, two)]
    assert bare("there it is {:.3f} and {:.3f}.".format(*places)) in TEXT


def test_what_the_row_is_said_to_be(explored):
    row = json.loads((RESULTS / "atmc-settled.row.json").read_text(encoding="utf-8"))
    cycles = places()
    labels = np.load(RESULTS / "atmc-settled-0.npz")["labels"]
    probs = probabilities("atmc-settled")
    said = f"Its {len(probs)} samples have {100 * row['accuracy']:.2f} / {row['nll']:.3f}, ECE {row['ece']:.3f}"
    nll, points = ahead("atmc-settled", "atmc-cold")
    assert bare(said) + f": {nll} less NLL than the row of the same" in TEXT
    assert f"comes on earlier, and {points} points more; against" in TEXT
    assert "against *cycles of 25* {} and {} points".format(*ahead("atmc-settled", "atmc-short")) in TEXT
    of_place = cycles.mean(1)  # [cycle, chain, …]
    parts = [cycles[:, k].reshape(-1, *probs.shape[1:]) for k in range(PER_PLACE)]
    means = [part.mean(0) for part in parts]
    scores = [f"{100 * np.mean(mean.argmax(-1) == labels):.2f} / {costs(mean).mean():.3f}" for mean in means]
    assert bare("the 16 first ones have {}, the second {}, the last {}.".format(*scores)) in TEXT
    samples = kept(explored, "atmc-settled")["samples"]
    alone = [np.mean([s["single nll"] for s in samples if round(s["epoch"]) % 50 == at]) for at in (48, 49, 0)]
    assert bare("Alone they have {:.3f}, {:.3f} and {:.3f} (in float32):".format(*alone)) in TEXT
    assert (
        f"± {100 * (row['accuracy'] * (1 - row['accuracy']) / len(labels)) ** 0.5:.2f} points".replace(" 0.", " .")
        in TEXT
    )
    flat = of_place.reshape(-1, *probs.shape[1:])
    gains = gain_of_pairs(flat, labels, list(range(CHAINS)) * len(of_place), orders=1)
    assert bare(f"Two places of two chains gain {gains.two:.4f}, two of one chain {gains.one:.4f};") in TEXT
    a, b = limit(flat)
    assert bare(f"NLL of n places is nearly {a:.3f} + {b:.3f}/n, with a limit lower than any before") in TEXT
    assert all(a < limit(probabilities(other))[0] for other in ("atmc-cold", "atmc-short", "atmc-cold-one"))
    spread = costs(flat).mean(-1).std(ddof=1)
    assert bare(f"places of the row below differ by {spread:.3f}, one standard deviation") in TEXT


def test_its_temperatures_and_thermostats(explored):
    run, before = kept(explored, "atmc-settled")["samples"], kept(explored, "atmc-cold")["samples"]
    positions = np.array([s["configurational_temperature"] for s in run]) / 0.02
    momenta = np.mean([s["kinetic_temperature"] for s in run]) / 0.02
    error = positions.std(ddof=1) / len(run) ** 0.5
    cooler = np.mean([s["configurational_temperature"] for s in before]) / 0.02
    words = f"momenta {momenta:.2f} T, positions {positions.mean():.2f} ± {error:.2f} ({cooler:.2f} in the row in which"
    assert words.replace("± 0.", "± .").replace("(0.", "(.") in TEXT
    tops = [np.mean([s["thermostat_q99"] for s in run if round(s["epoch"]) == epoch]) for epoch in (100, 150, 200, 250)]
    assert tops == sorted(tops)
    other = np.mean([s["thermostat_q99"] for s in before])
    assert f"99 % quantile of ξ at h₀ is {tops[-1]:.0f} at the end of the row and still rises" in TEXT
    assert f"the row before has {other:.0f};" in TEXT


def test_what_the_row_at_one_is_said_to_be(explored):
    row = json.loads((RESULTS / "atmc.row.json").read_text(encoding="utf-8"))
    stored = np.load(RESULTS / "atmc-0.npz")
    probs, trace = probabilities("atmc"), stored["trace"]
    table = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    last = next(found for found in table if (found["run"], found["kind"]) == ("atmc", "last sample"))
    words = f"{100 * row['accuracy']:.2f} / {row['nll']:.3f} with {len(probs)} samples, ECE {row['ece']:.3f}"
    assert bare(f"{words}, and {100 * last['accuracy']:.1f} / {last['nll']:.3f} for a last sample.") in TEXT
    assert row["accuracy"] < 0.939
    a, b = limit(probs)
    assert bare(f"NLL of n samples is nearly {a:.3f} + {b:.3f}/n, and the samples") in TEXT
    samples = kept(explored, "atmc")["samples"]
    by_cycle = [
        np.mean([s["single nll"] for s in some]) for _, some in itertools.groupby(samples, lambda s: round(s["epoch"]))
    ]
    assert bare("have {:.3f}, {:.3f}, {:.3f} and {:.3f}. Both".format(*by_cycle)) in TEXT
    positions = np.array([s["configurational_temperature"] for s in samples])
    momenta, error = np.mean([s["kinetic_temperature"] for s in samples]), positions.std(ddof=1) / len(samples) ** 0.5
    assert f"(momenta {momenta:.2f}, positions {positions.mean():.2f} ± {error:.2f})".replace("± 0.", "± .") in TEXT
    ends = [trace[trace[:, 0] == chain][-1, 2] for chain in range(CHAINS)]
    assert {f"{loss:.1f}" for loss in ends} == {"17.3"}
    assert "come to the same training loss, 17.3." in TEXT
    for chain in range(CHAINS):  # it jumps as T comes on, at 0.6 of a cycle, and falls to the cycle's end
        loss = trace[trace[:, 0] == chain][200:250, 2]
        assert loss[33] > max(loss[28], loss[49]) + 1
        assert (np.diff(loss[34:50:3]) < 0).all()


def test_the_ensemble_is_behind_the_row():
    nll, points = ahead("atmc-settled", "ensemble-sgd")
    assert f"ATMC's row *SGD settled first* is ahead by {nll} in NLL and by {points} points" in TEXT
