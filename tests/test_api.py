"""`atmc.sample` on networks and data of one's own."""

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atmc import likelihoods, priors
from atmc.api.defaults import default_recipe
from atmc.api.sampling import sample
from atmc.common.errors import InputError, RunError
from atmc.data import ImageData
from atmc.nn import mlp
from atmc.storage.run_directory import RunDir


def moons(n: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two interleaved half circles."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    angle = torch.rand(n, generator=generator) * torch.pi
    x = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    x[y == 1] = torch.tensor([1.0, 0.4]) - x[y == 1]
    return x + 0.1 * torch.randn(n, 2, generator=generator), y


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def test_three_lines(tmp_path: Path) -> None:
    x, y = moons()
    model = network()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    posterior = sample(model, (x, y), sampler="atmc", epochs=60, out=tmp_path / "mine", progress=None)
    prediction = posterior.predict(moons(seed=1)[0])
    assert len(posterior) >= 10
    assert float((torch.as_tensor(prediction.label) == y).double().mean()) > 0.9
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    found = RunDir.open(tmp_path / "mine")
    assert found.recipe.model.name == "custom"
    with pytest.raises(InputError, match=r"Sequential.*pass it as model="):
        found.model()


def test_the_same_call_goes_on_with_the_run(tmp_path: Path) -> None:
    x, y = moons()
    whole = sample(network(), (x, y), epochs=20, out=tmp_path / "whole", progress=None)
    with pytest.raises(RunError, match=r"out of time at epoch \d of \d+, 0 samples; the same call goes on"):
        sample(network(), (x, y), epochs=20, out=tmp_path / "run", time_budget=1e-3, progress=None)
    with pytest.raises(RunError, match="give a larger time_budget"):
        sample(network(), (x, y), epochs=20, time_budget=1e-3, progress=None)
    posterior = sample(network(), (x, y), epochs=20, out=tmp_path / "run", progress=None)
    assert len(posterior) == len(whole)
    for k in range(len(whole)):
        assert all(torch.equal(posterior.state(k)[name], tensor) for name, tensor in whole.state(k).items())


def test_going_on_without_the_test_data_is_told_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Scores are of all samples: new ones without predictions take them away until they are evaluated, too."""

    def told(epochs: int, **more: Any) -> list[str]:
        recwarn.clear()
        sample(network(), moons(), epochs=epochs, out=tmp_path / "run", progress=None, **more)
        return [str(w.message) for w in recwarn if "test=" in str(w.message)]

    def splits() -> list[str]:
        return RunDir.open(tmp_path / "run").splits

    test = moons(50, 3)
    assert told(20, test=test) == []
    assert told(20) == []  # only opened
    assert splits() == ["test"]
    (said,) = told(30)
    assert "run was evaluated on test data, and its new samples are not" in said
    assert "pass test= again" in said
    assert splits() == []
    assert told(30) == []
    samples = RunDir.open(tmp_path / "run").bank.hashes()
    assert told(30, test=test) == []  # what the warning says
    assert splits() == ["test"]
    assert RunDir.open(tmp_path / "run").bank.hashes() == samples
    assert told(40, test=test) == []
    sample(network(), moons(), epochs=20, out=tmp_path / "bare", progress=None)
    recwarn.clear()
    sample(network(), moons(), epochs=30, out=tmp_path / "bare", progress=None)
    assert not [w for w in recwarn if "test=" in str(w.message)], "it never had any"


def test_fewer_epochs_than_a_run_has_made_are_refused_with_those_it_has(tmp_path: Path) -> None:
    for epochs in (20, 30):
        sample(network(), moons(), epochs=epochs, out=tmp_path, progress=None)
    with pytest.raises(
        InputError, match=r"is set to 30 epochs of 16 steps, not 20, .*: pass epochs=30 to go on with it"
    ):
        sample(network(), moons(), epochs=20, out=tmp_path, progress=None)
    sample(network(), moons(), epochs=30, out=tmp_path, progress=None)


def test_a_prior_that_is_a_rule_is_called_so_where_it_is_refused(tmp_path: Path) -> None:
    more: dict[str, Any] = {"epochs": 10, "progress": None}
    rule = priors.gaussian(1.0, fan_in=True)
    sample(network(), moons(), out=tmp_path / "named", **more)
    with pytest.raises(InputError) as refused:
        sample(network(), moons(), out=tmp_path / "named", prior=rule, **more)
    said = (
        "named was begun with target.prior = 'gaussian-limited', not with the rule that prior= gives now: "
        "pass prior='gaussian-limited'"
    )
    assert said in str(refused.value)
    sample(network(), moons(), out=tmp_path / "named", prior="gaussian-limited", **more)
    sample(network(), moons(), out=tmp_path / "ruled", prior=rule, **more)
    with pytest.raises(
        InputError, match=r"begun with a rule given in Python as prior=, not with target\.prior = 'laplace'"
    ):
        sample(network(), moons(), out=tmp_path / "ruled", prior="laplace", **more)
    with pytest.raises(InputError, match="needs the rule itself: pass it to"):
        sample(network(), moons(), out=tmp_path / "ruled", **more)
    sample(network(), moons(), out=tmp_path / "ruled", prior=rule, **more)


def test_without_a_folder_the_samples_are_in_memory() -> None:
    x, y = moons(60)
    posterior = sample(network(), (x.numpy().astype(np.float64), y.numpy()), epochs=4, chains=2, progress=None)
    assert set(posterior.chains) == {0, 1}
    starts = {k: posterior.chains.index(k) for k in (0, 1)}
    first, second = (posterior.state(i)["0.weight"] for i in starts.values())
    assert (first - second).abs().max() > 0.1  # the second chain begins elsewhere
    assert posterior.predict(x).probs.shape == (60, 2)


def test_regression_from_floating_labels() -> None:
    x = torch.linspace(-1, 1, 80)[:, None]
    y = torch.sin(3 * x)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    posterior = sample(model, (x, y), epochs=100, likelihood=likelihoods.Gaussian(0.1), test=(x, y), progress=None)
    mean = torch.stack([member(x).detach() for member in posterior]).mean(0)
    assert float((mean - y).square().mean().sqrt()) < 0.3


@pytest.mark.parametrize("name", ["sgnht", "sghmc", "sgld", "sgd"])
def test_other_samplers_by_name(name: str) -> None:
    x, y = moons()
    posterior = sample(network(), (x, y), sampler=name, epochs=30, progress=None)
    assert len(posterior) == 1 if name == "sgd" else len(posterior) > 5
    assert float((torch.as_tensor(posterior.predict(x).label) == y).double().mean()) > 0.75


def test_own_prior_likelihood_and_overrides(tmp_path: Path) -> None:
    x, y = moons()
    rule = priors.gaussian(0.5).override(priors.Laplace(1.0), name="bias")
    sample(
        network(),
        ImageData.from_tensors(x, y),
        epochs=4,
        out=tmp_path / "run",
        prior=rule,
        likelihood=likelihoods.NoisyDirichlet(0.1),
        temperature=0.5,
        overrides=["sampler.inertia=0.01", "run.threads=1"],
        test=moons(50, 3),
        progress=None,
    )
    recipe = RunDir.open(tmp_path / "run").recipe
    assert (recipe.target.prior, recipe.target.likelihood) == ("custom", "noisy-dirichlet")
    assert recipe.target.likelihood_options == {"alpha_eps": 0.1}
    assert (recipe.sampler.temperature, recipe.sampler.inertia) == (0.5, 0.01)
    assert RunDir.open(tmp_path / "run").predictions("test").shape[1:] == (50, 2)


def test_a_recipe_file_and_a_named_data_set(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[sampler]\nname='sghmc'\nspeed=3e-3\nmomentum=0.9\n[schedule]\nepochs=2\ncycle_epochs=1\n")
    model = mlp(2, 8, 10, 1, 8)
    posterior = sample(model, "digits", recipe=file, out=tmp_path / "run", progress=None)
    assert len(posterior) == 2
    assert RunDir.open(tmp_path / "run").predictions("test").shape == (2, 500, 10)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(nn.functional.dropout(x, 0.5))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "BatchNorm1d in training mode"),
        (nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2)), "Dropout"),
        (Functional(), "noise"),
        (nn.Sequential(nn.Linear(3, 2)), r"does not take examples of shape \[2\]"),
        (nn.Sequential(nn.Linear(2, 1)), "label 1 .* out of range"),
    ],
)
def test_networks_that_cannot_be_sampled_are_named(model: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        sample(model, moons(), epochs=2, progress=None)
    assert "\n" not in str(caught.value)


def test_frozen_batchnorm_can_be_sampled_and_stays_frozen() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).eval()
    posterior = sample(model, moons(), epochs=2, progress=None)
    assert torch.equal(posterior.state(0)["1.running_mean"], torch.zeros(4))


class Idle(nn.Module):
    """A network with a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(2, 2), nn.Parameter(torch.zeros(50))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def test_a_parameter_that_the_data_do_not_reach_is_drawn_from_its_prior() -> None:
    posterior = sample(Idle(), moons(), epochs=100, prior=priors.gaussian(0.5), progress=None)
    drawn = torch.stack([posterior.state(k)["idle"] for k in range(len(posterior))])
    assert 0.3 < float(drawn[-5:].std()) < 0.7


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((torch.zeros(3, 2), torch.zeros(2, dtype=torch.long)), "3 inputs and 2 labels"),
        ((torch.full((4, 2), float("nan")), torch.zeros(4, dtype=torch.long)), "NaN"),
        (5, "must be"),
        ("digitz", "digits"),
    ],
)
def test_data_that_make_no_sense(data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        sample(network(), data, epochs=2, progress=None)


def test_a_step_takes_all_data_where_that_is_cheap(tmp_path: Path) -> None:
    x = torch.randn(6400, 2, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0] > 0).long()
    how: Any = {"epochs": 16, "progress": None, "out": tmp_path / "run"}
    sample(nn.Linear(2, 2), data, **how)
    made = RunDir.open(tmp_path / "run").recipe
    assert (made.data.batch_size, made.schedule.epochs, made.sampler.noise_rank) == (6400, 1600, 0)
    with pytest.raises(InputError, match="is set to 16 epochs of 100 steps, not 1"):
        sample(nn.Linear(2, 2), data, **{**how, "epochs": 1})
    sample(nn.Linear(2, 2), data, **{**how, "epochs": 1, "out": tmp_path / "short"})
    assert RunDir.open(tmp_path / "short").recipe.data.batch_size == 64


