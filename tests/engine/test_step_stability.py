"""A step far beyond the edge of stability is known before it is made: the edge, its measurement, what is said."""

import importlib.util
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atmc.common.errors import RunError
from atmc.data import ImageData
from atmc.diagnose.doctor import doctor
from atmc.engine.guessing import Guess, verdict
from atmc.engine.optimizer import build_optimizer
from atmc.engine.progress import Progress
from atmc.engine.run_data import RunData
from atmc.engine.runner import run
from atmc.engine.sample_predictions import Evaluator
from atmc.engine.step_stability import FAR, NEAR, StepStability
from atmc.recipe import load_recipe
from atmc.recipe.settings import Recipe, SamplerSection
from atmc.storage.run_directory import RunDir
from atmc.target import Potential, likelihoods, priors

CPU = torch.device("cpu")
SECTIONS = {
    "sgld": SamplerSection(name="sgld", lr=0.1, temperature=0.0),
    "sghmc": SamplerSection(name="sghmc", lr=0.1, mass=2.0, friction=8.0, temperature=0.0),
    "sghmc-strang": SamplerSection(name="sghmc", lr=0.1, mass=2.0, friction=8.0, temperature=0.0, integrator="strang"),
    "sgnht": SamplerSection(name="sgnht", lr=0.1, mass=2.0, friction=1.0, inertia=1.0, temperature=0.0),
    "atmc-speeds": SamplerSection(name="atmc", lr=1e-3, speed=0.02, momentum=0.9, inertia=1.0, temperature=0.0),
    "sgd": SamplerSection(name="sgd", lr=0.1, momentum=0.9),
}


