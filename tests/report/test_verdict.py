"""The verdict says what the numbers allow and no more."""

import re
from dataclasses import replace

import numpy as np
from factory import bins, report, run

from atmc.report.report_data import Finding, called
from atmc.report.verdict import verdict


def with_nll(name, each, **changes):
    made = run(name, **changes)
    each = np.asarray(each)
    return replace(made, predictive=made.predictive | {"nll": float(each.mean())}, nll_each=each)


def test_a_clear_lead_is_a_number_with_its_error():
    rng = np.random.default_rng(0)
    base = rng.exponential(0.3, 500)
    ahead, behind = with_nll("one", base), with_nll("two", base + 0.1 + 0.05 * rng.normal(size=500))
    first, _ = verdict(report(runs=(behind, ahead)))
    assert first.startswith("ATMC (one) reaches")
    assert re.search(r"Its NLL is 0\.\d+ ± 0\.002 lower than that of ATMC \(two\)\.", first)


def test_a_lead_within_the_noise_is_no_lead():
    rng = np.random.default_rng(1)
    base = rng.exponential(0.3, 500)
    ahead, behind = with_nll("one", base), with_nll("two", base + 0.001 + 0.5 * rng.normal(size=500))
    first, _ = verdict(report(runs=(ahead, behind)))
    assert "The difference to ATMC (two)" in first
    assert "is not significant." in first
    assert "lower than" not in first


def test_of_runs_that_are_level_the_first_is_spoken_of():
    """And never one that another is clearly ahead of."""
    rng = np.random.default_rng(2)
    base = rng.exponential(0.3, 500)
    level, lowest = with_nll("one", base + 0.001 + 0.5 * rng.normal(size=500)), with_nll("two", base)
    level = replace(level, predictive=level.predictive | {"nll": lowest.predictive["nll"] + 0.001})
    assert verdict(report(runs=(level, lowest)))[0].startswith("ATMC (one) reaches")
    assert verdict(report(runs=(lowest, level)))[0].startswith("ATMC (two) reaches")
    behind = with_nll("three", base + 0.1)
    assert verdict(report(runs=(behind, lowest)))[0].startswith("ATMC (two) reaches")
    nowhere = with_nll("four", np.full(500, np.inf))
    first, _ = verdict(report(runs=(nowhere, lowest)))
    assert first.startswith("ATMC (two) reaches")
    assert "ATMC (four) has no finite NLL." in first


def test_examples_are_called_what_a_person_calls_them():
    assert called("digits", "test") == "digits test images"
    assert called("folder:my/shapes/?size=32", "test") == "shapes test images"
    assert called("shards:/data/net/{split}-*.tar?size=64", "test") == "{split}-*.tar?size=64 test images"
    assert called("synthetic:1x8x8?classes=4", "test") == "synthetic:1x8x8?classes=4 test images"
    assert called("tensors", "validation") == "validation examples"


def test_runs_on_different_images_are_not_compared():
    ahead, behind = with_nll("one", np.full(500, 0.1)), with_nll("two", np.full(400, 0.2))
    first, _ = verdict(report(runs=(ahead, behind)))
    assert "on its own test images" in first
    other = with_nll("two", np.full(500, 0.2), data_digest="another")
    assert "on its own test images" in verdict(report(runs=(ahead, other)))[0]


def test_overconfidence_is_said():
    made = run()
    sure = replace(made.bins, confidence=np.full(8, 0.99))
    _, second = verdict(report(runs=(replace(made, bins=sure, predictive=made.predictive | {"accuracy": 0.8}),)))
    assert "It is overconfident by 19.0 points" in second


def test_good_calibration_is_said_to_be_as_good_as_the_test_set_can_tell():
    rng = np.random.default_rng(3)
    p = rng.uniform(0.5, 1, 500)
    hit = rng.random(500) < p
    probs = np.stack([p, 1 - p], 1)
    made = run(bins=bins(probs, np.where(hit, 0, 1)))
    made = replace(made, predictive=made.predictive | {"accuracy": float(hit.mean())})
    assert "within the error of 500 images" in verdict(report(runs=(made,)))[1]


def test_a_problem_found_by_the_doctor_comes_before_praise():
    sick = run(findings=(Finding("problem", "The chain is 40 times too hot.", "", ""),))
    assert verdict(report(runs=(sick,)))[1] == "Do not rely on it yet: the chain is 40 times too hot."


def test_a_warning_is_not_left_to_the_end_of_the_page():
    found = [Finding("warning", "This chain needs attention: 1 warning"), Finding("warning", "The loss is falling")]
    said = verdict(report(runs=(run(findings=tuple(found)), *report().runs[1:])))
    assert said[2:] == ("atmc doctor warns of digits-atmc: the loss is falling.",)
    found.append(Finding("problem", "It froze."))
    assert "it froze" in verdict(report(runs=(run(findings=tuple(found)),)))[1]
    assert len(verdict(report(runs=(run(findings=tuple(found)),)))) == 2, "said once"
    assert len(verdict(report())) == 2


def test_no_gap_is_said_where_it_would_read_as_none():
    made = run()
    bins_ = replace(made.bins, confidence=np.full(8, 0.9999))
    flawless = replace(made, bins=bins_, predictive=made.predictive | {"accuracy": 1.0})
    assert "Its confidence matches its accuracy" in verdict(report(runs=(flawless,)))[1]


def test_each_sentence_has_one_claim():
    for text in verdict(report()):
        assert text.endswith(".")
        assert ";" not in text
