"""`temperature="auto"`: what is tried and chosen, what it costs, what is kept, and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atmc
from atmc.api.pilot_scores import Pilot, middle_first, nll_of_each, of_twice
from atmc.api.pilots import SHARE, narrows, parts
from atmc.data import ImageData
from atmc.engine.progress import Progress
from atmc.storage.run_directory import RunDir


class Told(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def blobs(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    y = torch.arange(count) % 3
    return torch.randn(count, 4) + 1.5 * torch.eye(4)[y], y


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.filterwarnings("ignore")
def test_the_best_is_gone_on_with_and_kept(tmp_path: Path) -> None:
    x, y = blobs(90)
    told = Told()
    how = {"epochs": 60, "temperature": "auto", "out": tmp_path / "run", "test": (x, y)}
    posterior = atmc.sample(net(), (x, y), progress=told, **how)
    rows = posterior.pilots
    assert 4 <= len(rows) <= SHARE
    assert {row["likelihood"] for row in rows} == {"categorical", "noisy-dirichlet"}
    assert {1.0, 0.1, 0.01} <= {row["temperature"] for row in rows}
    best = min(row["nll"] for row in rows)
    assert rows[0]["nll"] == best or rows[0]["behind"] <= 1
    recipe = RunDir.open(tmp_path / "run").recipe
    assert (recipe.sampler.temperature, recipe.target.likelihood) == (rows[0]["temperature"], rows[0]["likelihood"])
    assert recipe.schedule.epochs == 16 * 60  # of few examples an epoch is 16 steps with all of them
    cost, table = told.notes[:2]
    assert f"at most {SHARE} pilots of {60 // SHARE} of the 60 epochs each, on 72 of the 90 examples" in cost
    assert f"The run uses T = {rows[0]['temperature']:g} and the {rows[0]['likelihood']} likelihood." in table
    assert "Guessing has an NLL of 1.099" in table
    assert table.count("\n") == len(rows) + 1
    again = atmc.sample(net(), (x, y), progress=(quiet := Told()), **how)  # goes on, and flies no pilots
    assert again.pilots == rows
    assert not any("pilots" in note for note in quiet.notes)
    assert atmc.Posterior.from_run(tmp_path / "run", net()).pilots == rows


@pytest.mark.filterwarnings("ignore")
def test_a_narrower_prior_is_tried_where_layers_are_wide(tmp_path: Path) -> None:
    x, y = blobs(90)
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))
    assert narrows(wide)
    assert not narrows(net())
    how = {"epochs": 42, "temperature": "auto", "out": tmp_path / "run", "progress": None}
    rows = atmc.sample(wide, (x, y), **how).pilots
    assert "gaussian-limited" in {row["prior"] for row in rows}
    recipe = RunDir.open(tmp_path / "run").recipe
    assert recipe.target.prior == (rows[0]["prior"] or "gaussian")
    assert len(atmc.sample(wide, (x, y), **how)) > 0  # goes on with the prior that it has
    rule = atmc.priors.build("gaussian-limited").assign(wide)
    assert [rule[f"{k}.weight"] for k in (0, 2)] == [atmc.priors.Normal(1.0), atmc.priors.Normal(0.5)]
    rows = atmc.sample(wide, (x, y), prior="laplace", epochs=14, temperature="auto", progress=None).pilots
    assert {row["prior"] for row in rows} == {None}


@pytest.mark.filterwarnings("ignore")
def test_a_regression_keeps_its_likelihood() -> None:
    x, _ = blobs(60)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    y = 5 * x[:, 0] + torch.randn(60)
    posterior = atmc.sample(model, (x, y), epochs=60, batch_size=60, temperature="auto", progress=None)
    assert {row["likelihood"] for row in posterior.pilots} == {"input-noise"}
    given = atmc.likelihoods.Gaussian(1.0)
    posterior = atmc.sample(
        model, (x, y[:, None]), likelihood=given, epochs=60, batch_size=60, temperature="auto", progress=None
    )
    assert {row["likelihood"] for row in posterior.pilots} == {"gaussian"}
    assert posterior.likelihood == given


def test_of_those_that_cannot_be_told_apart_the_middle_one_is_taken() -> None:
    def pilot(t: float, nll: float | None, behind: float | None, likelihood: str = "categorical") -> Pilot:
        return Pilot(likelihood, t, nll, behind)

    listed = [
        pilot(1.0, 0.5, 0.0),
        pilot(0.1, 0.51, 0.4),
        pilot(0.1, 0.52, 0.5, "noisy-dirichlet"),
        pilot(0.32, 0.53, 0.9),
        pilot(0.01, 0.7, 2.1),
        pilot(0.03, None, None),
    ]
    assert middle_first(listed)[0] is listed[3]
    assert [p for p in middle_first(listed) if p is not listed[3]] == [p for p in listed if p is not listed[3]]
    assert middle_first(listed[:2])[0] is listed[1]
    noisy = pilot(0.01, 0.4, 0.0, "noisy-dirichlet")
    assert middle_first([noisy, pilot(0.1, 0.45, 0.9)], "categorical")[0].likelihood == "categorical"
    assert middle_first([noisy, pilot(0.1, 0.45, 1.1)], "categorical")[0] is noisy  # clearly ahead


def test_a_pilot_is_scored_as_an_average_over_twice_as_many_samples_would_be() -> None:
    """Samples that are all noise around one answer: their NLL is a + b/samples, and a + b/(2 samples) is asked for."""
    torch.manual_seed(0)
    noisy = [nn.Linear(1000, 3, bias=False) for _ in range(12)]
    for layer in noisy:
        nn.init.normal_(layer.weight, std=1.5)
    held = ImageData.from_tensors(torch.eye(1000), torch.arange(1000) % 3)  # each example has noise of its own
    posterior = atmc.Posterior(noisy, noisy[0], likelihood=atmc.likelihoods.Categorical())
    many = math.log(3)  # no sample knows anything
    score = float(of_twice(posterior, held).mean())
    plain = float(nll_of_each(posterior, held).mean())
    assert score - many == pytest.approx((plain - many) / 2, rel=0.2)
    assert torch.equal(of_twice(posterior[:3], held), nll_of_each(posterior[:3], held))  # too few to tell


def test_the_held_out_part_is_a_fifth_and_always_the_same() -> None:
    x, y = blobs(100)
    held, rest = parts(ImageData.from_tensors(x, y))
    assert (len(held), len(rest)) == (20, 80)
    rows = {tuple(row) for row in held.images.tolist()} | {tuple(row) for row in rest.images.tolist()}
    assert len(rows) == 100
    assert parts(ImageData.from_tensors(x, y))[0].digest == held.digest


def test_what_cannot_be_chosen_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs(40)
    with pytest.raises(atmc.InputError, match="a fifth of 40 is too few"):
        atmc.sample(net(), data, epochs=5, temperature="auto", progress=None)
    with pytest.raises(atmc.InputError, match="must be a number or \"auto\", not 'automatic'"):
        atmc.sample(net(), data, epochs=5, temperature="automatic", progress=None)  # type: ignore[arg-type]
    with pytest.raises(atmc.InputError, match="sgd has no temperature"):
        atmc.sample(net(), data, "sgd", epochs=5, temperature="auto", progress=None)
    with pytest.raises(atmc.InputError, match="goes with sampler="):
        atmc.sample(net(), data, recipe=atmc.Recipe(), temperature="auto", progress=None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(atmc.InputError, match="in one process"):
        atmc.sample(net(), data, epochs=5, temperature="auto", progress=None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("labels", "more", "prior", "scale"),
    [
        (torch.arange(40) % 3, {}, "gaussian-limited", None),
        (torch.arange(40) % 3, {"temperature": 0.1}, "gaussian-limited", 7.1),  # 4 · 0.1^(-1/4)
        (torch.arange(40) % 3, {"prior": "gaussian"}, "gaussian", None),
        (torch.arange(40)[:, None] % 3, {"likelihood": atmc.likelihoods.Gaussian(1.0)}, "gaussian", None),
        (torch.randn(40, 1), {}, "gaussian-fan-in", None),
    ],
    ids=["classes", "below T = 1", "given", "whole numbers, a regression", "regression"],
)
def test_the_prior_where_nobody_names_one(labels: Any, more: Any, prior: str, scale: Any, tmp_path: Any) -> None:
    network = torch.nn.Linear(5, 1 if labels.ndim > 1 else 3)
    atmc.sample(network, (torch.randn(40, 5), labels), epochs=4, out=tmp_path / "run", progress=None, **more)
    target = RunDir.open(tmp_path / "run").recipe.target
    assert (target.prior, target.prior_scale) == (prior, scale)
