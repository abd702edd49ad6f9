"""The mixture against SciPy: distribution function, quantiles, moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from atmc import likelihoods
from atmc.common.errors import InputError
from atmc.posterior import Posterior
from atmc.posterior.mixture import Mixture, quantile, student_cdf
from atmc.posterior.regression import Estimate


@pytest.mark.parametrize("df", [2.1, 4.0, 30.0])
def test_the_distribution_function_of_students_t(df: float) -> None:
    z = torch.tensor([-1e4, -50.0, -3.0, -0.1, 0.0, 0.7, 8.0, 1e3], dtype=torch.float64)
    np.testing.assert_allclose(student_cdf(z, df), stats.t.cdf(z.numpy(), df), rtol=1e-8)


@pytest.mark.parametrize("df", [None, 3.0])
def test_quantiles_and_moments_are_those_of_draws_and_of_scipy(df: float | None) -> None:
    rng = np.random.default_rng(0)
    f, sigma = torch.from_numpy(rng.normal(size=(3, 5, 2))), torch.from_numpy(rng.uniform(0.1, 2, (3, 5, 2)))
    w = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    mixture = Mixture(f, None, sigma, w, df)
    law = stats.norm if df is None else stats.t(df)
    for share in (0.001, 0.05, 0.5, 0.99):
        found = quantile(mixture, share)
        under = sum(float(w[k]) * law.cdf(((found - f[k]) / sigma[k]).numpy()) for k in range(3))
        np.testing.assert_allclose(under, share, rtol=1e-6)
    wider = 1.0 if df is None else df / (df - 2)
    np.testing.assert_allclose(mixture.aleatoric, (w[:, None, None] * wider * sigma**2).sum(0))
    y = torch.from_numpy(rng.normal(size=(5, 2)))
    np.testing.assert_allclose(
        mixture._replace(targets=y).log_density(), law.logpdf(((y - f) / sigma).numpy()) - sigma.log().numpy()
    )


def test_an_interval_holds_the_share_it_says_in_the_shape_of_the_targets() -> None:
    law = likelihoods.StudentT(center=10.0, spread=4.0, df=4)
    posterior = Posterior(
        [law.network(nn.Linear(3, 1)) for _ in range(4)], law.network(nn.Linear(3, 1)), likelihood=law
    )
    x = torch.randn(6, 3)
    found = posterior.regress(x, device="cpu")
    low, high = found.interval(0.5)
    assert low.shape == high.shape == found.mean.shape == (6,)
    assert found.mixture is not None
    held = found.mixture.below(high[:, None]) - found.mixture.below(low[:, None])
    torch.testing.assert_close(held, torch.full((6, 1), 0.5, dtype=torch.float64))
    with pytest.raises(InputError, match="between 0 and 1"):
        found.interval(90)
    with pytest.raises(InputError, match=r"posterior\.regress"):
        Estimate(found.mean, found.aleatoric, found.epistemic, 4).interval()
