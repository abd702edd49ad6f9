"""The law under real mini-batches, with and without friction along the gradient noise, against known answers.

    python benchmarks/minibatch_law.py --out results/minibatch [--jobs 2] [--chains 8] [--steps 40000]
        [--only logistic] [--friction 0 16 examples]

Three posteriors. *logistic*: breast cancer, 31 weights, against NUTS (`nuts_reference.py`). *linear*: 50 inputs with a
condition number of 1,000, exact. *digits*: an MLP 64–50–10 on 600 images, against full batches of the same sampler;
training loss and the NLL of the average on the other 1,197. Each row is several chains that start near the mode; their
moments are averaged and the error is that over chains. A row has the ratio of standard deviations to the reference
(smallest, mean, largest over coordinates), the variance ratio along the stiffest direction, the kinetic temperature and
the one along the gradient noise, and gradient evaluations and seconds of one chain. T = 1, momentum 0.97 (0.9 for
digits), batches of 32 (20), no augmentation. The step size of the first two is that at which thermostats alone make the
stiffest variance about five times too large.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import atmc

Parts = Callable[[Tensor, Tensor], Tensor]  # (weights, examples) → what each adds to the gradient of U
Friction = int | str  # noise_rank, or "examples" for noise_examples
REFERENCE = Path(__file__).parents[1] / "tests" / "law" / "nuts_reference.npz"


def logistic_data() -> tuple[Tensor, Tensor]:
    """Breast cancer: standardised inputs with an intercept, and labels."""
    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    x = (raw.data - raw.data.mean(0)) / raw.data.std(0)
    return torch.tensor(np.c_[np.ones(len(x)), x]), torch.tensor(raw.target, dtype=torch.float64)


def logistic() -> tuple[Parts, int, Tensor, Tensor]:
    """Gradients without the prior's, number of examples, and the reference's mean and covariance."""
    x, y = logistic_data()
    known = np.load(os.environ.get("NUTS_REFERENCE", REFERENCE))

    def parts(w: Tensor, index: Tensor) -> Tensor:
        rows = x[index]
        return rows * (torch.sigmoid(rows @ w) - y[index])[:, None] * (len(x) / len(index))

    return parts, len(x), torch.tensor(known["logistic_mean"]), torch.tensor(known["logistic_cov"])


def linear() -> tuple[Parts, int, Tensor, Tensor]:
    """1,000 examples, noise of scale 1, centred inputs whose covariance has the condition number 1,000."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(50, 50, generator=generator, dtype=torch.float64))[0]
    x = torch.randn(1000, 50, generator=generator, dtype=torch.float64) * torch.logspace(0, -1.5, 50) @ turn.T
    x -= x.mean(0)
    y = x @ torch.randn(50, generator=generator, dtype=torch.float64)
    y += torch.randn(1000, generator=generator, dtype=torch.float64)
    cov = torch.linalg.inv(x.T @ x + torch.eye(50, dtype=torch.float64))

    def parts(w: Tensor, index: Tensor) -> Tensor:
        rows = x[index]
        return rows * (rows @ w - y[index])[:, None] * (len(x) / len(index))

    return parts, len(x), cov @ (x.T @ y), cov


PROBLEMS = {"logistic": (logistic, 0.0144), "linear": (linear, 0.01)}  # and h/√m


def moments(
    problem: str, sampler: str, rank: Friction, scale: float, steps: int, seed: int, epochs: bool = False
) -> dict[str, Any]:
    """One chain: its mean and second moments, readings and cost. `scale` multiplies the step size at equal friction.

    With `epochs` examples are drawn without replacement, epoch by epoch, and it is the momentum that stays equal.
    """
    torch.set_num_threads(1)
    make, speed = PROBLEMS[problem]
    parts, count, mean, cov = make()
    draw = torch.Generator().manual_seed(1000 + seed)
    w = mean + torch.linalg.cholesky(cov) @ torch.randn(len(mean), generator=draw, dtype=torch.float64)
    w.requires_grad_()
    lr = 1e-3
    friction = -math.log(0.97) / (lr * scale if epochs else lr)
    options = {"mass": (speed / lr) ** -2, "friction": friction, "momentum_init": "law", **settings(rank)}
    chain = getattr(atmc, sampler)([w], lr=lr * scale, seed=seed, **options)

    def gradient(index: Tensor) -> Tensor:
        with torch.no_grad():
            w.grad_sample = parts(w, index)  # type: ignore[attr-defined]
            return w.grad_sample.sum(0) + w  # type: ignore[attr-defined,no-any-return]

    def fresh() -> Tensor:
        return gradient(torch.randint(count, (32,), generator=draw))

    first, second, readings = torch.zeros_like(mean), torch.zeros_like(cov), []
    began, burn, whole = time.monotonic(), steps // 10, count // 32
    for step in range(steps):
        if epochs and step % whole == 0:
            order = torch.randperm(count, generator=draw)
        w.grad = gradient(order[step % whole :: whole][:32]) if epochs else fresh()
        chain.step()
        if step >= burn:
            away = w.detach() - mean
            first += away
            second += torch.outer(away, away)
            if step % 50 == 0:
                readings.append(
                    (float(chain.kinetic_temperature()), float(chain.noise_temperature([fresh()], [fresh()])))
                )
    kept = steps - burn
    return {
        "second": (second / kept).numpy(),
        "readings": np.mean(readings, 0),
        "seconds": time.monotonic() - began,
    }


