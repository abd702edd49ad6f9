"""The five questions at the top of the page, answered as far as the numbers allow."""

from dataclasses import replace

import numpy as np
from factory import counted, report, run

from atmc.posterior.class_scores import Share
from atmc.report.answers import answers
from atmc.report.glossary import terms
from atmc.report.report_data import Finding


def said(data):
    return {answer.question: " ".join(answer.sentences) for answer in answers(data)}


def alone(**changes):
    return report(runs=(run(**changes),))


def test_health_comes_first_and_says_whether_scores_can_be_used():
    first = answers(alone())[0]
    assert (first.question, first.level) == ("Is the run healthy?", "ok")
    sick = (Finding("problem", "This chain has a problem"), Finding("problem", "It froze.", "", "Thaw it: atmc x"))
    first, *_, last = answers(alone(findings=sick))
    assert first.level == "problem"
    assert first.sentences == ("It froze. Do not rely on the scores below before this is solved.",)
    assert last.actions == ("Thaw it: atmc x",)
    warned = answers(alone(findings=(Finding("warning", "So so."), Finding("warning", "The loss falls."))))[0]
    assert warned.level == "warning"
    assert "The loss falls." in warned.sentences[0]
    assert "hold" in warned.sentences[0]
    two = answers(report(runs=(run(findings=sick), *report().runs[1:])))[0]
    assert two.sentences == ("digits-atmc: it froze. Do not rely on the scores below before this is solved.",)
    broken = answers(alone(damage=("a file",)))[0]
    assert broken.level == "problem"
    trained = report(runs=(run("sgd", "SGD", samples=1, temperature=None),))
    assert answers(trained)[0].sentences == ("No sampler ran, so there is no chain to check.",)
    unchecked = answers(alone(findings=()))[0]
    assert "could not be checked" in unchecked.sentences[0]


def test_a_score_stands_beside_its_interval_and_what_costs_nothing():
    made = run()
    good = said(report(runs=(made,)))["How good is it?"]
    spread = made.spreads["accuracy"]
    assert f"{100 * spread.low:.1f}\u202f% to {100 * spread.high:.1f}\u202f%" in good
    share = made.constant["frequencies"]["accuracy"].value
    assert f"most frequent class would be right on {100 * share:.1f}\u202f%" in good


def test_two_runs_are_told_apart_only_where_they_can_be():
    base = np.random.default_rng(0).exponential(0.3, 500)
    ahead = replace(run("one"), nll_each=base)
    ahead = replace(ahead, predictive=ahead.predictive | {"nll": float(base.mean())})
    behind = replace(ahead, name="two", nll_each=base + 0.1, predictive=ahead.predictive | {"nll": base.mean() + 0.1})
    assert (
        "gives the right class 11 % more probability (NLL lower by 0.100"
        in said(report(runs=(ahead, behind)))["How good is it?"]
    )
    noisy = base + 0.001 + 0.5 * np.random.default_rng(1).normal(size=500)
    level = replace(behind, nll_each=noisy, predictive=ahead.predictive | {"nll": float(noisy.mean())})
    assert "cannot be told apart" in said(report(runs=(ahead, level)))["How good is it?"]
    other = replace(behind, data_digest="another")
    assert "cannot be compared" in said(report(runs=(ahead, other)))["How good is it?"]


def test_the_weakest_class_is_named_where_chance_does_not_explain_it():
    labels = np.repeat(np.arange(10), 50)
    mistaken = labels.copy()
    mistaken[400:420] = 3  # 20 of the 50 eights
    wrong = said(alone(confusion=counted(labels, mistaken)))
    assert "20 of 500 images" in wrong["What does it get wrong?"]
    assert "The weakest class is “8” (60.0\u202f% found)" in wrong["What does it get wrong?"]
    assert "“8” taken for “3” (20 times)" in wrong["What does it get wrong?"]
    assert "More training examples of “8”" in wrong["What next?"]
    even = labels.copy()
    even[::50] = (even[::50] + 1) % 10  # one mistake in every class
    assert "No class is clearly weaker" in said(alone(confusion=counted(labels, even)))["What does it get wrong?"]
    assert said(alone(confusion=counted(labels, labels)))["What does it get wrong?"].startswith("Nothing among these")


def test_the_level_of_confidence_to_ask_for_is_the_first_that_is_reliable():
    made = run()
    right = Share.count(500, 502)
    levels = (replace(made.levels[0], right=Share.count(80, 100)), replace(made.levels[1], right=right))
    trust = said(report(runs=(replace(made, levels=levels),)))["When can I trust it?"]
    assert "at least 80 % confidence" in trust
    assert "99.6\u202f%" in trust
    assert "at least" not in said(report(runs=(replace(made, levels=levels[:1]),)))["When can I trust it?"]


def test_the_glossary_explains_every_score_of_the_table():
    words = {term.key: term.about for term in terms()}
    for name in ("accuracy", "nll", "brier", "ece", "epistemic", "interval", "temperature"):
        assert len(words[name]) > 20
