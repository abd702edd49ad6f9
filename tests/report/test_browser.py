"""The page in a real browser, wide and narrow, light and dark."""

from dataclasses import replace

import pytest
from browser import BINARY, Browser
from factory import report, run

from atmc.report.page import render
from atmc.report.report_data import Finding

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here (Debian: apt-get install chromium)")

LONG = "runs/" + "a-very-long-name-without-a-space_" * 4


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    long = run(LONG, recipe="key = " + "x" * 500, network="n" * 200)
    path.write_text(render(report(runs=(*report().runs, long))), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_loads_quietly_and_fits(browser, page, width, dark):
    browser.open(page, width, dark)
    assert browser.complaints() == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("[...document.images].every(i => i.complete && i.naturalWidth > 0)") is True
    # Every plot is drawn at a size one can read, and inside the window.
    boxes = browser.ask("[...document.querySelectorAll('svg')].map(s => {const b = s.getBoundingClientRect();"
                        " return [b.left, b.right, b.height]})")  # fmt: skip
    assert len(boxes) >= 8
    assert all(left >= 0 and right <= width and height > 120 for left, right, height in boxes)


def test_dark_is_dark_and_its_text_can_be_read(browser, page):
    seen = {}
    for dark in (False, True):
        browser.open(page, 1280, dark)
        seen[dark] = [
            luminance(browser.ask(f"getComputedStyle(document.querySelector('{where}')).{what}"))
            for where, what in (("body", "backgroundColor"), (".answers dd", "color"), ("svg text", "fill"))
        ]
    for dark, (paper, *inks) in seen.items():
        assert (paper < 0.1) if dark else (paper > 0.9)
        for ink in inks:
            bright, dim = max(ink, paper) + 0.05, min(ink, paper) + 0.05
            assert bright / dim >= 4.5, "WCAG's contrast for text"


def luminance(colour):
    """Relative luminance of a CSS `rgb(…)`, by the WCAG's formula."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_print_is_light_and_shows_the_recipe(browser, page):
    browser.open(page, 1280, dark=True, media="print")
    assert luminance(browser.ask("getComputedStyle(document.querySelector('.answers dd')).color")) < 0.1
    assert browser.ask("document.querySelector('.runs details pre').getBoundingClientRect().height") > 10


def test_on_paper_the_legend_keeps_its_colours_and_its_plots(browser, page):
    """Browsers print no backgrounds unless told to, and the dots of the legend and the bars of the cards are such."""
    browser.open(page, 800, media="print")
    for part in (".legend i", ".card b", "h3 i"):
        style = f"getComputedStyle(document.querySelector('{part}'))"
        assert browser.ask(f"{style}.background").startswith(("rgb(", "rgba(0, 0, 0, 0) linear-gradient(")), part
        assert browser.ask(f"{style}.printColorAdjust") == "exact", part
    assert browser.ask("getComputedStyle(document.querySelector('.legend')).breakAfter") == "avoid"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_option_of_a_command_is_torn_apart(browser, tmp_path, width):
    command = "atmc sample runs/first --out runs/first-2 --set schedule.epochs=200 --set schedule.burn_in_epochs=100"
    path = tmp_path / "report.html"
    path.write_text(render(report(runs=(run(findings=(Finding("note", "So", "", f"Do it: {command}"),)),))), "utf-8")
    browser.open(path, width)
    assert browser.ask("document.querySelector('.findings code').textContent") == command
    lines = "[...document.querySelectorAll('.findings code span')].map(s => s.getClientRects().length)"
    assert browser.ask(lines) == [1, 1, 1, 1]


@pytest.mark.parametrize("width", [1280, 390])
def test_class_names_are_whole(browser, tmp_path, width):
    names = ("ship", "a truck with a very long name indeed", "Donaudampfschifffahrtsgesellschaftskapitän", *"3456789")
    made = run(classes=names)
    made = replace(made, least_sure=tuple(replace(c, bars=tuple((name, 0.3) for name in names[:3]), truth=names[2])
                                          for c in made.least_sure))  # fmt: skip
    path = tmp_path / "report.html"
    path.write_text(render(report(runs=(made,))), encoding="utf-8")
    browser.open(path, width)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    cut = ("[...document.querySelectorAll('.card li span, .classes th, .classes td, .matrix th')]"
           ".filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflow != 'visible')"
           ".map(e => e.textContent)")  # fmt: skip
    assert browser.ask(cut) == []
    seen = browser.ask("[...document.querySelectorAll('.classes th')].map(e => e.textContent)")
    assert set(names) <= set(seen)


def test_the_first_screen_answers_five_questions_and_words_lead_to_the_glossary(browser, page):
    browser.open(page, 1280)
    asked = browser.ask("[...document.querySelectorAll('.answers dt')].map(e => e.textContent)")
    assert asked == ["Is the run healthy?", "How good is it?", "What does it get wrong?", "When can I trust it?",
                     "What next?"]  # fmt: skip
    assert browser.ask("document.querySelector('.answers').getBoundingClientRect().bottom") < 900, "without scrolling"
    broken = "[...document.querySelectorAll('.term')].filter(a => !document.querySelector(a.getAttribute('href')))"
    assert browser.ask(f"{broken}.length") == 0
    assert browser.ask("[...document.querySelectorAll('.term')].every(a => a.title.length > 20)") is True
    assert browser.ask("document.querySelectorAll('.term').length") >= 8


def test_what_answers_nothing_is_bold_nowhere(browser, page):
    browser.open(page, 1280)
    assert browser.ask("document.querySelectorAll('.constant .best').length") == 0