def settings(rank: Friction) -> dict[str, Any]:
    """The sampler's."""
    return {"noise_examples": True} if rank == "examples" else {"noise_rank": rank}


def regression_row(
    problem: str, sampler: str, rank: Friction, scale: float, epochs: bool, found: list[dict[str, Any]]
) -> dict[str, Any]:
    cov = PROBLEMS[problem][0]()[3].numpy()
    values, vectors = np.linalg.eigh(cov)
    # About the reference's mean, so that a chain that is off in the mean is off here too.
    each = np.stack([chain["second"] for chain in found])
    ratios = np.sqrt(np.diagonal(each.mean(0)) / np.diagonal(cov))
    stiff = np.einsum("i,cij,j->c", vectors[:, 0], each, vectors[:, 0]) / values[0]
    kinetic, noise = np.mean([chain["readings"] for chain in found], 0)
    return {
        "problem": problem,
        "sampler": sampler,
        "noise_rank": rank,
        "step": scale,
        "epochs": epochs,
        "temperature": 1.0,
        "augment": "none",
        "chains": len(found),
        "sd_ratio": [float(ratios.min()), float(ratios.mean()), float(ratios.max())],
        "stiffest_variance": [float(stiff.mean()), float(stiff.std(ddof=1) / math.sqrt(len(stiff)))],
        "kinetic_temperature": float(kinetic),
        "noise_temperature": float(noise),
        "seconds": float(np.mean([chain["seconds"] for chain in found])),
    }


def digits(batch: int, rate: float, rank: Friction, kronecker: bool, steps: int, seed: int) -> dict[str, Any]:
    """One chain of the MLP: training loss, readings, and the averaged probabilities on the test images."""
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    raw = load_digits()
    order = torch.randperm(len(raw.data), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(raw.data / 16.0, dtype=torch.float32)[order]
    y = torch.tensor(raw.target)[order]
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 50), torch.nn.Tanh(), torch.nn.Linear(50, 10))
    # Standard deviations of 2/√fan-in for weights and 2 for biases.
    potential = atmc.Potential(model, num_data=600, prior=atmc.priors.gaussian(2.0, fan_in=True), validate=False)
    speed = math.sqrt(rate / 600)
    friction: dict[str, Any] = {**settings(rank), "noise_kronecker": kronecker}
    chain = atmc.ATMC.from_speeds(model.parameters(), lr=1e-3, speed=speed, momentum=0.9, seed=seed, **friction)
    draw = torch.Generator().manual_seed(2000 + seed)

    def gradients() -> list[Tensor]:
        index = torch.randint(600, (batch,), generator=draw) if batch < 600 else slice(600)
        return list(torch.autograd.grad(potential(x[:600][index], y[:600][index]), list(model.parameters())))

    losses, readings, total, kept = [], [], torch.zeros(len(x) - 600, 10), 0
    began, burn = time.monotonic(), steps // 4
    for step in range(steps):
        if rank == "examples":
            index = torch.randint(600, (batch,), generator=draw)
            potential.backward_each(x[:600][index], y[:600][index])
        else:
            for p, g in zip(model.parameters(), gradients(), strict=True):
                p.grad = g
        chain.step()
        if step >= burn and step % 50 == 0:
            with torch.no_grad():
                losses.append(float(torch.nn.functional.cross_entropy(model(x[:600]), y[:600])))
                total += model(x[600:]).softmax(1)
                kept += 1
            noise = float(chain.noise_temperature(gradients(), gradients())) if batch < 600 else math.nan
            readings.append((float(chain.kinetic_temperature()), noise))
    right = (total / kept)[torch.arange(len(x) - 600), y[600:]]
    return {
        "loss": float(np.mean(losses)),
        "nll": float(-right.log().mean()),
        "readings": np.mean(readings, 0),
        "seconds": time.monotonic() - began,
    }


