"""Two small runs that all command-line tests share, made once by the real engine."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Each test in an empty folder of its own, with no data sets but those it makes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATMC_DATA", str(tmp_path / "data-root"))
    monkeypatch.delenv("ATMC_DEBUG", raising=False)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A sampled run and an optimised one."""
    from shell import atmc
    from tiny_recipes import RECIPE, SGD

    folder = tmp_path_factory.mktemp("runs")
    made = []
    for name, text in (("tiny", RECIPE), ("tiny-sgd", SGD)):
        (folder / f"{name}.toml").write_text(text)
        result = atmc("sample", folder / f"{name}.toml", "--out", folder / name)
        assert result.code == 0, result
        made.append(folder / name)
    return made


@pytest.fixture(scope="session")
def tiny(runs):
    """The sampled run; never changed by a test."""
    return runs[0]


os.environ.setdefault("COLUMNS", "120")
