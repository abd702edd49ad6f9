"""Samples that know no more than guessing are said to, first, by `atmc.sample`, the doctor and the report."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atmc
from atmc.cli.main import run as command
from atmc.diagnose.collapse import TrainingFit, complaint, training_fit
from atmc.diagnose.complaints import complaints
from atmc.diagnose.doctor import doctor
from atmc.storage.run_directory import RunDir


def rows(warm: float | None, *costs: float, right: float = 0.1, name: str = "nll", guess: float = 2.3) -> list[Any]:
    """Rows of metrics of one chain: its warm start, and the training score of all samples so far."""

    def scores(cost: float, accuracy: float) -> dict[str, float]:
        return {"nll": cost, "accuracy": accuracy} if name == "nll" else {"rmse": cost}

    kept = [{"event": "log", "chain": 0, "loss": 1.0}]
    if warm is not None:
        kept.append({"event": "warm", "chain": 0, "training": {"single": scores(warm, 0.9)}})
    for cost in costs:
        found = {"single": scores(cost, right), "predictive": scores(cost, right), "guess": scores(guess, 0.1)}
        kept.append({"event": "sample", "chain": 0, "training": found})
    return kept


@pytest.mark.parametrize(
    ("written", "collapsed"),
    [
        (rows(0.1, 0.5, 2.29), True),
        (rows(0.1, 2.29, 0.2, right=0.95), False),  # the last one counts: it is of all samples
        (rows(None, 2.25), True),  # without a warm start by itself
        (rows(0.1, 1.5, right=0.6), True),  # better than guessing, but most of what SGD had learned is lost
        (rows(0.1, 1.0, right=0.7), False),
        (rows(2.2, 1.9, right=0.4), False),  # a hard problem, and better than the warm start
        (rows(2.2, 2.2, right=0.9), False),  # right, with little confidence
        (rows(0.1, 0.95, name="rmse", guess=1.0), True),
        (rows(0.1, 0.3, name="rmse", guess=1.0), False),
        (rows(0.1, 0.0, guess=0.0), False),  # one class only
        ([{"event": "sample", "chain": 0}], False),  # of an older version
    ],
)
def test_collapse_is_a_question_of_size(written: list[Any], collapsed: bool) -> None:
    assert bool(complaint(written, 1.0)) is collapsed


def test_all_chains_count() -> None:
    second = [{**row, "chain": 1} for row in rows(0.3, 1.0)]
    fit = training_fit(rows(0.1, 2.0) + second)
    assert fit == TrainingFit(
        guess=2.3, warm=pytest.approx(0.2), reached=1.5, accuracy=0.1, usual=pytest.approx(0.1), regression=False
    )


def test_the_cure_depends_on_what_the_warm_start_knew() -> None:
    lost, never = complaint(rows(0.1, 2.29), 1.0), complaint(rows(2.25, 2.29), 1.0)
    for word in ("temperature=0.1", "NoisyDirichlet()", "prior scale", "narrower network", "more epochs do not help"):
        assert word in lost
    assert "had not learned much either: look at labels and inputs" in never
    assert "noise scale" in complaint(rows(0.1, 0.99, name="rmse", guess=1.0), 1.0)


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
    last = nn.Linear(8 * width, 10)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), last)


def test_a_small_network_on_a_hundred_digits_at_t_1_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Normal(0, 1) it collapses at T = 1, and not at T = 0.1 or with the default prior; nothing of it was said."""
    train, test = atmc.data.load("digits", "train"), atmc.data.load("digits", "test")
    x, y = train.images[:100].float(), train.labels[:100]
    x, there = (x - x.mean()) / x.std(), (test.images.float() - x.mean()) / x.std()
    more: dict[str, Any] = {"epochs": 30, "batch_size": 6, "progress": None, "test": (there, test.labels)}
    with pytest.warns(UserWarning, match=r"the samples predict hardly better than guessing .*pass temperature=0\.1"):
        atmc.sample(network(4), (x, y), out=tmp_path / "hot", prior="gaussian", **more)
    run = RunDir.open(tmp_path / "hot")
    assert complaints(run)[0].startswith("the samples predict hardly better than guessing (on training examples")
    verdict, first, *_ = doctor(run)
    assert verdict.level == first.level == "problem"
    assert "hardly better than guessing" in verdict.evidence
    assert first.title == "The samples predict hardly better than guessing"
    assert 'overrides=["sampler.temperature=0.1"]' in verdict.action
    assert command(["report", str(tmp_path / "hot")]) == 0
    assert "Do not rely on it yet: the samples predict hardly better than guessing." in capsys.readouterr().out

    for name, other in (("cold", {"prior": "gaussian", "temperature": 0.1}), ("limited", {})):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = atmc.sample(network(4), (x, y), out=tmp_path / name, **more, **other)
        assert not [w for w in said if "guessing" in str(w.message)]
        assert found.evaluate(x, y)["predictive"]["accuracy"] > 0.5


def test_the_scores_survive_a_stop(tmp_path: Path) -> None:
    """Those of all samples, which a checkpoint keeps the sum for."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    data = (x, (x[:, 0] > 0).long())

    def line() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(2, 2)

    def kept(folder: str) -> list[Any]:
        found = RunDir.open(tmp_path / folder).metrics()
        return [(row["step"], row["training"]) for row in found if row["event"] in ("warm", "sample")]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        more = {"overrides": {"schedule": {"cycle_epochs": 2}}, "batch_size": 20, "progress": None}
        atmc.sample(line(), data, epochs=20, out=tmp_path / "parts", **more)
        atmc.sample(line(), data, epochs=40, out=tmp_path / "parts", recipe=tmp_path / "parts", progress=None)
    found = kept("parts")
    assert found[0][0] < found[1][0]
    assert all("predictive" in training for _, training in found[1:])
    posterior = atmc.Posterior.from_run(tmp_path / "parts", line())
    few = torch.linspace(0, 199, 200).round().long()
    score = posterior.evaluate(x[few], data[1][few])["predictive"]
    assert found[-1][1]["predictive"]["nll"] == pytest.approx(score["nll"], rel=1e-4)
    assert found[-1][1]["guess"]["nll"] == pytest.approx(0.693, abs=0.01)
