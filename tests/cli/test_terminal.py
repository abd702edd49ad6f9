"""What a person sees in a terminal of eighty columns: lines end between words, and nothing is lost."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from shell import atmc
from tiny_recipes import RECIPE, SGD

from atmc.cli.console import wrapped

COLUMNS = 80


@pytest.fixture
def shown_by(in_a_terminal, monkeypatch):
    """What a command writes to a terminal; its progress goes where nobody reads it."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}

    def shown(*arguments):
        words = [sys.executable, "-m", "atmc", *(str(argument) for argument in arguments)]
        return in_a_terminal(words, environment, subprocess.DEVNULL).replace("\r\n", "\n")

    return shown


def overrun(text):
    """Lines that the terminal would break, but for a command or a path alone on its line: those are to be copied."""
    long = [line for line in text.splitlines() if len(line) > COLUMNS]
    return [line for line in long if not re.match(r"(?:Next:)? +atmc | */", line)]


@pytest.mark.parametrize("verb", ["doctor", "report"])
def test_prose_is_broken_between_words(tiny, shown_by, verb):
    shown = shown_by(verb, tiny)
    piped = atmc(verb, tiny).out
    assert overrun(shown) == []
    # All but the table, which has fewer columns in a narrow terminal.
    without = [re.sub(r"\n\n *Setup.*?\n\n", "\n", text, flags=re.DOTALL) for text in (shown, piped)]
    assert without[0].split() == without[1].split()
    assert any(len(line) > COLUMNS for line in piped.splitlines()), "in a pipe lines are as they were"
    if verb == "doctor":
        a_list_keeps_its_indent_and_a_command_its_line(shown, piped)


def a_list_keeps_its_indent_and_a_command_its_line(shown, piped):
    for before, line in zip(shown.splitlines(), shown.splitlines()[1:], strict=False):
        if before.startswith("    → ") and not line.startswith(("✓", "·", "!", "✗", "    → ")) and line:
            assert line.startswith(" " * 6), shown
    commands = re.findall(r"(atmc sample .*)", piped)
    assert commands
    for command in commands:
        assert command in shown, "whole, so that it can be copied"
        assert shlex.split(command)[0] == "atmc"


def test_the_demo_is_readable(tmp_path, shown_by):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "digits-atmc.toml").write_text(RECIPE.replace('"tiny"', '"digits-atmc"'))
    (folder / "digits-sgd.toml").write_text(SGD.replace('"tiny-sgd"', '"digits-sgd"'))
    shown = shown_by("demo", "--out", "a folder")
    assert overrun(shown) == []
    assert "atmc doctor 'a folder/atmc'" in shown
    assert str(tmp_path / "a folder" / "report.html") in shown
    piped = atmc("demo", "--out", "a folder").out  # resumes the same run and prints it again
    told = piped[piped.index("OOD inputs") : piped.index("The report, after")]
    assert told.split() == shown[shown.index("OOD inputs") : shown.index("The report, after")].split()


def test_lines_are_wrapped_as_they_are_meant():
    text = "    → Run longer, for 99.5 % of it: atmc sample 'my run' --set schedule.epochs=400"
    command = "atmc sample 'my run' --set schedule.epochs=400"
    assert wrapped(text, 120, [command]) == text
    assert wrapped(text, 60, [command]) == f"    → Run longer, for 99.5 % of it:\n      {command}"
    assert wrapped(text, 26, [command]) == f"    → Run longer, for\n      99.5 % of it:\n      {command}"
    item = "  letters    ATMC 99 %, and SGD 98 %"
    assert wrapped(item, 34, hang=13) == "  letters    ATMC 99 %, and SGD\n" + " " * 13 + "98 %"
    assert wrapped("漢字 漢字 漢字", 10) == "漢字 漢字\n漢字", "by the columns that letters take"
    assert wrapped("a kinetic temperature of 1.00 ± 0.02", 32) == "a kinetic temperature of\n1.00 ± 0.02"