class Listen(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("over", [0.98, 1.02])
def test_the_edge_is_where_a_quadratic_begins_to_grow(name: str, over: float) -> None:
    """At T = 0 on U = λθ²/2, with λ from the formula: bounded just before the edge, unbounded just beyond it."""
    section, examples = SECTIONS[name], 7
    theta = nn.Parameter(torch.ones(1, dtype=torch.float64))
    lr = torch.tensor(section.lr, dtype=torch.float64)
    optimizer = build_optimizer(Recipe(sampler=section), [("theta", theta)], lr, section.temperature, seed=0)
    edge = StepStability(section, section.lr, examples)
    edge.curvature = 1.0
    stiffness = over / edge.overshoot(optimizer)  # of U/m
    mass = optimizer.param_groups[0].get("mass", 1.0)
    for _ in range(500):
        theta.grad = stiffness * mass * theta.detach() / (examples if section.name == "sgd" else 1)
        optimizer.step()
    size = float(theta.detach().abs())
    assert size < 1.0 if over < 1 else size > 1e3


class Line(nn.Module):
    """θ·x, under a Gaussian likelihood: U is a quadratic whose Hessian is known."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 1, bias=False)
        self.second = nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.first(x.flatten(1)[:, :3]) + self.second(x.flatten(1)[:, 3:])
        return out


@pytest.mark.parametrize("masses", [None, [0.5, 4.0]])
def test_the_curvature_is_that_of_the_potential_over_the_mass(masses: list[float] | None) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(200, 1, 1, 5), Line()
    data = ImageData("line", "train", x, torch.randn(200, 1), (), (), (), "")
    known = Potential(model, 1000, priors.gaussian(0.5), likelihoods.Gaussian(0.3))
    evaluator = Evaluator(Line(), known.likelihood, {}, CPU, 500, probe=data)
    section = SamplerSection(name="sghmc", lr=0.1, mass=2.0, friction=1.0)
    named = list(model.named_parameters())
    optimizer = build_optimizer(Recipe(sampler=section), named, torch.tensor(0.1), 1.0, 0, masses)
    before = [p.detach().clone() for p in model.parameters()]
    found = StepStability(section, 0.1, 1000)
    found.measure(known, optimizer, evaluator)

    few = x.flatten(1)[torch.linspace(0, 199, 200).round().long()][::4].double()
    hessian = 1000 * few.T @ few / len(few) / 0.3**2 + torch.eye(5, dtype=torch.float64) / 0.5**2
    root = torch.tensor([(masses or [2.0, 2.0])[0]] * 3 + [(masses or [2.0, 2.0])[1]] * 2, dtype=torch.float64) ** -0.5
    exact = float(torch.linalg.eigvalsh(root[:, None] * hessian * root)[-1])
    assert found.curvature == pytest.approx(exact, rel=0.1)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))  # a copy was moved about


def test_nothing_is_said_where_it_does_not_tell(tiny: Any, change: Any, tmp_path: Path) -> None:
    """BatchNorm makes the loss a function of the batch; rmsprop changes the step as it goes along."""
    plain = {"mass": None, "friction": None, "inertia": None}
    normed = {"name": "resnet", "depth": 8, "width": 4, "norm": "bn"}
    huge = {"explode": 1e30, "worst_sample": math.inf}
    for number, recipe in enumerate(
        (
            change(tiny, model=normed, target={"prior": "none"}, sampler={"name": "sgd", "lr": 1e2, **plain}, run=huge),
            change(tiny, sampler={"name": "sgld", "preconditioner": "rmsprop", "lr": 1.0, **plain}, run=huge),
        )
    ):
        listen = Listen()
        run(change(recipe, schedule={"epochs": 2}), tmp_path / str(number), progress=listen)
        assert not any("far too large" in note for note in listen.notes)


def divergence() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "divergence.py"
    spec = importlib.util.spec_from_file_location("divergence_of_steps", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["sgld", "sghmc", "sgnht", "atmc", "sgd"])
def test_a_run_far_beyond_says_so_before_its_first_step_and_the_doctor_after(
    name: str, change: Any, tmp_path: Path
) -> None:
    recipe = next(r for r in divergence().recipes(10) if r.sampler.name == name)
    scale = divergence().SAMPLERS[name][0]
    listen, folder = Listen(), tmp_path / "run"
    with pytest.raises(RunError, match=r"lower sampler\.lr or the speeds to .* of what they are"):
        run(change(recipe, sampler={"lr": 3e3 * scale}), folder, progress=listen)
    told = [note for note in listen.notes if "the step size is far too large" in note]
    assert told == listen.notes[:1]  # once, and before anything has diverged
    assert f"sampler.lr = {3e3 * scale:g}" in told[0]
    assert "\n" not in told[0]
    found = RunDir.open(folder)
    [row] = [row for row in found.metrics() if row["event"] == "unstable"]
    assert row["step"] == 0
    assert row["overshoot"] > FAR
    first = doctor(found)[0]
    stable = row["stable_share"] * 3e3 * scale
    assert f"sampler.lr={stable:.4g}" in first.action

    # What it advises is stable: nothing is said of that, and nothing diverges.
    again = Listen()
    assert run(change(recipe, sampler={"lr": stable}), tmp_path / "again", progress=again).status == "done"
    assert again.notes == []


def test_a_chain_that_diverges_in_its_warm_start_has_no_step_of_the_sampler_to_judge() -> None:
    section = SECTIONS["sghmc"]
    edge = StepStability(section, section.lr, 7)
    edge.curvature = 1e9
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    assert math.isnan(edge.overshoot(sgd))
    assert edge.stable_share(sgd) is None


def test_the_advised_share_gives_the_overshoot_that_it_promises() -> None:
    for section in SECTIONS.values():
        optimizer = build_optimizer(
            Recipe(sampler=section), [("t", torch.zeros(1))], torch.tensor(section.lr), 1.0, seed=0
        )
        stability = StepStability(section, section.lr, 7)
        stability.curvature = 1.0
        stability.curvature = 1e4 / stability.overshoot(optimizer)
        share = stability.stable_share(optimizer)
        assert share is not None
        if section.speed is None:
            left = stability.overshoot(optimizer, share)
        else:
            left = 1e4 * share**2  # of speed²
        assert left == pytest.approx(NEAR, rel=0.12)
        stability.curvature *= 1e-3  # half of FAR
        assert stability.stable_share(optimizer) is None
        assert stability.complaint(optimizer) is None


def test_no_sample_that_is_no_better_than_guessing_where_the_step_is_unstable(change: Any, tmp_path: Path) -> None:
    """ATMC's speed limit keeps such a chain from exploding; what it visits at random is no posterior all the same."""
    recipe = next(r for r in divergence().recipes(10) if r.sampler.name == "atmc" and r.schedule.kind == "constant")
    found: list[float] = []
    for seed in range(4):
        folder = tmp_path / str(seed)
        with suppress(RunError):
            run(change(recipe, sampler={"lr": 0.56}, seed=seed), folder, progress=None)
        rows = RunDir.open(folder).metrics()
        reasons = [row["reason"] for row in rows if row["event"] == "rollback" and "overshoots" in row["reason"]]
        found += [float(reason.split(" examples is ")[1].split(",")[0]) for reason in reasons]
    assert min(found) < 3 * math.log(10)  # run.worst_sample alone would have kept it


def test_the_verdict_of_an_unstable_step() -> None:
    known = Guess(2.3, 2.3)
    scores = {"training": {"nll": 2.5}, "test": {"nll": 3.0}}
    assert verdict(scores, known, 3.0, overshoot=math.nan) is None
    assert verdict(scores, known, 3.0, overshoot=FAR) is None
    refused = verdict(scores, known, 3.0, overshoot=1.1 * FAR)
    assert refused is not None
    assert "overshoots 22 times too far" in refused
    assert verdict(scores, known, math.inf, overshoot=1e6) is None  # the recipe wants to keep all
    assert verdict({"training": {"nll": 2.0}, "test": {"nll": 3.0}}, known, 3.0, overshoot=1e6) is None  # it overfits


def test_one_estimate_a_run_that_changes_no_bit_and_survives(
    tiny: Any, change: Any, tmp_path: Path, fingerprint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float | None] = []
    measure = StepStability.measure

    def count(self: StepStability, *words: Any) -> None:
        measure(self, *words)
        measured.append(self.curvature)

    recipe = change(tiny, chains=3, schedule={"warm_start_epochs": 2})
    with monkeypatch.context() as patch:
        patch.setattr(StepStability, "measure", lambda self, *words: None)
        run(recipe, tmp_path / "without", progress=None)
    monkeypatch.setattr(StepStability, "measure", count)
    assert run(recipe, tmp_path / "run", time_budget=0.0, progress=None).status == "budget"
    run(recipe, tmp_path / "run", progress=None)
    assert len(measured) == 1
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "without")
    longer = change(recipe, schedule={"epochs": 12})
    run(longer, tmp_path / "run", progress=None)
    assert len(measured) == 1


@pytest.mark.parametrize("name", ["digits-atmc", "digits-sgd"])
def test_the_recipes_of_the_demo_are_not_called_unstable(name: str, tmp_path: Path) -> None:
    changes = ["schedule.epochs=20", "schedule.burn_in_epochs=0"] if name == "digits-atmc" else ["schedule.epochs=2"]
    listen = Listen()
    run(load_recipe(name, changes), tmp_path / "run", progress=listen)
    assert listen.notes == []


def test_data_of_a_user_s_own_without_a_test_set(tmp_path: Path, tiny: Any, change: Any) -> None:
    """The examples come from the training set, so none have to be evaluated."""
    recipe = change(tiny, sampler={"lr": 1e3}, run={"evaluate": [], "max_rollbacks": 0})
    listen = Listen()
    data = RunData(
        ImageData("own", "train", torch.randn(40, 1, 6, 6), torch.arange(40) % 3, ("a", "b", "c"), (), (), "x" * 64), {}
    )
    with pytest.raises(RunError):
        run(recipe, tmp_path / "run", progress=listen, data=data)
    assert "sampler.lr = 1000" in listen.notes[0]
