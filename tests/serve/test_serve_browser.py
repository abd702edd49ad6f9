"""The page of `atmc serve` in a real browser: drop an image, type a row, read the answer."""

import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra: pip install 'atmc[serve]'")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from browser import BINARY, Browser
from test_web import Served, picture, posterior, rows

from atmc.data.image_decoding import View
from atmc.serve.predictor import Predictor, Rule

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_an_image_is_asked_about_and_a_bad_one_is_told(browser, tmp_path, width, dark):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(picture())
    bad.write_bytes(b"no image")
    examples = [(picture(value=value), "cat") for value in (0, 200)]
    with Served(Predictor(posterior(), "animals", View(8, 8, 1), Rule(0.9, 0.01, 100), examples)) as server:
        browser.open(server.home, width, dark)
        began = time.monotonic()
        browser.wait("document.querySelectorAll('#examples button').length == 2")
        browser.ask("document.querySelector('#examples button').click()")
        browser.wait("document.querySelectorAll('article').length == 1")
        assert time.monotonic() - began < 5, "a second on an idle machine"
        browser.choose_files("#file", good)
        browser.wait("document.querySelectorAll('article').length == 2")
        assert browser.complaints(server.home) == []
        verdict = browser.ask("document.querySelector('article .verdict').textContent")
        assert verdict.startswith("Refuse: perhaps ")
        assert browser.ask("document.querySelectorAll('article:first-child .bars li').length") == 3
        assert browser.ask("document.querySelectorAll('article:first-child .samples span').length") == 3
        assert browser.ask("document.querySelector('article:first-child .uncertainty').textContent").count("nats") == 3
        assert "<b>fox</b>" in browser.ask("document.querySelector('.bars').textContent"), "names stay text"
        assert browser.ask("document.querySelectorAll('.bars b').length") == 0
        assert browser.ask("document.documentElement.scrollWidth") <= width
        browser.choose_files("#file", bad)
        browser.wait("document.querySelector('#state').className == 'bad'")
        assert "bad.png: not in a known image format" in browser.ask("document.querySelector('#state').textContent")


def test_a_row_is_typed_and_answered(browser):
    with Served(Predictor(rows(), "prices")) as server:
        browser.open(server.home, 1280)
        browser.wait("!document.querySelector('#rows').hidden")
        for typed, said in (("1, 2", "takes 4"), ("1 2 x 4", "not a number"), ("", "Type some numbers")):
            browser.ask(f"document.querySelector('#numbers').value = '{typed}'")
            browser.ask("document.querySelector('#form button').click()")
            browser.wait(f"document.querySelector('#state').textContent.includes('{said}')")
        browser.ask("document.querySelector('#numbers').value = '1, 2; 3 4.5'")
        browser.ask("document.querySelector('#form button').click()")
        browser.wait("document.querySelectorAll('article').length == 1")
        assert "±" in browser.ask("document.querySelector('.verdict').textContent")
