"""Regression through `atmc.sample`: the law of the noise, the user's units, what is kept, and refusals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import atmc
from atmc.engine.optimizer_state import new_adam, optimizer_state, restore_optimizer_
from atmc.storage.run_directory import RunDir

QUIET = {"progress": None}


def line(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    return x, 700 + 30 * x[:, 0] - 12 * x[:, 1] + 15 * torch.randn(count, generator=generator)


def net(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs))


def exact_log_scale(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of log σ for a linear network, its weights integrated out, on a grid."""
    t = ((y - y.mean()) / y.std(unbiased=False)).double().numpy()
    design = np.column_stack([x.double().numpy(), np.ones(len(t))])
    prior = np.array([0.5, 0.5, 1.0])  # Normal(0, 1/fan-in) on the weights, Normal(0, 1) on the bias
    grid = np.linspace(-3, 1, 801)
    log_p = []
    for s in grid:
        covariance = design @ np.diag(prior) @ design.T + math.exp(2 * s) * np.eye(len(t))
        sign, logdet = np.linalg.slogdet(covariance)
        assert sign > 0
        log_p.append(-0.5 * (t @ np.linalg.solve(covariance, t) + logdet) - 0.5 * (s / 3) ** 2)
    p = np.exp(np.array(log_p) - max(log_p))
    p /= p.sum()
    mean = float((p * grid).sum())
    return mean, float(np.sqrt((p * (grid - mean) ** 2).sum()))


def test_the_sampled_noise_has_its_posterior_law() -> None:
    """A linear network, whose noise has a posterior that a grid gives; full batches, so that nothing heats it."""
    x, y = line(30)
    mean, deviation = exact_log_scale(x, y)
    how = {"likelihood": "learned-noise", "batch_size": 30, "chains": 2, **QUIET}
    posterior = atmc.sample(nn.Linear(2, 1), (x, y), epochs=6000, **how)
    drawn = np.array([float(posterior.state(k)["log_scale"]) for k in range(len(posterior))])
    assert len(drawn) > 40
    # Neighbouring samples are hardly correlated here; a quarter of them is a cautious count.
    assert abs(drawn.mean() - mean) < 4 * deviation / math.sqrt(len(drawn) / 4)
    assert 0.6 < drawn.std() / deviation < 1.6


def test_answers_are_in_the_users_units_and_do_not_depend_on_them() -> None:
    x, y = line(60)
    plain = atmc.sample(net(), (x, y), epochs=60, batch_size=60, **QUIET)
    other = atmc.sample(net(), (x, 1e4 + 100 * y), epochs=60, batch_size=60, **QUIET)
    a, b = (p.regress(x) for p in (plain, other))
    assert a.mean.shape == (60,)
    torch.testing.assert_close(b.mean, 1e4 + 100 * a.mean, rtol=1e-3, atol=0)
    torch.testing.assert_close(b.std, 100 * a.std, rtol=2e-2, atol=0)
    assert 5 < float(a.std.mean()) < 60
    scores = [p.evaluate(x, t)["predictive"] for p, t in ((plain, y), (other, 1e4 + 100 * y))]
    assert scores[1]["rmse"] == pytest.approx(100 * scores[0]["rmse"], rel=0.02)
    assert scores[1]["nll"] == pytest.approx(scores[0]["nll"] + math.log(100), abs=0.02)
    assert scores[0]["rmse"] < 0.7 * float(y.std())


