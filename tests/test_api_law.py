"""`atmc.sample` with its defaults where the posterior is known, a linear regression; and what it says otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from atmc import likelihoods, priors
from atmc.api.defaults import RATE, default_recipe
from atmc.api.sampling import sample
from atmc.common.errors import InputError
from atmc.data import ImageData
from atmc.engine.step_size_search import find_step_size
from atmc.posterior import Posterior
from atmc.storage.run_directory import RunDir
from atmc.target import Potential

SCALE = 0.5
Array = npt.NDArray[np.float64]


def regression(stretch: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, Array, Array]:
    """300 points in four dimensions, one of them `stretch` times the others; exact mean and covariance."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.3 + SCALE * torch.randn(300, generator=generator)
    x[:, 1] *= stretch
    design = torch.cat([x, torch.ones(300, 1)], 1).double().numpy()
    cov = np.linalg.inv(design.T @ design / SCALE**2 + np.eye(5))
    return x, y[:, None], cov @ design.T @ y.double().numpy() / SCALE**2, cov


def drawn(posterior: Posterior) -> Array:
    """Weights and bias of each sample."""
    states = [posterior.state(k) for k in range(len(posterior))]
    return torch.stack([torch.cat([s["weight"].flatten(), s["bias"]]) for s in states]).double().numpy()


def line() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


@pytest.mark.parametrize(("recipe", "stretch"), [("atmc", 1.0), ("atmc", 10.0), ("sghmc", 1.0)])
def test_a_linear_regression_has_its_posterior(recipe: str, stretch: float) -> None:
    x, y, mean, cov = regression(stretch)
    gaussian = likelihoods.Gaussian(SCALE)
    posterior = sample(line(), (x, y), recipe, epochs=100, chains=4, likelihood=gaussian, progress=None)
    found, sd = drawn(posterior), np.sqrt(np.diag(cov))
    ratios = found.var(0, ddof=1) / sd**2  # of 56 samples: ± 0.2 each
    assert 0.65 < ratios.mean() < 1.4
    assert ratios.min() > 0.3
    assert ratios.max() < 2.2
    assert np.abs((found.mean(0) - mean) / sd).max() < 0.7


def test_the_pace_is_that_of_the_data() -> None:
    def pace(stretch: float, batch: int = 18) -> Any:
        x, y, _, _ = regression(stretch)
        data = ImageData.from_tensors(x, y)

        def potential(model: nn.Module) -> Potential:
            return Potential(model, 300, priors.gaussian(1.0), likelihoods.Gaussian(SCALE))

        return find_step_size(line(), data, potential, batch, RATE, "cpu")

    usual = pace(1.0)
    # The variance of a batch's gradient of U is N² (E[x²]/σ²)/B for every weight; HEAT = 1/2 of D = 0.105/h.
    expected = 2 * 0.5 * 0.10536 * 300 / (300**2 / SCALE**2 / 18)
    assert usual.rate == pytest.approx(expected, rel=0.35)
    assert pace(1.0, batch=72).rate == pytest.approx(4 * usual.rate, rel=0.5)
    stiff = pace(100.0)  # curvature 100²/σ², and the walk must not overshoot
    assert stiff.start < 2 / (100**2 / SCALE**2)
    assert pace(1.0) == usual  # the same each time
    # Batches of all the data have no noise: half a step of Newton's in the most curved direction is what is left.
    x = torch.cat([regression(100.0)[0], torch.ones(300, 1)], 1).double()
    curved = float(torch.linalg.eigvalsh(x.T @ x / 300 / SCALE**2)[-1])
    assert pace(100.0, batch=300).rate == pytest.approx(0.5 / curved, rel=0.05)


def test_the_walk_leaves_modes_and_weights_alone() -> None:
    x, y, _, _ = regression()
    seen = []

    class Frozen(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            seen.append(self.training)
            return super().forward(input)

    model = Frozen(4, 1).eval()
    before = model.weight.detach().clone()

    def potential(copy: nn.Module) -> Potential:
        return Potential(copy, 300, priors.gaussian(1.0), likelihoods.Gaussian(SCALE))

    find_step_size(model, ImageData.from_tensors(x, y), potential, 18, RATE, "cpu")
    assert not any(seen)
    assert torch.equal(model.weight, before)


def test_a_longer_call_goes_on_with_the_run(tmp_path: Path) -> None:
    x, y, _, _ = regression()
    first = sample(line(), (x, y), epochs=20, out=tmp_path, likelihood=likelihoods.Gaussian(SCALE), progress=None)
    before = RunDir.open(tmp_path).recipe
    longer = sample(line(), (x, y), epochs=45, out=tmp_path, likelihood=likelihoods.Gaussian(SCALE), progress=None)
    assert np.array_equal(drawn(longer)[: len(first)], drawn(first))
    assert len(longer) > len(first)
    assert RunDir.open(tmp_path).recipe.sampler == before.sampler


def test_more_epochs_give_more_samples() -> None:
    plans = [default_recipe("atmc", 600, epochs).schedule for epochs in (100, 400, 2000)]
    kept = [(plan.epochs - plan.burn_in_epochs) // plan.cycle_epochs for plan in plans]
    assert kept[0] < kept[1] < kept[2]
    assert all(plan.warm_start_epochs == plan.epochs // 10 for plan in plans)


def test_a_network_in_float64_is_told_of() -> None:
    x, y, _, _ = regression()
    with pytest.raises(InputError, match=r"model\.float\(\)"):
        sample(line().double(), (x.double(), y.double()), epochs=5, likelihood=likelihoods.Gaussian(SCALE))


def test_gradients_may_be_off_outside() -> None:
    x, y, _, _ = regression()
    with torch.no_grad():
        assert sample(line(), (x, y), epochs=5, likelihood=likelihoods.Gaussian(SCALE), progress=None)


def test_a_chain_that_is_not_at_its_temperature_is_told_of(tmp_path: Path) -> None:
    x, y, _, _ = regression()
    fast = ["sampler.speed=0.05", "sampler.max_speed=0.17"]
    with pytest.warns(UserWarning, match=r"times the temperature it was asked for.*atmc doctor '.*my run' says"):
        sample(
            line(), (x, y), "sghmc", epochs=30, out=tmp_path / "my run", likelihood=likelihoods.Gaussian(SCALE),
            overrides=fast, progress=None,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prior": 1.0}, r"atmc\.priors\.gaussian"),
        ({"epochs": 1.5}, "whole number"),
        ({"epochs": 0}, "at least 1"),
        ({"data": torch.utils.data.TensorDataset(torch.zeros(3, 4), torch.zeros(3))}, r"pass y\[:, None\]"),
    ],
)
def test_mistakes_have_one_clear_line(arguments: dict[str, Any], words: str) -> None:
    x, y, _, _ = regression()
    given = {"data": (x, y), "epochs": 5, "likelihood": likelihoods.Gaussian(SCALE), "progress": None, **arguments}
    with pytest.raises(InputError, match=words):
        sample(line(), **given)
