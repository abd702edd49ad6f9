"""Which prior should classes have where nobody names one? Normal(0, 1), or at most Normal(0, 16/inputs) on weights.

    ATMC_DATA=data python benchmarks/default_prior.py --out results/small_data

`atmc.sample` at T = 1 as it goes by itself, and once logistic regression with all data in every step. Fashion-MNIST and
MNIST are scored on 6,000 other training images, small tables on the half that is left out (means of two splits).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import atmc

PRIORS = ("gaussian", "gaussian-limited")


def mlp(inputs: int, width: int, classes: int = 10, layers: int = 2) -> nn.Sequential:
    sizes = [inputs, *[width] * layers]
    hidden = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes))


def convolutional() -> nn.Sequential:
    stem = [nn.Conv2d(1, 16, 5, 2, 2), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU(), nn.Flatten()]
    return nn.Sequential(*stem, nn.Linear(1568, 32), nn.SiLU(), nn.Linear(32, 10))


# Data, images, network, and how it is sampled.
IMAGES: dict[str, tuple[str, int, Any, dict[str, Any]]] = {
    "logistic regression, all data in every step": (
        "fashion-mnist",
        5000,
        lambda: mlp(784, 0, layers=0),
        {"epochs": 8000, "batch_size": 5000},
    ),
    "784–64–64–10": ("fashion-mnist", 2000, lambda: mlp(784, 64), {"epochs": 100}),
    "784–64–64–10, MNIST": ("mnist", 5000, lambda: mlp(784, 64), {"epochs": 100}),
    "convolutions, 55,466 weights": ("fashion-mnist", 10_000, convolutional, {"epochs": 30}),
}
TABLES = ("digits", "breast_cancer", "wine", "iris")


def of_images(name: str, prior: str) -> dict[str, float]:
    data, count, make, how = IMAGES[name]
    whole = atmc.data.load(data, "train")
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    train, held = whole.subset(order[:count], "train"), whole.subset(order[-6000:], "test")
    torch.manual_seed(0)
    posterior = atmc.sample(make(), train, prior=prior, seed=0, progress=None, **how)
    return posterior.evaluate(held.images, held.labels)["predictive"]


def of_table(name: str, prior: str, seed: int) -> dict[str, float]:
    import sklearn.datasets as tables

    x, y = (torch.tensor(part) for part in getattr(tables, f"load_{name}")(return_X_y=True))
    x = ((x - x.mean(0)) / (x.std(0) + 1e-6)).float()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    learn, rest = order.tensor_split(2)
    torch.manual_seed(seed)
    network: nn.Module = mlp(x.shape[1], 50, int(y.max()) + 1)
    own: tuple[Tensor, Tensor] = (x[learn], y[learn])
    posterior = atmc.sample(network, own, prior=prior, seed=seed, progress=None, epochs=3000, batch_size=len(learn))
    return posterior.evaluate(x[rest], y[rest])["predictive"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of short chains
    rows = []
    for name in (*IMAGES, *TABLES):
        row: dict[str, Any] = {"problem": name, "images": IMAGES[name][1] if name in IMAGES else None}
        for prior in PRIORS:
            found = [of_images(name, prior)] if name in IMAGES else [of_table(name, prior, seed) for seed in (0, 1)]
            row[prior] = {key: round(statistics.mean(s[key] for s in found), 4) for key in ("accuracy", "nll")}
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "default_prior.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