def test_a_run_keeps_it_and_goes_on_and_a_saved_one_needs_no_network(tmp_path: Path) -> None:
    x, y = line(60)
    how = {"epochs": 40, "batch_size": 60, "out": tmp_path / "run", "test": (x, y[:, None]), **QUIET}
    first = atmc.sample(net(), (x, y), **how)
    again = atmc.sample(net(), (x, y), **how)
    assert len(first) == len(again)
    longer = atmc.sample(net(), (x, y), **(how | {"epochs": 44}))
    assert len(longer) >= len(first)
    recipe = RunDir.open(tmp_path / "run").recipe
    assert recipe.target.likelihood == "input-noise"
    assert recipe.target.prior == "gaussian-fan-in"
    assert recipe.schedule.warm_start_optimizer == "adam"
    opened = atmc.Posterior.from_run(tmp_path / "run", net())
    torch.testing.assert_close(opened.regress(x).mean, longer.regress(x).mean)
    longer.save(tmp_path / "saved")
    loaded = atmc.Posterior.load(tmp_path / "saved")
    torch.testing.assert_close(loaded.regress(x).std, longer.regress(x).std)
    assert "Sequential" in repr(loaded)


@pytest.mark.parametrize("likelihood", ["heteroscedastic", atmc.likelihoods.Heteroscedastic(), "student-t"])
def test_other_noise_by_name_or_as_an_object(likelihood: object) -> None:
    x, y = line(80)
    outputs = 1 if likelihood == "student-t" else 2
    posterior = atmc.sample(net(outputs), (x, y), likelihood=likelihood, epochs=60, batch_size=80, **QUIET)
    found = posterior.evaluate(x, y)["predictive"]
    assert found["rmse"] < 0.8 * float(y.std())
    assert posterior.regress(x).mean.shape == (80,)


def test_several_targets_in_units_of_their_own() -> None:
    x, y = line(60)
    both = torch.stack([y, 0.001 * x[:, 0]], dim=1)
    posterior = atmc.sample(net(2), (x, both), epochs=60, batch_size=60, **QUIET)
    found = posterior.regress(x)
    assert found.mean.shape == (60, 2)
    assert abs(float(found.mean[:, 0].mean()) - 700) < 30
    assert float(found.std[:, 1].max()) < 0.01


def test_bad_input_is_one_line() -> None:
    x, y = line(40)
    with pytest.raises(atmc.InputError, match=r"needs 2: 1 for the target and 1 for the logarithm of its noise"):
        atmc.sample(net(1), (x, y), likelihood="heteroscedastic", epochs=5, **QUIET)
    with pytest.raises(atmc.InputError, match=r"outputs are \[40, 2\] and the targets \[40\]"):
        atmc.sample(net(2), (x, y), epochs=5, **QUIET)
    with pytest.raises(atmc.InputError, match="NaN or infinite values, first in example 3"):
        atmc.sample(net(), (x, torch.where(torch.arange(40) == 3, math.nan, y)), epochs=5, **QUIET)
    with pytest.raises(atmc.InputError, match=r"must be \[examples\] or \[examples, numbers\]"):
        atmc.sample(net(), (x, y[:, None, None]), epochs=5, **QUIET)
    with pytest.raises(atmc.InputError, match="unknown likelihood 'student'"):
        atmc.sample(net(), (x, y), likelihood="student", epochs=5, **QUIET)
    with pytest.raises(atmc.InputError, match=r"pass StudentT\(\)"):
        atmc.sample(net(), (x, y), likelihood=atmc.likelihoods.StudentT, epochs=5, **QUIET)


def test_the_adam_of_a_warm_start_goes_on_exactly() -> None:
    def steps(p: Tensor, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for k in range(first, last):
            p.grad = torch.sin(p + k)
            optimizer.step()

    lr = torch.tensor(0.1)
    whole, parts, plain = (torch.arange(5.0) for _ in range(3))
    adam = new_adam([("p", whole)], lr, 0.9)
    steps(whole, adam, 0, 7)
    before = new_adam([("p", parts)], lr, 0.9)
    steps(parts, before, 0, 4)
    kept = optimizer_state(before)
    after = new_adam([("p", parts)], lr, 0.9)
    restore_optimizer_(after, kept)
    steps(parts, after, 4, 7)
    assert torch.equal(whole, parts)
    steps(plain, torch.optim.Adam([plain], lr=0.1), 0, 7)
    torch.testing.assert_close(whole, plain)
