"""The report of a regression: health first, intervals on every score, nothing claimed beyond the error."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from browser import BINARY, Browser

from atmc.posterior import regression
from atmc.posterior.mixture import Mixture, quantile
from atmc.report.regression_answers import by_prediction, by_uncertainty, largest, regression_answers
from atmc.report.regression_data import NumbersFacts
from atmc.report.regression_page import regression_verdict, render_regression
from atmc.report.report_data import Finding


def facts(name="price", shift=0.0, width=1.0, varying=False, count=240):
    """A model of 8 samples, whose predictions are off by `shift` where they are high, with intervals × `width`."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    centre = 10 * normal(count, 1)
    noise = 1 + 3 * (normal(count, 1) > 0).double() if varying else torch.ones(count, 1, dtype=torch.float64)
    y = centre + noise * normal(count, 1) + shift * (centre > centre.quantile(2 / 3))
    outputs = centre + 0.2 * normal(8, count, 1)
    of = Mixture(outputs, y, (width * noise).expand_as(outputs), torch.full((8,), 1 / 8, dtype=torch.float64))
    ends = [quantile(of, q)[:, 0].numpy() for q in (0.05, 0.95)]
    std = (of.aleatoric + of.epistemic).sqrt()
    flat = [part[:, 0].numpy() for part in (y, of.mean)]
    return NumbersFacts(
        name, "ATMC", "Sequential", 1.0, 8, 1, 100.0, 12.0, "CPU", count, regression.spreads(regression.one_of(of, 7)),
        regression.spreads(of), regression.constant_spreads(y), float(of.aleatoric.mean().sqrt()),
        float(of.epistemic.mean().sqrt()), *flat, *ends, std[:, 0].numpy(), of.below(y)[:, 0].numpy(),
        findings=(Finding("ok", "This chain looks healthy."),),
    )  # fmt: skip


def said(run, question):
    return " ".join(next(answer for answer in regression_answers([run]) if answer.question == question).sentences)


def test_spreads_are_the_scores_with_intervals():
    outputs, y = np.random.default_rng(0).normal(size=(5, 60, 2)), np.random.default_rng(1).normal(size=(60, 2))
    found = regression.spreads(regression.mixture_of(outputs, y, 0.7))
    expected = regression.summary(outputs, y, 0.7)["predictive"]
    assert {name: spread.value for name, spread in found.items()} == pytest.approx(expected)
    assert all(spread.low < spread.value < spread.high for spread in found.values())
    # One answer for all has the error of the targets' own spread.
    assert regression.constant_spreads(y)["rmse"].value == pytest.approx(np.sqrt(y.var(0).mean()))


def test_a_sound_model_is_told_from_a_biased_and_from_an_overconfident_one():
    sound = facts()
    assert "right on average" in said(sound, "What does it get wrong?")
    assert "as they should" in said(sound, "When can I trust it?")
    assert "nearly the same for all" in said(sound, "When can I trust it?")
    assert "The highest third of its predictions is too low, by " in said(facts(shift=3.0), "What does it get wrong?")
    narrow = facts(width=0.5)
    assert narrow.predictive["coverage90"].high < 0.9
    assert "it is overconfident" in said(narrow, "When can I trust it?")
    assert "student-t" in said(narrow, "What next?")
    assert "it is underconfident" in said(facts(width=3.0), "When can I trust it?")


def test_an_uncertainty_that_varies_is_checked_against_the_errors():
    sure, unsure = by_uncertainty(facts(varying=True))[::2]
    assert sure.rmse < unsure.rmse
    assert "Where it is most certain it is off by" in said(facts(varying=True), "When can I trust it?")


def test_thirds_and_surprises_are_those_of_the_data():
    run = facts()
    parts = by_prediction(run)
    assert [part.count for part in parts] == [80, 80, 80]
    assert parts[0].reach[1] <= parts[1].reach[0]
    assert np.mean([part.rmse**2 for part in parts]) == pytest.approx(run.predictive["rmse"].value ** 2)
    miss = largest(run)[0]
    assert abs(miss.deviations) == pytest.approx(np.max(np.abs((run.true - run.mean) / run.std)))
    assert miss.true == run.true[int(miss.example)]


def test_the_page_has_health_first_intervals_a_baseline_and_a_glossary():
    page = render_regression((facts(),), "atmc report runs/price")
    assert page.index("Is the run healthy?") < page.index("How good is it?") < page.index("<h2>Scores")
    assert page.index("<h2>Health") < page.index("<h2>Scores")
    low, high = facts().predictive["rmse"].low, facts().predictive["rmse"].high
    assert f"<small>{low:.3g}–{high:.3g}</small>" in page
    assert "Mean of the targets" in page
    assert 'id="word-rmse"' in page
    assert 'id="word-auroc"' not in page
    assert 'class="best"' in page, "the average is clearly ahead of one of its samples"
    two = render_regression((facts(), facts("other")))
    assert "cannot be told apart from ATMC (other)" in two
    assert 'class="best"' not in two, "two equal runs: nothing is bold"
    assert any("price: RMSE" in line for line in regression_verdict((facts(), facts("other"))))


@pytest.mark.skipif(BINARY is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_the_page_fits_a_phone(tmp_path):
    run = replace(facts(varying=True, shift=3.0), name="a-long-name-without-a-space_" * 3)
    path = tmp_path / "report.html"
    path.write_text(render_regression((run, facts())), encoding="utf-8")
    with Browser(tmp_path / "chromium") as browser:
        for width in (1280, 390):
            browser.open(path, width)
            assert browser.complaints() == []
            assert browser.ask("document.documentElement.scrollWidth") <= width
