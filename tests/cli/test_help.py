"""Help answers at once, without torch, with an example for every verb; usage errors are one line."""

import os
import subprocess
import sys

import pytest
from shell import atmc, fails

VERBS = (
    "demo",
    "sample",
    "evaluate",
    "report",
    "predict",
    "doctor",
    "export",
    "distill",
    "data list",
    "data get",
    "data shard",
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_and_speaks_json(verb):
    result = atmc(*verb.split(), "--help")
    assert result.code == 0
    assert "--json" in result.out
    assert f"Example: atmc {verb.split()[0]}" in " ".join(result.out.split())


@pytest.mark.parametrize("verb", ["export", "distill"])
def test_what_is_for_classifiers_says_so(verb):
    assert "classifiers only" in " ".join(atmc(verb, "--help").out.lower().split())


def test_no_arguments_is_a_request_for_help():
    for line in ((), ("data",), ("-h",)):
        result = atmc(*line)
        assert result.code == 0
        assert "Usage: atmc" in result.out
    assert atmc("--version").out.startswith("atmc 0.")


def test_usage_errors_are_one_line():
    fails("nonsense", match="nonsense")
    fails("sample", match="atmc sample --help")
    fails("evaluate", "--frobnicate", match="atmc evaluate --help")
    fails("predict", "run", match="IMAGE")
    fails("predict", "run", "x.png", "--top", "0", match="--top")
    fails("evaluate", "no-such-run", match="atmc sample")


def test_help_is_quick_and_does_not_import_torch():
    code = (
        "import sys, time; began = time.process_time()\n"  # of this process alone, however busy the machine is
        "from atmc.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "print('SECONDS', time.process_time() - began)\n"
        "print('HEAVY', [m for m in ('torch', 'matplotlib', 'sklearn', 'pydantic', 'jinja2') if m in sys.modules])"
    )
    environment = {**os.environ, "COLUMNS": "100"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "HEAVY []" in found.stdout
    assert float(found.stdout.split("SECONDS ")[1].split()[0]) < 1.0


def test_importing_the_package_costs_nothing_beside_torch():
    """Names are looked up when they are used, so that `import atmc` adds next to nothing to `import torch`."""
    code = "import sys, atmc; print('torch' in sys.modules, 'numpy' in sys.modules, atmc.ATMC.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False", "ATMC"]


def test_an_unexpected_error_is_one_line_unless_debugging(monkeypatch, tmp_path):
    def broken(arguments):
        raise ZeroDivisionError("a bug\nof two lines")

    monkeypatch.setattr("atmc.cli.main._dispatch", broken)
    result = atmc("evaluate", "x")
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "ATMC_DEBUG=1" in result.err
    monkeypatch.setenv("ATMC_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        atmc("evaluate", "x")


def test_a_reader_that_leaves_before_a_table_is_no_failure():
    """`atmc evaluate RUN | head -1`: where a table met the closed pipe, rich ended the program with exit code 1."""
    code = "from atmc.cli import console, main; main._dispatch = lambda _: console.table(['a'], [['b']]); main.main()"
    out, into = os.pipe()
    os.close(out)
    made = subprocess.run([sys.executable, "-c", code], stdout=into, stderr=subprocess.PIPE, text=True)
    os.close(into)
    assert (made.returncode, made.stderr) == (0, "")


@pytest.mark.parametrize("failure", ["RecursionError", "ModuleNotFoundError"])
def test_ctrl_c_that_an_import_swallows_is_still_ctrl_c(failure):
    """Torch's imports turned it into a RecursionError, and the answer was exit code 1 and to report a bug."""
    code = """
import os, signal
from atmc.cli import main
def importing(arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise FAILURE("half of a module") from None
main._dispatch = importing
signal.signal(signal.SIGINT, signal.default_int_handler)
main.main()
""".replace("FAILURE", failure)
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (130, "atmc: stopped by Ctrl-C\n")
