"""Two small runs that all command-line tests share, made once by the real engine."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

RECIPE = """
name = "tiny"
seed = 1

[data]
name = "digits"
batch_size = 100
validation = 97

[model]
name = "resnetpp"
depth = 8
width = 2

[sampler]
name = "atmc"
lr = 1e-3
speed = 3e-3
momentum = 0.9
temperature = 0.1

[schedule]
epochs = 4
cycle_epochs = 1
burn_in_epochs = 1

[run]
device = "cpu"
evaluate = ["test", "validation"]
"""
SGD = RECIPE.replace('"tiny"', '"tiny-sgd"').replace("speed = 3e-3\n", "").replace("temperature = 0.1\n", "")
SGD = SGD.replace('name = "atmc"', 'name = "sgd"').replace("lr = 1e-3", "lr = 0.05")
SGD = SGD.replace("cycle_epochs = 1\nburn_in_epochs = 1\n", 'kind = "cosine"\n')


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


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tests run beside each other; the networks here are too small for threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


os.environ.setdefault("COLUMNS", "120")
