"""What docs/cifar10.md tells of cycles of 25 epochs and of the ensemble of SGD networks is what is kept."""

from __future__ import annotations

import json

import numpy as np

from atmc.diagnose.convergence import gain_of_pairs

from .rescored import RESULTS, ahead, calibration_error, costs, differ, exploring, limit, probabilities
from .told import TEXT, agree, bare, scored, table_after

WORDS = "### Shorter cycles, and colder"


def test_scores_of_short_cycles_are_those_kept(explored):
    found = table_after(WORDS)
    assert len(found) == 8
    for of, cycle, explore, count, last, average, many, loss in found:
        name = f"T{float(of):g} after 0, speed 0.0025, hold 0.6, explore {float(explore):g}"
        name += f", cycles of {cycle}" if cycle != "50" else ", SGD settled first" if explore == ".943" else ""
        run = explored[f"{name}, 100 epochs"]
        samples = run["samples"]
        assert run["settings"]["schedule.cycle_epochs"] == int(cycle)
        assert len(samples) == int(count), name
        assert scored(last, samples[-1], "single"), name
        assert scored(average, samples[-1], "predictive"), name
        parts = [{what: {"nll": s[f"{what} nll"]} for what in ("single", "predictive")} for s in samples]
        assert agree(many, exploring.limit({"samples": parts})), name
        assert agree(loss, run["training_loss"]), name
    lowest = min(found, key=lambda row: float(row[5].split(" / ")[1]))
    assert lowest[2] == ".98"


def test_what_the_row_of_short_cycles_is_said_to_be():
    row = json.loads((RESULTS / "atmc-short.row.json").read_text(encoding="utf-8"))
    probs = probabilities("atmc-short")
    labels, chains = np.load(RESULTS / "atmc-short-0.npz")["labels"], [0, 1, 2, 3] * 8
    assert f"Its {len(probs)} samples have {100 * row['accuracy']:.2f} / .163" in TEXT
    assert agree(".163", row["nll"])
    nll, points = ahead("atmc-short", "atmc-cold")
    assert f"{nll} less than the 16 of cycles of 50 at T = .02 and {points} points more" in TEXT
    for epoch, words in (
        (100, "100 epochs of each chain the average has {} instead of {}"),
        (150, "150 {} instead of {}"),
    ):
        early = [
            costs(stored["probs"][stored["epochs"] < epoch + 1].astype(np.float64).mean(0)).mean()
            for stored in (np.load(RESULTS / f"{name}-0.npz") for name in ("atmc-short", "atmc-cold"))
        ]
        assert words.format(*(bare(f"{nll:.3f}") for nll in early)) in TEXT
    alone, longer = (costs(some).mean() for some in (probs, probabilities("atmc-cold")))
    assert bare(f"({alone:.3f} on average instead of {longer:.3f})") in TEXT
    gains = gain_of_pairs(probs, labels, chains, orders=1)
    other = gain_of_pairs(probabilities("atmc-cold"), labels, chains[:16], orders=1)
    assert bare(f"two chains gain {gains.two:.4f}, where those of longer cycles gain {other.two:.4f}") in TEXT
    (a, b), (before, _) = limit(probs), limit(probabilities("atmc-cold"))
    assert bare(f"nearly {a:.3f} + {b:.3f}/n, with a limit no lower than before ({before:.3f})") in TEXT
    table = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    lowest = min(table, key=lambda found: found["ece"])
    assert (lowest["run"], lowest["kind"]) == ("atmc-short", "posterior predictive")
    control = next(found for found in table if (found["run"], found["kind"]) == ("atmc-zero", "posterior predictive"))
    said = f"Its ECE, {row['ece']:.4f}, is the lowest of the table (the control's is {control['ece']:.4f})"
    assert bare(said) in TEXT
    rng, mean = np.random.default_rng(0), probs.mean(0)
    mean /= mean.sum(1, keepdims=True)
    drawn = [(rng.random((len(mean), 1)) > mean.cumsum(1)).sum(1).clip(0, 9) for _ in range(200)]
    calibrated = [calibration_error(mean, labels) for labels in drawn]
    said = f"with its confidences would have {np.mean(calibrated):.4f} ± {np.std(calibrated):.4f} by chance"
    assert bare(said) in TEXT


def test_how_many_parameters_need_no_noise(explored):
    samples = next(run for name, run in explored.items() if "(the row atmc-short)" in name)["samples"]
    share = np.mean([s["silent_share"] for s in samples if s["epoch"] == 250.0])
    assert f"Of the parameters {100 * share:.0f} % need no noise" in TEXT


def test_what_the_ensemble_of_sgd_is_said_to_be():
    row = json.loads((RESULTS / "ensemble-sgd.row.json").read_text(encoding="utf-8"))
    probs = probabilities("ensemble-sgd")
    labels = np.load(RESULTS / "ensemble-sgd-0.npz")["labels"]
    accuracy = 100 * np.mean(probs.argmax(-1) == labels)
    said = (
        f"have {accuracy:.1f} / {costs(probs).mean():.3f} on average and {100 * row['accuracy']:.2f} / {row['nll']:.3f}"
    )
    assert bare(f"{said} together, ECE {row['ece']:.3f}") in TEXT
    a, b = limit(probs)
    assert bare(f"NLL of n is nearly {a:.3f} + {b:.3f}/n") in TEXT
    apart = differ(probs, list(range(len(probs))))[1]
    assert f"(on {apart:.1f} % of the images, as those of two chains)" in TEXT
    assert abs(apart - differ(probabilities("atmc-cold"), [0, 1, 2, 3] * 4)[1]) < 0.1