def test_defaults_scale_with_the_data() -> None:
    small, large = default_recipe("atmc", 100), default_recipe("atmc", 50_000)
    assert small.data.batch_size == 100  # all of them: no mini-batch noise, constant steps, less friction
    assert (small.schedule.kind, small.sampler.momentum) == ("constant", 0.99)
    assert default_recipe("atmc", 100, batch=10).schedule.kind == "cyclic"
    assert default_recipe("atmc", 800).data.batch_size == 50
    assert (large.data.batch_size, large.schedule.kind, large.sampler.momentum) == (64, "cyclic", 0.9)
    assert small.sampler.speed is not None
    assert large.sampler.speed is not None
    assert small.sampler.speed**2 * 100 == pytest.approx(large.sampler.speed**2 * 50_000)
    for epochs in (1, 2, 3, 7, 50, 100):
        plan = default_recipe("atmc", 1000, epochs).schedule
        assert plan.burn_in_epochs < epochs


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_three_lines_on_a_gpu(where: str, tmp_path: Path) -> None:
    """Network and data may be on the GPU or not: the chain is there, and predictions are where their inputs are."""
    x, y = (part.to(where) for part in moons())
    held_x, held_y = (part.to(where) for part in moons(seed=1))
    posterior = sample(
        network().to(where), (x, y), epochs=60, test=(held_x, held_y), out=tmp_path, device="cuda", progress=None
    )
    prediction = posterior.predict(held_x)
    assert torch.as_tensor(prediction.probs).device.type == where
    assert float((torch.as_tensor(prediction.label) == held_y).double().mean()) > 0.9
    assert posterior.evaluate(held_x, held_y)["predictive"]["accuracy"] > 0.9
    assert RunDir.open(tmp_path).predictions("test").shape == (len(posterior), len(held_y), 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pictures_on_a_gpu() -> None:
    """Bytes are normalised on either device; floats in their scale are noticed there as well."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(128) % 2
    pictures = torch.randint(0, 100, (128, 3, 8, 8), dtype=torch.uint8, generator=generator)
    pictures[labels == 1, :, :4] += 100
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    posterior = sample(model, (pictures, labels), epochs=40, device="cuda", progress=None)
    for given in (pictures, pictures.cuda()):
        assert float((torch.as_tensor(posterior.predict(given).label).cpu() == labels).double().mean()) > 0.9
    with pytest.raises(InputError, match="not normalised"):
        posterior.predict(pictures.cuda().float())


@pytest.mark.parametrize("sampler", ["atmc", "sgnht", "sghmc", "sgld", "sgd"])
def test_the_loss_is_compiled_by_default(sampler: str) -> None:
    assert default_recipe(sampler, 1000).run.compile


def test_a_request_to_compile_is_answered_on_a_cpu() -> None:
    """A default is not a request, and says nothing there."""
    model, data = nn.Linear(4, 2), (torch.randn(16, 4), torch.arange(16) % 2)
    call = functools.partial(sample, model, data, epochs=1, batch_size=8, device="cpu", progress=None)
    with pytest.warns(UserWarning, match=r"run\.compile is for CUDA: on a CPU the network runs uncompiled"):
        call(overrides=["run.compile=true"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", r"run\.compile")
        call()
