"""The page is whole, safe and self-contained, whatever the run directories call themselves."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import factory
import numpy as np
import pytest
from factory import report, run

from atmc.recipe.settings import Recipe, TargetSection
from atmc.report.page import GENERATOR, render
from atmc.report.plot_style import Ink, page_svg
from atmc.report.plots import plots
from atmc.report.report_data import Finding
from atmc.report.run_details import details_of

BARE = {"surest": (), "least_sure": (), "ood": ()}  # without what takes long to draw and is not asked about
HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}{% raw %}</style></svg>$x_1$"


class Reader(HTMLParser):
    """Collects tags, attributes and ids, as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]


@pytest.fixture(scope="module")
def page():
    return render(report())


def test_the_page_has_every_part(page):
    headings = ["Health", "Scores", "What it gets wrong", "When to trust it"]
    headings += ["Uncertain and confident predictions of digits-atmc", "Out-of-distribution inputs"]
    headings += ["Effect of averaging", "Chains over time", "Runs", "Words"]
    assert re.findall(r"<h2>(.*?)</h2>", page) == headings, "health comes first"
    assert page.count("<svg") == 9
    assert GENERATOR in page[:300]
    assert "lr = 0.001" in page


def test_the_page_asks_nothing_of_the_network_and_has_no_script(page):
    reader = Reader(page)
    assert not {"script", "link", "iframe", "object"} & set(reader.tags)
    for name, value in reader.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("data:image/png", "#")), value
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_ids_are_unique_over_all_plots_and_every_reference_has_its_target(page):
    reader = Reader(page)
    assert len(reader.ids) == len(set(reader.ids))
    wanted = {value[1:] for name, value in reader.attributes if name == "xlink:href" and value.startswith("#")}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert wanted
    assert wanted <= set(reader.ids)


def test_names_from_a_run_directory_stay_text():
    hostile = run(
        name=HOSTILE,
        method=HOSTILE,
        network=HOSTILE,
        data=HOSTILE,
        split=HOSTILE,
        augment=HOSTILE,
        device=HOSTILE,
        recipe=HOSTILE,
        facts={HOSTILE: HOSTILE},
        notes=(HOSTILE,),
        findings=(Finding('x" onload="', HOSTILE, HOSTILE, HOSTILE),),
    )
    cards = tuple(replace(c, truth=HOSTILE) for c in hostile.least_sure)
    hostile = replace(hostile, least_sure=cards, classes=(HOSTILE,) * 10, path=HOSTILE)
    page = render(report(runs=(hostile, run(name=HOSTILE))))
    reader = Reader(page)
    assert "script" not in reader.tags
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert "{{7*7}}" in page
    assert page.count("</style>") == 1
    assert "<script" not in page


def test_plots_take_their_colours_from_the_page():
    for plot in plots(report()):
        svg = page_svg(plot.draw(Ink.page()), plot.name, plot.label)
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label") == plot.label
        assert "var(--series-1)" in svg
        # Black is what matplotlib draws with when nobody chose a colour: it would vanish on a dark page.
        colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
        assert not colours, (plot.name, colours)
        texts = root.findall(".//{http://www.w3.org/2000/svg}text")
        assert texts, "labels must stay text"
        assert all("DejaVu" not in (text.get("style") or "") for text in texts)


def test_the_same_facts_give_the_same_page(page):
    assert render(report()) == page


def test_cycles_that_begin_at_another_temperature_are_explained():
    plain, explores, cools = (
        render(report(runs=(run(temperature=0.02, before=before, traces=(), **BARE),))) for before in (None, 0.0, 0.2)
    )
    assert "“After 0”" not in plain
    assert "“From”:" not in plain
    assert "0.02 after 0" in explores
    assert "“After 0”: each cycle explores" in explores
    assert "“From”:" not in explores
    assert "0.02 from 0.2" in cools
    assert "“From”: each cycle starts at that temperature and cools." in cools


def test_a_lone_optimiser_has_a_page_too():
    alone = run("sgd", "SGD", samples=1, temperature=None, traces=(), surest=(), least_sure=(), ood=(), recipe="")
    page = render(report(runs=(alone,)))
    assert "Effect of averaging" not in page
    assert "posterior predictive" not in page[: page.index("<h2>Words</h2>")]
    assert "<h2>Chains over time</h2>" not in page
    assert page.count("<svg") == 2


def test_readings_that_are_not_numbers_do_not_spoil_the_page():
    broken = run()
    trace = replace(broken.traces[0], loss=np.full(900, np.nan), temperature=np.full(900, np.inf))
    scores = broken.predictive | {"nll": float("nan")}
    page = render(report(runs=(replace(broken, traces=(trace,), predictive=scores),)))
    assert "Training loss" not in page
    assert "Thermostat" in page


def test_losses_below_zero_and_of_other_likelihoods_are_drawn_and_said_to_be_so():
    usual, other = run(**BARE), run("other", likelihood="dirclip", **BARE)
    other = replace(other, traces=(replace(other.traces[0], loss=other.traces[0].loss - 20),))
    assert "their losses are not comparable" in render(report(runs=(usual, other)))
    assert "their losses are not comparable" not in render(report(runs=(usual, run("twin", **BARE))))


def test_nine_runs_fit():
    page = render(report(runs=tuple(run(f"run {i}", seed=i, ood=()) for i in range(9))))
    scores = page[page.index("<h2>Scores") : page.index("<h2>What it gets wrong")]
    assert scores.count('<th scope="row">') == 18 + 2, "two rows for each, and two for answers that look at nothing"