def digits_row(batch: int, rate: float, rank: Friction, kronecker: bool, found: list[dict[str, Any]]) -> dict[str, Any]:
    kinetic, noise = np.mean([chain["readings"] for chain in found], 0)

    def each(key: str) -> list[float]:
        values = np.array([chain[key] for chain in found])
        return [float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))]

    return {
        "problem": "digits",
        "sampler": "ATMC",
        "batch": batch,
        "rate": rate,
        "noise_rank": rank,
        "noise_kronecker": kronecker,
        "temperature": 1.0,
        "augment": "none",
        "chains": len(found),
        "training_loss": each("loss"),
        "nll": each("nll"),
        "kinetic_temperature": float(kinetic),
        "noise_temperature": None if math.isnan(noise) else float(noise),
        "seconds": float(np.mean([chain["seconds"] for chain in found])),
    }


# Problem, sampler, rank, factor of the step, and whether in epochs: the last is a run of `thermometer.py`.
REGRESSIONS = [
    *(("logistic", "ATMC", rank, 1.0, False) for rank in (0, 16, "examples")),
    ("logistic", "SGHMC", 16, 1.0, False),
    *(("logistic", "ATMC", rank, 0.5, False) for rank in (0, "examples")),
    ("logistic", "ATMC", 0, 0.25, False),
    ("logistic", "ATMC", 0, 0.5, True),
    *(("linear", "ATMC", rank, 1.0, False) for rank in (0, 16, 50, "examples")),
    *(("linear", "ATMC", rank, 0.5, False) for rank in (0, "examples")),
]
NETWORKS = [  # batch, rate, rank, and whether with a Kronecker-factored rest
    (600, 0.2, 0, False),
    *(
        (20, rate, *friction)
        for rate in (0.05, 0.0125)
        for friction in ((0, False), (16, False), (16, True), ("examples", False))
    ),
    *((100, 0.05, rank, False) for rank in (16, "examples")),
]


def place(row: dict[str, Any]) -> tuple[int, int]:
    """Where a row stands in the table."""
    if row["problem"] == "digits":
        return 0, NETWORKS.index((row["batch"], row["rate"], row["noise_rank"], row.get("noise_kronecker", False)))
    case = row["problem"], row["sampler"], row["noise_rank"], row["step"], row.get("epochs", False)
    return 1, REGRESSIONS.index(case)


def show(row: dict[str, Any]) -> None:
    noise = row["noise_temperature"]
    hot = f"kinetic {row['kinetic_temperature']:.3f}  noise {math.nan if noise is None else noise:.2f}"
    hot += f"  {row['seconds']:.0f} s"
    if row["problem"] == "digits":
        name = f"digits batch {row['batch']} rate {row['rate']:g} rank {row['noise_rank']}"
        name += " Kronecker" if row.get("noise_kronecker") else ""
        text = "  ".join(f"{key} {row[key][0]:.4f} ± {row[key][1]:.4f}" for key in ("training_loss", "nll"))
    else:
        name = f"{row['problem']} {row['sampler']} step {row['step']:g} rank {row['noise_rank']}"
        name += " in epochs" if row["epochs"] else ""
        low, mid, high = row["sd_ratio"]
        wide, error = row["stiffest_variance"]
        text = f"sd {low:.3f} {mid:.3f} {high:.3f}  stiffest {wide:.2f} ± {error:.2f}"
    print(f"{name:44} {text}  {hot}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40_000)
    names = [*PROBLEMS, "digits"]
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="make these again, keep the others")
    parser.add_argument("--friction", nargs="*", help="likewise, of these noise_rank; or examples")
    options = parser.parse_args()
    table, seeds = options.out / "law.json", range(options.chains)
    wanted = options.friction

    def again(problem: str, rank: Friction) -> bool:
        return problem in options.only and (wanted is None or str(rank) in wanted)

    rows = json.loads(table.read_text()) if table.exists() else []
    rows = [row for row in rows if not again(row["problem"], row["noise_rank"])]
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting: list[tuple[Any, tuple[Any, ...], list[Any]]] = [
            (digits_row, case, [pool.submit(digits, *case, options.steps, seed) for seed in seeds])
            for case in NETWORKS
            if again("digits", case[2])
        ]
        waiting += [
            (regression_row, case, [pool.submit(moments, *case[:4], options.steps, seed, case[4]) for seed in seeds])
            for case in REGRESSIONS
            if again(case[0], case[2])
        ]
        for make, case, futures in waiting:
            rows.append(make(*case, [future.result() for future in futures]) | {"steps": options.steps})
            show(rows[-1])
            rows.sort(key=place)
            options.out.mkdir(parents=True, exist_ok=True)
            table.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
