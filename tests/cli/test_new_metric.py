"""A metric is one entry: registered once, it is in every output that lists scores."""

import json
from pathlib import Path

import numpy as np
import pytest
from shell import atmc

from atmc.posterior.metric_entries import Metric, columns, register, remove


def spherical(probs, labels):
    """mean_i p_i(y_i)/‖p_i‖: a strictly proper score, 1 at best."""
    return float((probs[np.arange(len(labels)), labels] / np.sqrt((probs**2).sum(axis=1))).mean())


@pytest.fixture
def entered():
    metric = register(Metric("spherical", "Spherical score", spherical, better="higher", digits=".4f", short="Sph."))
    yield metric
    remove(metric)


def test_it_is_in_evaluate_tables_reports_and_json(tiny, runs, entered):
    result = json.loads(atmc("evaluate", tiny, "--json").out)
    value = result["predictive"]["spherical"]
    assert 0 < value < 1
    assert set(result["single"]) == set(result["mean_single"]) == set(result["predictive"])
    said = atmc("evaluate", tiny).out
    assert "Spherical score" in said
    assert f"{value:.4f}" in said
    printed = atmc("report", *runs, "--out", "r.html", "--figures", "figures")
    assert printed.code == 0, printed
    assert "Sph." in printed.out
    for place in (printed.out, Path("r.html").read_text(), Path("figures/table.md").read_text()):
        assert f"{value:.4f}" in place
    assert "Spherical score" in Path("r.html").read_text()
    assert "& Spherical score &" in Path("figures/table.tex").read_text()
    rows = json.loads(Path("figures/table.json").read_text())
    assert any(row["spherical"] == pytest.approx(value, rel=1e-12) for row in rows)
    best = max(row["spherical"] for row in rows)
    assert f"**{best:.4f}**" in Path("figures/table.md").read_text(), "the highest is the best of its column"
    again = json.loads(atmc("report", *runs, "--out", "r.html", "--json").out)
    assert "spherical" in json.dumps(again)


def test_an_entry_that_is_taken_out_is_gone(tiny):
    assert [metric.name for metric in columns()] == ["accuracy", "nll", "brier", "ece"]
    assert [metric.name for metric in columns("regression")] == ["rmse", "nll", "coverage90"]
    assert "spherical" not in atmc("evaluate", tiny, "--json").out
    with pytest.raises(ValueError, match="already"):
        register(columns()[0])


def test_the_best_is_told_as_it_is_printed():
    low, high = Metric("a", "A", len), Metric("b", "B", len, better="higher", unit="%", digits=".1f")
    assert low.best([0.3004, 0.3001, float("nan"), None]) == "0.300" == low.shown(0.3004)
    assert high.best([0.95, 0.9504]) == "95.0"
    assert low.best([float("inf")]) is None
    assert (high.heading, low.heading) == ("B [%]", "A")
    assert Metric("c", "C", len, better="neither").best([0.9]) is None
