"""The table says the same in all its forms."""

import json
from dataclasses import replace

import factory
import numpy as np
from factory import report, run

from atmc.posterior.intervals import spreads
from atmc.posterior.metric_entries import columns
from atmc.report import table

SCORES = {"accuracy": 0.9, "nll": 0.3, "brier": 0.1, "ece": 0.01}


def some_rows():
    return table.rows(report().runs)


def test_rows_name_sample_predictive_and_optimiser():
    rows = some_rows()
    assert [row.row for row in rows] == ["ATMC (single sample)", "ATMC (posterior predictive)", "SGD"]
    assert [row.samples for row in rows] == [1, 12, 1]
    assert [row.temperature for row in rows] == [1.0, 1.0, None]


def test_the_temperature_before_is_said_too():
    """Beside every number stands the temperature, and if a cycle began at another, that too."""
    rows = table.rows(tuple(run(temperature=0.02, before=before) for before in (None, 0.0, 0.2)))
    assert [table.cells(row)[1] for row in rows[::2]] == ["0.02", "0.02 after 0", "0.02 from 0.2"]
    assert json.loads(table.as_json(rows))[2]["temperature_before"] == 0.0


def test_epochs_of_several_chains_are_counted():
    """What the average of four chains cost is four times the epochs of one; one sample comes from one of them."""
    rows = table.rows((replace(run(), chains=4, epochs=250.0), replace(run(), chains=1, epochs=1000.0)))
    assert [table.cells(row)[8] for row in rows] == ["250", "4 × 250", "1000", "1000"]
    assert r"4 $\times$ 250" in table.latex(rows)
    assert [entry["chains"] for entry in json.loads(table.as_json(rows))] == [1, 4, 1, 1]


def test_an_ensemble_of_trained_networks_is_not_called_a_posterior():
    rows = table.rows((run(method="SGD", samples=4, temperature=None),))
    assert [row.row for row in rows] == ["SGD (one network)", "SGD (ensemble)"]


def test_temperature_scaling_is_a_row_of_its_own_with_its_fit_stated():
    scaled = replace(run(), scaled=SCORES, scaled_by=1.25)
    assert table.rows((scaled,))[-1].row == "ATMC (temperature-scaled by 1.25 on validation)"


def test_markdown_latex_and_json_agree():
    rows = some_rows()
    markdown, latex, parsed = table.markdown(rows), table.latex(rows), json.loads(table.as_json(rows))
    for row, entry in zip(rows, parsed, strict=True):
        assert entry["nll"] == row.scores["nll"]
        assert f"{row.scores['nll']:.3f}" in markdown
        assert f"{row.scores['nll']:.3f}" in latex
    assert len({line.count("|") for line in markdown.splitlines()}) == 1
    assert all(line.count("&") == 9 for line in latex.splitlines() if "&" in line)
    assert r"Accuracy [\%]" in latex


def lone(name, probs, labels, **changes):
    """A run of one network with these probabilities."""
    return run(name, samples=1, single=factory.scores(probs, labels), single_spreads=spreads(probs, labels), **changes)


def two(lead, noise, count=400):
    """Two runs on the same examples; the first gives the right class more probability, by about `lead`."""
    rng = np.random.default_rng(0)
    right, hard = np.zeros(count, dtype=np.int64), rng.uniform(0.3, 0.8, count)
    ahead = np.clip(hard + lead + noise * rng.normal(size=count), 0.01, 0.99)
    return [lone(name, np.stack([p, 1 - p], 1), right) for name, p in (("a", ahead), ("b", hard))]


def test_what_is_clearly_best_is_bold_and_nothing_within_the_error():
    clear, level = table.rows(tuple(two(0.1, 0.0))), table.rows(tuple(two(0.002, 0.1)))
    nll = f"**{clear[0].scores['nll']:.3f}**"
    assert nll in table.markdown(clear)
    assert rf"\textbf{{{clear[0].scores['nll']:.3f}}}" in table.latex(clear)
    assert level[0].scores["nll"] != level[1].scores["nll"], "one is lower, but within the error"
    for row in level:
        assert f"**{row.scores['nll']:.3f}**" not in table.markdown(level)
        assert f"textbf{{{row.scores['nll']:.3f}}}" not in table.latex(level)


def test_hard_examples_are_hard_for_both_and_cancel():
    """A lead far inside each interval is clear where it is the same on every example."""
    rows = table.rows(tuple(two(0.02, 0.0)))
    first, second = (row.spreads["nll"] for row in rows)
    assert first.high > second.low, "the intervals overlap"
    assert table.winners(rows)[0]
    assert not table.winners(rows)[1]


def test_rows_on_other_examples_are_not_compared():
    one, other = two(0.1, 0.0)
    assert table.winners(table.rows((one, replace(other, data_digest="another")))) == [set(), set()]
    assert table.winners(table.rows((one,))) == [set()], "nothing to be better than"


def test_every_score_has_its_interval():
    rows = some_rows()
    for entry, row in zip(json.loads(table.as_json(rows)), rows, strict=True):
        for name in ("accuracy", "nll", "brier", "ece"):
            low, high = entry["intervals"][name]
            assert low <= row.scores[name] <= high
            assert table.interval(next(m for m in columns() if m.name == name), row.spreads).count("–") == 1


def test_answers_that_look_at_nothing_are_listed_once_for_each_test_set():
    runs = report().runs
    assert [label.partition(":")[0] for label, _ in table.constant_rows(runs)] == ["Guessing", "Class frequencies"]
    assert len(table.constant_rows((runs[0], replace(runs[1], data="other")))) == 4


def test_no_number_is_null_in_json_and_a_dash_elsewhere():
    broken = table.rows((run(samples=1, single=SCORES | {"accuracy": float("nan"), "nll": float("inf")}),))
    assert json.loads(table.as_json(broken))[0]["nll"] is None
    assert "–" in table.markdown(broken)
    assert "nan" not in table.latex(broken)


def test_names_cannot_break_out_of_a_cell():
    rows = table.rows((run(name="a|b\n*c*", method=r"\input{x} & $y$ 5% _"),))
    markdown, latex = table.markdown(rows), table.latex(rows)
    assert len(markdown.splitlines()) == 4
    assert r"a\|b \*c\*" in markdown
    assert r"\input" not in latex
    assert r"\& \$y\$ 5\% \_" in latex


def test_two_runs_of_one_setup_are_told_apart_in_every_form():
    rows = table.rows((run("a"), run("b"), run("c", "SGD", samples=1, temperature=None)))
    assert table.setups(rows)[::2] == ["a: ATMC (single sample)", "b: ATMC (single sample)", "SGD"]
    assert "b: ATMC (posterior predictive) &" in table.latex(rows)
    assert table.setups(some_rows())[0] == "ATMC (single sample)"