def test_of_many_classes_the_weakest_and_the_most_frequent_mistakes_are_shown():
    counts = np.diag(np.full(40, 10))
    counts[7, 3], counts[7, 7] = 6, 4
    page = render(report(runs=(run(**BARE, classes=tuple(f"class {i}" for i in range(40)), confusion=counts),)))
    part = page[page.index("What it gets wrong</h2>") : page.index("When to trust it</h2>")]
    assert part.count('<th scope="row">') == 20
    assert part.index("class 7</th>") < part.index("class 0</th>"), "the weakest first"
    assert "20 more are not shown" in part
    assert "class 7 taken for class 3: 6 ×" in part
    assert 'class="matrix"' not in part
    few = render(report(runs=(run(**BARE),)))
    assert few.count('<td class="right"') == 10


def test_factory_scores_are_those_of_its_probabilities():
    """The factory's arithmetic feeds other tests, so it is checked on a case that can be done in the head."""
    probs, labels = np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([1, 0])
    made = factory.scores(probs, labels)
    assert made["accuracy"] == 0.5
    assert made["nll"] == pytest.approx(-(np.log(0.5) + np.log(0.9)) / 2)
    assert made["brier"] == pytest.approx((0.5 + 0.02) / 2)


def test_calibration_against_samples_and_the_area_under_risk_are_shown(page):
    assert 'aria-label="Mean gap between confidence and accuracy against the number of samples averaged"' in page
    first, second = report().runs
    said = " ".join(page.split())
    assert f"{first.risk.area:.2g} for {first.name}, {second.risk.area:.2g} for {second.name}." in said
    without = replace(first, growth=replace(first.growth, gap=np.zeros(0)))
    names = [plot.name for plot in plots(report(runs=(without,)))]
    assert "nll-samples" in names
    assert "calibration-samples" not in names


def perfect(**changes):
    """A run without a mistake, all along."""
    made = run(**BARE, **changes)
    right = np.ones_like(made.growth.accuracy)
    none = replace(made.risk, risk=np.zeros_like(made.risk.risk), area=0.0)
    growth = replace(made.growth, accuracy=right, gap=np.zeros_like(right))
    scores = made.predictive | {"accuracy": 1.0}
    return replace(made, growth=growth, risk=none, risk_single=none, predictive=scores, single=scores)


def drawn(made, name):
    """The axes of one plot."""
    (plot,) = [plot for plot in plots(report(runs=(made,))) if plot.name == name]
    figure = plot.draw(Ink.paper())
    figure.draw_without_rendering()
    return figure.axes[0]


def test_plots_of_a_run_without_mistakes_stay_within_what_can_be():
    for name in ("accuracy-samples", "calibration-samples"):
        low, high = drawn(perfect(), name).get_ylim()
        assert low >= -0.01
        assert high <= 1.01
    axes = drawn(perfect(), "risk-coverage")
    assert [text.get_text() for text in axes.texts] == ["No mistakes"]
    assert not any(line.get_clip_on() for line in axes.lines), "a line on the floor is half hidden by it"
    assert len(drawn(run(**BARE), "risk-coverage").texts) == 0
    one = replace(perfect(), risk_single=run(**BARE).risk_single)  # mistakes of the last sample alone
    axes = drawn(one, "risk-coverage")
    assert len(axes.texts) == 0
    assert axes.get_ylim()[1] >= one.risk_single.risk.max()


def test_the_doctors_command_is_a_block_that_breaks_between_options():
    command = "atmc sample runs/a --out runs/a-2 --set schedule.epochs=200 --set schedule.burn_in_epochs=100"
    found = (
        Finding("warning", "The loss is falling.", "By 3.", f"Lengthen it: {command}"),
        Finding("note", "It is so", "Why.", "Think: then act."),
        Finding("note", "In Python", "Why.", "Do it: atmc.sample(model, data, out='x')"),
    )
    page = render(report(runs=(run(**BARE, findings=found),)))
    blocks = re.findall(r"<pre><code>(.*?)</code></pre>", page)
    assert blocks.pop(0) == blocks[0], "what to do next is on the first screen, too"
    assert [re.sub(r"<.*?>", "", block) for block in blocks] == [command, "atmc.sample(model, data, out=&#39;x&#39;)"]
    parts = ["atmc sample runs/a", "--out runs/a-2", "--set schedule.epochs=200", "--set schedule.burn_in_epochs=100"]
    assert re.findall(r"<span>(.*?)</span>", blocks[0]) == parts
    assert "<em>Lengthen it:</em>" in page
    assert "<em>Think: then act.</em>" in page


def test_what_was_run_is_said_in_words():
    page = render(report(runs=(run(**BARE, chains=2, data="tensors"), *report().runs[1:])))
    for said in (
        "12 samples of 2 chains",
        "1 network<",
        "tensors given in Python, not augmented",
        "2 × 120 epochs, 41 s",
    ):
        assert said in page, said
    assert "augmented: crop-flip" in render(report(runs=(run(**BARE, augment="crop-flip"),)))
    few = run(**BARE, data="digits?train=200")
    assert "digits, 200 labelled images, not augmented" in render(report(runs=(few,)))
    assert few.what == "digits test images"
    for samples, said in ((1, "1 sample of 1 chain"), (14, "14 samples of 1 chain")):
        assert run(**BARE, samples=samples).samples_said == said
    for prior, said in (("none", "no prior"), ("custom", "custom prior"), ("gaussian", "gaussian prior")):
        recipe = Recipe(target=TargetSection(prior=prior))
        assert details_of({}, recipe)["Target"] == f"categorical likelihood, {said}"
