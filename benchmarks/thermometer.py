"""Whether `atmc.sample` warns of mini-batch noise where it bends the law, and only there.

    python benchmarks/thermometer.py --out results/minibatch [--only healthy]

*healthy*: twenty runs with batches of 32 (ten data sets and networks, two seeds), with steps so small that theory puts
the noisiest direction 2 % above T: h² v/(4 m T) = 0.001 for the largest eigenvalue v of the noise near the mode.
*off*: the problems of `minibatch_law.py` at the step sizes where their standard deviations (or training losses) are far
from the truth, and the network 1–50–1 with batches of 3. T = 1, constant steps, no augmentation. A row has the mean of
the readings along the noise over T, its error, and whether `atmc.sample` warned of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

import atmc
import minibatch_law
from atmc.api.defaults import default_recipe
from atmc.diagnose import noise_checks, traces
from atmc.recipe.settings import ScheduleSection
from atmc.storage.run_directory import RunDir

STEPS, WEAK = 4_000, 0.001


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def standard(x: Any) -> Tensor:
    values = torch.as_tensor(np.asarray(x), dtype=torch.float32)
    return (values - values.mean(0)) / values.std(0).clamp_min(1e-6)


def sets() -> Iterator[tuple[str, tuple[int, ...], Tensor, Tensor]]:
    """Name, sizes of the network's layers, inputs and labels; float labels are a regression with noise of scale 0.5."""
    for name, hidden in (("iris", ()), ("wine", (20,)), ("breast_cancer", ()), ("breast_cancer", (20,))):
        raw = getattr(datasets, f"load_{name}")()
        yield name, (raw.data.shape[1], *hidden, len(set(raw.target))), standard(raw.data), torch.tensor(raw.target)
    raw = datasets.load_digits()
    yield (
        "digits",
        (64, 30, 10),
        torch.tensor(raw.data[:600] / 16.0, dtype=torch.float32),
        torch.tensor(raw.target[:600]),
    )
    x, y = datasets.make_moons(400, noise=0.3, random_state=0)
    yield "moons", (2, 30, 2), standard(x), torch.tensor(y)
    raw = datasets.load_diabetes()
    for hidden in ((), (20,)):
        yield "diabetes", (10, *hidden, 1), standard(raw.data), standard(raw.target[:, None])
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(200, 1, generator=draw) * 4 - 2
    yield "sine", (1, 30, 1), x, torch.sin(2 * x) + 0.5 * torch.randn(200, 1, generator=draw)
    x = torch.randn(500, 20, generator=draw)
    yield "linear", (20, 1), x, x @ torch.randn(20, 1, generator=draw) / 4 + 0.5 * torch.randn(500, 1, generator=draw)


def fitted(model: nn.Module, x: Tensor, y: Tensor, **target: Any) -> Any:
    """Bring a network near the mode with Adam; returns its potential."""
    potential = atmc.Potential(model, len(x), validate=False, **{k: v for k, v in target.items() if v is not None})
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(500):
        adam.zero_grad()
        potential(x, y).backward()
        adam.step()
    return potential


