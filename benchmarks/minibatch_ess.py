"""Effective samples per gradient and per second on logistic regression: ATMC beside NUTS and the SGHMC of `posteriors`.

    python benchmarks/minibatch_ess.py --out results/minibatch --only atmc
    python -m venv .venv-nuts && .venv-nuts/bin/pip install numpyro posteriors scikit-learn arviz
    PYTHONPATH=src .venv-nuts/bin/python benchmarks/minibatch_ess.py --out results/minibatch --only nuts posteriors

Breast cancer, 569 examples, 31 weights, Normal(0, 1) prior, T = 1, one thread. Every method has four chains that begin
near the mode; a tenth of the steps is burn-in (NUTS: its own 500 steps of warm-up). A row has the smallest effective
sample size of a weight, per 1,000 gradients of all data (a batch of 32 counts 32/569) and per second of processor time
(NUTS: after its warm-up), and the smallest, mean and largest ratio of a weight's standard deviation to the stored
reference: an effective sample of the wrong law is worth nothing. Momentum is 0.97 with batches of 32, and 0.99 with all
data.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atmc.diagnose.convergence import ess
from minibatch_law import PROBLEMS, REFERENCE, logistic_data

CHAINS, BATCH, THIN = 4, 32, 10
SPEED = PROBLEMS["logistic"][1]


def start(seed: int) -> Tensor:
    known = np.load(REFERENCE)
    draw = torch.Generator().manual_seed(1000 + seed)
    half = torch.linalg.cholesky(torch.tensor(known["logistic_cov"]))
    return torch.tensor(known["logistic_mean"]) + half @ torch.randn(len(half), generator=draw, dtype=torch.float64)


def walk(steps: int, one: Callable[[], Any], weights: Callable[[], Tensor]) -> tuple[Any, float]:
    """The weights at every THIN-th step after burn-in, and the seconds of all steps."""
    kept, began = [], time.process_time()
    for step in range(steps):
        one()
        if step >= steps // 10 and step % THIN == 0:
            kept.append(weights().numpy().copy())
    return np.stack(kept), time.process_time() - began


def atmc_chain(steps: int, seed: int, rank: int, scale: float, batch: int) -> tuple[Any, float]:
    import atmc

    x, y = logistic_data()
    w = start(seed).requires_grad_()
    draw = torch.Generator().manual_seed(seed)
    momentum = 0.97**scale if batch < len(x) else 0.99
    options = {"mass": SPEED**-2 * 1e-6, "friction": -math.log(momentum) / (1e-3 * scale), "noise_rank": rank}
    chain = atmc.ATMC([w], lr=1e-3 * scale, seed=seed, momentum_init="law", **options)

    def one() -> None:
        rows, labels = x, y
        if batch < len(x):
            index = torch.randint(len(x), (batch,), generator=draw)
            rows, labels = x[index], y[index]
        with torch.no_grad():
            w.grad = rows.T @ (torch.sigmoid(rows @ w) - labels) * (len(x) / len(rows)) + w
        chain.step()

    return walk(steps, one, w.detach)


def posteriors_chain(steps: int, seed: int, scale: float) -> tuple[Any, float]:
    """Equal steps and friction in its own units: mass 1, so that its lr is our h/√m."""
    import posteriors

    x, y = logistic_data()
    torch.manual_seed(seed)
    lr = SPEED * scale

    def log_posterior(w: Tensor, batch: Any) -> tuple[Tensor, Any]:
        logits = batch[0] @ w
        nll = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch[1])
        return -nll * len(x) - 0.5 * (w @ w), torch.tensor([])

    sampler = posteriors.sgmcmc.sghmc.build(log_posterior, lr=lr, alpha=-math.log(0.97) / SPEED, temperature=1.0)
    state = sampler.init(start(seed))

    def one() -> None:
        nonlocal state
        index = torch.randint(len(x), (BATCH,))
        state, _ = sampler.update(state, (x[index], y[index]))

    return walk(steps, one, lambda: state.params)


def nuts(samples: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    import nuts_reference

    jax.config.update("jax_enable_x64", True)
    x, y = (jnp.asarray(v.numpy()) for v in logistic_data())
    chains = MCMC(
        NUTS(nuts_reference.logistic), num_warmup=500, num_samples=samples, num_chains=CHAINS, progress_bar=False
    )
    chains.run(jax.random.PRNGKey(0), x, y, extra_fields=("num_steps",))  # compiles and warms up, too
    began = time.process_time()
    chains.post_warmup_state = chains.last_state
    chains.run(chains.post_warmup_state.rng_key, x, y, extra_fields=("num_steps",))
    seconds = time.process_time() - began
    gradients = float(np.sum(chains.get_extra_fields()["num_steps"]))
    return row("NUTS (numpyro), all data", np.asarray(chains.get_samples(True)["w"]), gradients, seconds)


def row(method: str, weights: Any, passes: float, seconds: float) -> dict[str, Any]:
    """`weights` [chains, draws, 31]; `passes` are gradients of all data, `seconds` those of all chains together."""
    cov = np.load(REFERENCE)["logistic_cov"]
    mean = np.load(REFERENCE)["logistic_mean"]
    ratios = np.sqrt(np.mean((weights - mean) ** 2, axis=(0, 1)) / np.diagonal(cov))
    least = float(np.min(ess(np.moveaxis(weights, 2, 0))))
    return {
        "method": method,
        "sd_ratio": [float(ratios.min()), float(ratios.mean()), float(ratios.max())],
        "ess": least,
        "ess_per_1000_passes": 1000 * least / passes,
        "ess_per_second": least / seconds,
        "passes": passes,
        "seconds": seconds,
        "temperature": 1.0,
    }


def rows(only: list[str], steps: int) -> Iterator[dict[str, Any]]:
    def several(name: str, share: float, chain: Callable[..., tuple[Any, float]], *options: Any) -> dict[str, Any]:
        found = [chain(steps, seed, *options) for seed in range(CHAINS)]
        return row(name, np.stack([w for w, _ in found]), CHAINS * steps * share, sum(s for _, s in found))

    if "atmc" in only:
        yield several("ATMC, noise_rank 16, batches of 32", BATCH / 569, atmc_chain, 16, 1.0, BATCH)
        yield several("ATMC, noise_rank 0, batches of 32, step × 0.25", BATCH / 569, atmc_chain, 0, 0.25, BATCH)
        yield several("ATMC, all data", 1.0, atmc_chain, 0, 1.0, 569)
    if "posteriors" in only:
        yield several("SGHMC of posteriors, batches of 32", BATCH / 569, posteriors_chain, 1.0)
        yield several("SGHMC of posteriors, batches of 32, step × 0.25", BATCH / 569, posteriors_chain, 0.25)
    if "nuts" in only:
        yield nuts(5_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["atmc"], choices=["atmc", "posteriors", "nuts"])
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.out / "ess.json"
    for found in rows(options.only, options.steps):
        print(json.dumps(found), flush=True)
        before = json.loads(path.read_text()) if path.exists() else []
        kept = [old for old in before if old["method"] != found["method"]]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([*kept, found], indent=1) + "\n")


if __name__ == "__main__":
    main()
