"""Batches that grow until T along the gradient noise is right, against small batches with a bound on the step size.

    python benchmarks/batch_growth.py --out results/minibatch [--epochs 600] [--seeds 2]

`atmc.sample` at T = 1 with equal epochs, so equal gradients: *grown* chooses the batch by pilots, *bound* keeps the
smallest batch and bounds the step size by the strongest eigenvalue of the noise, *all data* is what so small problems
get by default, here with as many passes, so far fewer steps. The first two run as if all data cost too much for a step.
Problems: logistic regression on breast cancer (31 weights), an MLP 64–50–10 on 600 digits, a regression 8–50–1 on 2,000
points of a sum of sines with known noise. A row has the spread of outputs at test inputs over samples, divided by that
of the reference (NUTS, or long chains on all data: 20,000 steps, two seeds), T along the noise and processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import atmc
import atmc.api.defaults as api
from atmc.diagnose import traces
from atmc.storage.run_directory import RunDir
from minibatch_law import REFERENCE, logistic_data


class Logit(nn.Module):
    """Two logits, of which one is 0: the prior of the 31 weights is that of the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(31, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.weights(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def problem(name: str) -> tuple[Tensor, Tensor, Tensor, nn.Module, dict[str, Any]]:
    """Inputs, labels, test inputs, a network, and its prior and likelihood."""
    draw = torch.Generator().manual_seed(0)
    if name == "logistic":
        x, y = logistic_data()
        return x.float(), y.long(), x.float(), Logit(), {"prior": atmc.priors.gaussian(1.0)}
    if name == "digits":
        from sklearn.datasets import load_digits

        raw = load_digits()
        order = torch.randperm(len(raw.data), generator=draw)
        x, y = torch.tensor(raw.data / 16.0, dtype=torch.float32)[order], torch.tensor(raw.target)[order]
        model = nn.Sequential(nn.Linear(64, 50), nn.Tanh(), nn.Linear(50, 10))
        return x[:600], y[:600], x[600:1000], model, {"prior": atmc.priors.gaussian(2.0, fan_in=True)}
    x, turn = torch.randn(2400, 8, generator=draw), torch.randn(8, 6, generator=draw) / 8**0.5
    y = torch.sin(x @ turn).sum(1, keepdim=True) / 2 + 0.2 * torch.randn(2400, 1, generator=draw)
    model = nn.Sequential(nn.Linear(8, 50), nn.Tanh(), nn.Linear(50, 1))
    target = {"prior": atmc.priors.gaussian(1.0, fan_in=True), "likelihood": atmc.likelihoods.Gaussian(0.2)}
    return x[:2000], y[:2000], x[2000:], model, target


def outputs(name: str, posterior: Any, test: Tensor) -> np.ndarray:
    """Of every sample at the test inputs: logits (logistic), probabilities (digits), values."""
    with torch.no_grad():
        found = torch.stack([network(test) for network in posterior])
    if name == "logistic":
        found = found[..., 1]
    return (found.softmax(-1) if name == "digits" else found).flatten(1).double().numpy()


def sampled(name: str, how: str, epochs: int, seed: int) -> dict[str, Any]:
    """One call of `atmc.sample`."""
    torch.manual_seed(seed)
    x, y, test, model, target = problem(name)
    whole, cheap, most = api.WHOLE, api.CHEAP, api.MOST
    if how != "all data":
        api.WHOLE, api.CHEAP, api.MOST = 0, 0.0, most if how == "grown" else 0
    began = time.process_time()
    try:
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = Path(folder) / "run"
            target["batch_size"] = len(x) if how == "all data" else None
            posterior = atmc.sample(model, (x, y), out=out, epochs=epochs, seed=seed, progress=None, **target)
            spent = time.process_time() - began
            found = RunDir.open(out)
            rows = traces.settled(found.metrics(), found.recipe.schedule.settled_epochs)
            noise = traces.noise_ratio(rows)
            values = outputs(name, posterior, test)
    finally:
        api.WHOLE, api.CHEAP, api.MOST = whole, cheap, most
    section = found.recipe.sampler
    assert section.speed is not None
    return {
        "values": values,
        "batch": found.recipe.data.batch_size,
        "rate": section.speed**2 * len(x),
        "noise_rank": section.noise_rank,
        "noise": noise.mean,
        "loss": float(np.mean([row["loss"] for row in rows])),
        "seconds": spent,
    }


def reference(name: str, folder: Path) -> np.ndarray:
    """Standard deviations of the outputs; kept in `folder`, since the long chains take a minute."""
    if name == "logistic":
        x, cov = logistic_data()[0], torch.tensor(np.load(os.environ.get("NUTS_REFERENCE", REFERENCE))["logistic_cov"])
        return torch.einsum("ni,ij,nj->n", x, cov, x).sqrt().numpy()
    kept = folder / f"batch_growth_{name}.npy"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = [sampled(name, "all data", 20_000, seed) for seed in (100, 101)]
        np.save(kept, np.concatenate([each["values"] for each in found]).std(0))
    return np.asarray(np.load(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--references", type=Path, default=Path("runs/batch_growth"))
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=["logistic", "digits", "regression"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.out / "batch_growth.json"
    rows = [
        row for row in (json.loads(path.read_text()) if path.exists() else []) if row["problem"] not in options.only
    ]
    for name in options.only:
        known = reference(name, options.references)
        alive = known > 0.05 * known.max()
        for how in ("grown", "bound", "all data"):
            found = [sampled(name, how, options.epochs, seed) for seed in range(options.seeds)]
            ratios = np.concatenate([each["values"] for each in found]).std(0)[alive] / known[alive]
            row: dict[str, Any] = {"problem": name, "how": how, "temperature": 1.0, "augment": "none"}
            row |= {"epochs": options.epochs, "seeds": options.seeds, "noise_rank": found[0]["noise_rank"]}
            row |= {key: [each[key] for each in found] for key in ("batch", "rate", "noise", "loss", "seconds")}
            row["samples"] = sum(len(each["values"]) for each in found)
            row["sd_ratio"] = [float(np.quantile(ratios, q)) for q in (0.05, 0.5, 0.95)]
            rows.append(row)
            print(json.dumps(row), flush=True)
            path.write_text(json.dumps(rows, indent=1).replace("NaN", "null") + "\n")


if __name__ == "__main__":
    main()