def strongest(model: nn.Module, potential: Any, x: Tensor, y: Tensor, batch: int) -> float:
    """The largest eigenvalue of the gradient noise of a batch."""
    rows = []
    for _ in range(64):
        index = torch.randint(len(x), (batch,))
        grads = torch.autograd.grad(potential(x[index], y[index]), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    spread = torch.stack(rows)
    return float(torch.linalg.matrix_norm(spread - spread.mean(0), ord=2)) ** 2 / 63


def run(name: str, model: nn.Module, x: Tensor, y: Tensor, batch: int, speed: float, **how: Any) -> dict[str, Any]:
    """One run of `atmc.sample` with these speeds and constant steps; what it reads, and whether it warns."""
    steps, seed = how.pop("steps", STEPS), how.pop("seed", 0)
    epochs = math.ceil(steps * batch / len(x))
    base = default_recipe("atmc", len(x), epochs, batch=batch, noise_rank=how.pop("noise_rank", 0))
    schedule = dataclasses.replace(base.schedule, kind="constant", cycle_epochs=None, sample_every_steps=steps // 50)
    schedule = dataclasses.replace(schedule, warm_start_epochs=0, warm_start_lr=ScheduleSection().warm_start_lr)
    moves = dataclasses.replace(base.sampler, speed=speed, max_speed=math.inf, momentum=how.pop("momentum", 0.9))
    recipe = dataclasses.replace(base, schedule=schedule, sampler=moves)
    fitted(model, x, y, prior=how["prior"], likelihood=how.get("likelihood"))
    began = time.monotonic()
    with TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = Path(folder) / "run"
        atmc.sample(model, (x, y), recipe=recipe, out=out, batch_size=batch, seed=seed, progress=None, **how)
        found = RunDir.open(out)
        level = traces.noise_ratio(traces.settled(found.metrics(), found.recipe.schedule.settled_epochs))
    flagged = any("along the noise of mini-batch gradients" in str(w.message) for w in said)
    row = {"name": name, "seed": seed, "batch": batch, "noise_rank": moves.noise_rank, "temperature": 1.0}
    row |= {"reading": level.mean, "error": level.error, "outside": noise_checks.outside(level), "warned": flagged}
    row["seconds"] = time.monotonic() - began
    return row


def healthy() -> Iterator[dict[str, Any]]:
    for seed in range(2):
        for name, sizes, x, y in sets():
            torch.manual_seed(seed)
            model = mlp(*sizes)
            law = atmc.likelihoods.Gaussian(0.5) if y.is_floating_point() else None
            options = {"likelihood": law, "prior": atmc.priors.gaussian(1.0)}
            speed = 2 * math.sqrt(WEAK / strongest(model, fitted(model, x, y, **options), x, y, 32))
            yield run(f"{name} {'–'.join(map(str, sizes))}", model, x, y, 32, speed, seed=seed, **options)


def off() -> Iterator[dict[str, Any]]:
    prior = atmc.priors.gaussian(1.0)
    x, y = minibatch_law.logistic_data()
    # Softmax over two outputs with half the logit each is the same law; its mini-batch noise as well.
    for scale in (1.0, 0.5):
        model = nn.Linear(31, 2, bias=False)
        steps = round(STEPS / scale**2)  # the excess goes with the square of the step, and needs more readings
        name = "logistic" if scale == 1.0 else f"logistic, step × {scale:g}"
        yield run(name, model, x.float(), y.long(), 32, 0.0144 * scale, momentum=0.97, prior=prior, steps=steps)
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(50, 50, generator=generator, dtype=torch.float64))[0]
    x = torch.randn(1000, 50, generator=generator, dtype=torch.float64) * torch.logspace(0, -1.5, 50) @ turn.T
    x = (x - x.mean(0)).float()
    y = x @ torch.randn(50, 1, generator=generator) + torch.randn(1000, 1, generator=generator)
    for rank in (0, 16):
        options = {"likelihood": atmc.likelihoods.Gaussian(1.0), "prior": prior, "noise_rank": rank, "momentum": 0.97}
        options["steps"] = STEPS if rank == 0 else 4 * STEPS
        yield run("linear", nn.Linear(50, 1, bias=False), x, y, 32, 0.01, **options)
    raw = datasets.load_digits()
    x, y = torch.tensor(raw.data[:600] / 16.0, dtype=torch.float32), torch.tensor(raw.target[:600])
    for rate in (0.05, 0.2):
        speed = math.sqrt(rate / 600)
        yield run(
            f"digits, rate {rate}", mlp(64, 50, 10), x, y, 20, speed, prior=atmc.priors.gaussian(2.0, fan_in=True)
        )
    known = np.load(minibatch_law.REFERENCE)
    x, y = (torch.tensor(known[f"network_{n}"], dtype=torch.float32)[:, None] for n in ("x", "y"))
    options = {"likelihood": atmc.likelihoods.Gaussian(0.1), "prior": prior}
    yield run("network 1–50–1", mlp(1, 50, 1), x, y, 3, math.sqrt(0.01 / 60), **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["off", "healthy"], choices=["off", "healthy"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path = options.out / "thermometer.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    for part in options.only:
        kept[part] = []
        for found in {"off": off, "healthy": healthy}[part]():
            kept[part].append(found)
            print(part, json.dumps(found), flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
