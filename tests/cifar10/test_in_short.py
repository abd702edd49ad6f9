"""What docs/cifar10.md says in short is what was found."""

from __future__ import annotations

import json
import re

import numpy as np

from .rescored import RESULTS, tabling
from .told import CONTROLS, FOUR, TEXT, agree, bare, table_after

SHORT = "speed 0.0025, hold 0.6, explore {}, cycles of 25, 100 epochs"


def test_what_is_said_in_short_is_what_was_found(explored):
    names = (
        "T1 after 0, noisy Dirichlet 0.01, speed 0.001, hold 0, explore 0.6, 100 epochs",
        "T0.02-s0.003, 100 epochs",
        "T0.02, thermostats that follow, 150 epochs",
        "T0.02 after 0, thermostats that follow, 100 epochs",
        "T0.02 after 0, speed 0.0025, hold 0.6, explore 0.8, 100 epochs",
    )
    *first, chains, control, short, settled, brief = table_after("## In short")
    ends = {
        "1,000 epochs (test)": {"T.02-s.003, 1000 epochs", "(the row atmc-cold-one)"},
        "975 epochs (test)": {"(the row atmc-cold as it was)"},
    }
    at_one = json.loads((RESULTS / "atmc.row.json").read_text(encoding="utf-8"))["nll"]
    assert agree(re.search(r"the row: (\.\d+) after 4 × 250 epochs \(test\)", first[0][2])[1], at_one)
    for (what, nll, rest), name in zip(first, names, strict=True):
        assert agree(nll, explored[name]["samples"][1]["predictive nll"]), what
        for words, long in ends.items():
            if words in rest:
                last = [
                    run["samples"][-1]["predictive nll"] for key, run in explored.items() if key.endswith(tuple(long))
                ]
                assert any(agree(re.search(r"(\.\d+) after", rest)[1], nll) for nll in last), what
    four = explored[FOUR]
    alone = np.mean([s["single nll"] for s in four["samples"]])
    assert agree(chains[1], alone - four["pairs"]["two"])
    assert agree(re.match(r"(\.\d+) if of one", chains[2])[1], alone - four["pairs"]["one"])
    rows = [
        json.loads((RESULTS / f"{row}.row.json").read_text(encoding="utf-8"))["nll"]
        for row in ("atmc-cold", "atmc-short", "atmc-settled", "atmc-settled-one", "ensemble-sgd")
    ]
    for (*_, rest), nll in zip((chains, short, settled, brief), rows, strict=False):
        assert agree(re.search(r"the row: (\.\d+) after 4 × 250 epochs \(test\)", rest)[1], nll)
    assert "had the NLL, .{} and .{}, one seed each".format(*(round(1e4 * nll) for nll in rows[:2])) in TEXT
    table = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    row = next(r for r in table if (r["run"], r["kind"]) == ("atmc-settled", "posterior predictive"))
    scores = f"{tabling.shown(row, 'accuracy')} / {tabling.shown(row, 'nll')} by its chains, and"
    error = 100 * (row["accuracy"] * (1 - row["accuracy"]) / 10_000) ** 0.5
    assert bare(f"the row *SGD settled first* has: {scores} ± {error:.2f} points by the number of test images") in TEXT
    assert agree(re.search(r"far behind: 93\.2 / (\.\d+)\.", TEXT)[1], rows[4])
    of_settled = "T{} speed 0.0025, hold 0.6, {}SGD settled first, 100 epochs"
    usual, without, warmer = (
        explored[of_settled.format(*parts)]["samples"][-1]["predictive nll"]
        for parts in (("0.02 after 0,", "explore 0.943, "), ("0,", ""), ("0.05 after 0,", "explore 0.94, "))
    )
    assert agree(settled[1], usual)
    assert f"{without:.3f} without the sampler, {warmer:.3f} at T = .05;".replace("0.", ".") in settled[2]
    at_one = "T1 after 0, noisy Dirichlet 0.01, speed 0.001, hold 0.6, explore {}, SGD settled first, 100 epochs"
    three, five = (explored[at_one.format(of)] for of in (0.94, 0.9))
    assert agree(brief[1], three["samples"][-1]["predictive nll"])
    assert agree(re.match(r"(\.\d+) if for five epochs", brief[2])[1], five["samples"][-1]["predictive nll"])
    cold = "T0, noisy Dirichlet 0.01, speed 0.001, hold 0.6, SGD settled, 100 epochs"
    said = re.search(r"(\.\d+) and (\.\d+) \(two seeds\) without the sampler", brief[2])
    for nll, name in zip(said.groups(), (cold, f"{cold}, seed 1"), strict=True):
        assert agree(nll, explored[name]["samples"][-1]["predictive nll"])
    assert agree(short[1], explored[f"T0.005 after 0, {SHORT.format(0.8)}"]["samples"][3]["predictive nll"])
    without = explored[f"T0.02 after 0, {SHORT.format(0.98)}"]["samples"][3]["predictive nll"]
    assert agree(re.match(r"(\.\d+) without the sampler", short[2])[1], without)
    zero, other = (explored[name]["samples"][1]["predictive nll"] for name in CONTROLS)
    assert agree(control[1], zero)
    assert agree(re.search(r"and (\S+) with another seed", control[2])[1], other)
