"""Gold tests on real data: mini-batch chains against NUTS (`benchmarks/nuts_reference.py` made the stored answer).

Logistic regression on breast cancer with mini-batches of 32, where the gradient noise of the 31 weights is strongly
correlated; and `atmc.sample` as it comes on a small regression network, whose predictions are compared.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atmc

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import minibatch_law

REFERENCE = np.load(Path(__file__).with_name("nuts_reference.npz"))
CHAINS, STEPS = 5, 6_000
BIAS = 0.03  # of a standard deviation, beside four standard errors over chains


def chains(rank: int, count: int = CHAINS) -> tuple[Any, Any]:
    """Of each chain: the mean over weights of its standard deviations' ratio to NUTS, and the stiffest variance's."""
    cov = REFERENCE["logistic_cov"]
    values, vectors = np.linalg.eigh(cov)
    found = [minibatch_law.moments("logistic", "ATMC", rank, 1.0, STEPS, seed)["second"] for seed in range(count)]
    ratios = np.array([np.mean(np.diagonal(second) / np.diagonal(cov)) for second in found])
    stiff = np.array([vectors[:, 0] @ second @ vectors[:, 0] / values[0] for second in found])
    return ratios, stiff


def test_the_reference_has_converged() -> None:
    assert REFERENCE["logistic_rhat"] < 1.01
    assert REFERENCE["logistic_ess"] > 10_000
    assert REFERENCE["network_rhat"] < 1.05
    assert REFERENCE["network_ess"] > 200


def test_logistic_regression_with_mini_batches_is_nuts() -> None:
    ratios, stiff = chains(16)
    error = ratios.std(ddof=1) / math.sqrt(CHAINS)
    assert abs(ratios.mean() - 1) < 2 * BIAS + 4 * error
    assert error < 0.05
    assert abs(stiff.mean() - 1) < 0.15


def test_thermostats_alone_are_far_off_there() -> None:
    ratios, stiff = chains(0, 3)
    assert stiff.mean() > 3
    assert ratios.mean() < 0.85


@pytest.mark.slow
def test_a_small_network_as_it_comes_predicts_as_nuts() -> None:
    """Sixty points in two clusters: the standard deviation at the data, in the gap and outside."""
    x, y, grid = (torch.tensor(REFERENCE[f"network_{n}"], dtype=torch.float32)[:, None] for n in ("x", "y", "grid"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
    likelihood, prior = atmc.likelihoods.Gaussian(0.1), atmc.priors.gaussian(1.0)
    posterior = atmc.sample(model, (x, y), likelihood=likelihood, prior=prior, progress=None)
    found = posterior.regress(grid).epistemic.sqrt().flatten().numpy()
    ratio, at = found / REFERENCE["network_sd"], grid.flatten().numpy()
    data = (np.abs(at + 1.35) < 0.6) | (np.abs(at - 1.25) < 0.7)
    gap, outside = np.abs(at + 0.1) < 0.4, np.abs(at) > 2.5
    for where in (data, gap, outside):
        assert 0.85 < ratio[where].mean() < 1.15
