"""Reference posteriors by NUTS, against which `tests/law/test_nuts.py` holds the samplers.

    python -m venv .venv-nuts && .venv-nuts/bin/pip install numpyro scikit-learn
    .venv-nuts/bin/python benchmarks/nuts_reference.py --out tests/law/nuts_reference.npz

Two posteriors, four chains each. *logistic*: breast cancer (569 examples, 30 standardised inputs and an intercept),
Normal(0, 1) prior; mean and covariance of the weights. *network*: 1–50–1 with tanh on 60 points in two clusters with a
gap between them, Normal(0, 1) prior on every weight, Gaussian noise of scale 0.1; mean and standard deviation of the
network's output on a grid, which, unlike the weights, can be compared between modes. The file also has the data of
both, and the largest R-hat and smallest effective sample size. Needs JAX, so it is no part of the tests.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

HIDDEN, NOISE = 50, 0.1


def logistic(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def outputs(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return jnp.tanh(x[:, None] * w1 + b1) @ w2 + b2


def network(x: Any, y: Any) -> None:
    normal = dist.Normal(0, 1)
    w1, b1, w2 = (numpyro.sample(name, normal.expand([HIDDEN]).to_event(1)) for name in ("w1", "b1", "w2"))
    b2 = numpyro.sample("b2", normal)
    numpyro.sample("y", dist.Normal(outputs(x, w1, b1, w2, b2), NOISE).to_event(1), obs=y)


def curve() -> tuple[Any, Any, Any]:
    """Sixty points of a sine in two clusters, and the grid on which predictions are compared."""
    rng = np.random.default_rng(0)
    x = np.sort(np.concatenate([rng.uniform(-2, -0.7, 30), rng.uniform(0.5, 2, 30)]))
    y = np.sin(2 * x) + NOISE * rng.standard_normal(60)
    return x, y, np.linspace(-3.5, 3.5, 57)


def draw(model: Any, seed: int, warmup: int, samples: int, *data: Any) -> dict[str, Any]:
    chains = MCMC(NUTS(model), num_warmup=warmup, num_samples=samples, num_chains=4, progress_bar=False)
    chains.run(jax.random.PRNGKey(seed), *data)
    found: dict[str, Any] = chains.get_samples(group_by_chain=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--samples", type=int, nargs=2, default=[20_000, 4_000], help="of each chain: logistic, network"
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    inputs = (raw.data - raw.data.mean(0)) / raw.data.std(0)
    inputs = np.concatenate([np.ones((len(inputs), 1)), inputs], axis=1)
    w = np.asarray(draw(logistic, 0, 2_000, options.samples[0], jnp.asarray(inputs), jnp.asarray(raw.target))["w"])
    flat = w.reshape(-1, w.shape[-1])
    kept = {
        "logistic_mean": flat.mean(0),
        "logistic_cov": np.cov(flat.T),
        "logistic_rhat": split_gelman_rubin(w).max(),
        "logistic_ess": effective_sample_size(w).min(),
    }
    print({key: value for key, value in kept.items() if value.ndim == 0}, flush=True)

    x, y, grid = curve()
    found = draw(network, 1, 3_000, options.samples[1], jnp.asarray(x), jnp.asarray(y))
    args = [found[name].reshape(-1, *found[name].shape[2:]) for name in ("w1", "b1", "w2", "b2")]
    predicted = np.asarray(jax.lax.map(lambda sample: outputs(jnp.asarray(grid), *sample), tuple(args)))
    chains = predicted.reshape(4, -1, len(grid))
    kept |= {
        "network_x": x,
        "network_y": y,
        "network_grid": grid,
        "network_mean": predicted.mean(0),
        "network_sd": predicted.std(0),
        "network_rhat": split_gelman_rubin(chains).max(),
        "network_ess": effective_sample_size(chains).min(),
    }
    print({key: value for key, value in kept.items() if np.ndim(value) == 0}, flush=True)
    np.savez_compressed(options.out, **kept)


if __name__ == "__main__":
    numpyro.set_host_device_count(4)  # a core for each chain
    main()
