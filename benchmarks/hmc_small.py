"""What keeps a chain from the posterior of a ResNet-FRN: step size, mini-batches or cycles? A known answer tells.

    python benchmarks/hmc_small.py --out results/hmc [--jobs 2] [--rows 'full-*' mini-0.002] [--seeds 0 1 2]

ResNet-8-FRN of width 8 (20,146 parameters) on 800 digits of which a tenth have random labels; prior variance 1/5,
T = 1, ATMC with D = 4.5, no augmentation. Steps are constant, for 30 units of time, or come in 30 cycles; each of the
last 20 units or cycles ends in a sample. Chains of all data are the answer: two step sizes have to agree. A row has the
training loss and the NLL of a sample alone, both means over samples, the NLL of their average on the other 997 digits,
their ambiguity (for any number of samples: K/(K − 1) times that of K), the largest curvature λ of N · mean nll, h²λ/m,
which is 4 at the edge of stability, and the temperatures. Three quarters of an hour on two cores.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import atmc
from atmc.nn.measurements import norm, power_iteration

TRAIN, VARIANCE, FRICTION = 800, 0.2, 4.5
UNITS, BURN_IN = 30, 10  # of time; one sample after each


class Row(NamedTuple):
    """The settings of one chain."""

    step_size: float
    batch: int
    noise_rank: int = 0
    in_epochs: bool = False  # examples are drawn without replacement
    noise_kronecker: bool = False
    importance: bool = False  # examples are drawn by importance
    cycle: float = 0.0  # units of time that a cycle would take if its steps stayed at `step_size`; 0 is constant steps
    follow: bool = False  # friction rises as the steps of a cycle become small
    noise_examples: bool = False


ROWS: dict[str, Row] = {
    "full-0.007": Row(0.007, TRAIN),
    "full-0.002": Row(0.002, TRAIN),
    "mini-0.007": Row(0.007, 16),
    "mini-0.002": Row(0.002, 16),
    "mini-0.0007": Row(0.0007, 16),
    "mini-0.002-noise16": Row(0.002, 16, 16),
    "mini-0.002-noise64": Row(0.002, 16, 64),
    "mini-0.0007-noise16": Row(0.0007, 16, 16),
    "batch64-0.007-noise16": Row(0.007, 64, 16),
    "epochs-0.002": Row(0.002, 16, in_epochs=True),
    "epochs-0.0007": Row(0.0007, 16, in_epochs=True),
    "mini-0.007-kronecker16": Row(0.007, 16, 16, noise_kronecker=True),
    "mini-0.002-kronecker16": Row(0.002, 16, 16, noise_kronecker=True),
    "mini-0.0007-kronecker16": Row(0.0007, 16, 16, noise_kronecker=True),
    "mini-0.002-noise16-importance": Row(0.002, 16, 16, importance=True),
    "mini-0.002-kronecker16-importance": Row(0.002, 16, 16, noise_kronecker=True, importance=True),
    "mini-0.0007-kronecker16-importance": Row(0.0007, 16, 16, noise_kronecker=True, importance=True),
    "mini-0.0014-kronecker16-importance": Row(0.0014, 16, 16, noise_kronecker=True, importance=True),
    "batch64-0.002": Row(0.002, 64),
    "batch64-0.002-kronecker16-importance": Row(0.002, 64, 16, noise_kronecker=True, importance=True),
    "batch64-0.002-examples": Row(0.002, 64, noise_examples=True),
    "batch64-0.002-examples-importance": Row(0.002, 64, importance=True, noise_examples=True),
    "batch64-0.001": Row(0.001, 64),
    "batch64-0.001-kronecker16-importance": Row(0.001, 64, 16, noise_kronecker=True, importance=True),
    "batch64-0.001-examples": Row(0.001, 64, noise_examples=True),
    "cycles-0.007": Row(0.007, 16, cycle=5.0),
    "cycles-0.007-follow": Row(0.007, 16, cycle=5.0, follow=True),
    "cycles-0.002-follow": Row(0.002, 16, cycle=5.0, follow=True),
    "cycles-0.007-follow-noise16": Row(0.007, 16, 16, cycle=5.0, follow=True),
    "cycles-0.002-follow-noise16": Row(0.002, 16, 16, cycle=5.0, follow=True),
    "cycles-0.002-follow-kronecker16-importance": Row(0.002, 16, 16, False, True, True, 5.0, True),
}


def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 images, standardised and shuffled, a tenth of the labels drawn anew."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    order = torch.randperm(len(raw.data), generator=torch.Generator().manual_seed(0))
    x = torch.tensor((raw.data - raw.data.mean()) / raw.data.std(), dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y, draw = torch.tensor(raw.target)[order], torch.Generator().manual_seed(5)
    wrong = torch.rand(len(y), generator=draw) < 0.1
    return x, torch.where(wrong, torch.randint(10, (len(y),), generator=draw), y)


def chain(name: str, seed: int = 0) -> dict[str, Any]:
    """Run one row."""
    torch.set_num_threads(1)
    step_size, batch, rank, in_epochs, kronecker, importance, cycle, follow, by_example = ROWS[name]
    x, y = digits()
    train, labels, others, answers = x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:]
    torch.manual_seed(seed)
    model = atmc.nn.build("resnet-frn", depth=8, width=8, in_channels=1)
    params = list(model.parameters())
    options: dict[str, Any] = {"mass": 1.0, "friction": FRICTION, "momentum_init": "law", "noise_rank": rank}
    options |= {"noise_kronecker": kronecker, "noise_examples": by_example}
    sampler = atmc.ATMC(params, lr=step_size, seed=seed, **options)
    group = sampler.param_groups[0]
    if follow:
        group["momentum"] = math.exp(-FRICTION * step_size)
    potential = atmc.Potential(model, num_data=TRAIN, prior=atmc.priors.gaussian(math.sqrt(VARIANCE)), validate=False)
    draw = torch.Generator().manual_seed(100 + seed)

    classes = tuple(str(digit) for digit in range(10))
    data = atmc.data.ImageData("digits", "train", train, labels, classes, (), (), "")
    feed = atmc.data.ImportanceBatches(data, batch, seed=100 + seed, strata=not by_example)
    reader = feed.for_readings(200 + seed)

    def by_importance(batches: Any, step: int) -> list[Tensor]:
        some, their = batches.batch(step)
        outputs = model(some)
        nll = potential.nll_of(outputs, their, batches.weights)
        gradients = torch.autograd.grad(TRAIN * nll - potential.prior_set.log_prob(params), params)
        if batches is feed:
            feed.note(potential.likelihood.sizes(outputs, their))
        return list(gradients)

    order: list[Tensor] = []  # what is left of an epoch

    def gradient(in_epochs: bool = False) -> list[Tensor]:
        if in_epochs:
            order.extend(() if order else torch.randperm(TRAIN, generator=draw).split(batch))
            some: Any = order.pop()
        else:
            some = torch.randint(TRAIN, (batch,), generator=draw) if batch < TRAIN else slice(TRAIN)
        return list(torch.autograd.grad(potential(train[some], labels[some]), params))

    def times(along: list[Tensor]) -> list[Tensor]:
        whole = TRAIN * cross_entropy(model(train), labels)
        slopes = torch.autograd.grad(whole, params, create_graph=True)
        return list(torch.autograd.grad(sum((a * b).sum() for a, b in zip(slopes, along, strict=True)), params))

    stiffest = [torch.randn(p.shape, generator=draw) for p in params]
    excess = 0.0
    every, found, predicted, began = round((cycle or 1.0) / step_size), [], [], time.monotonic()
    for step in range(1, UNITS * every + 1):
        if cycle:
            group["lr"] = step_size / 2 * (1 + math.cos(math.pi * ((step - 1) % every) / every))
        if by_example:
            if importance:
                images, their = feed.batch(step)
                potential.backward_each(images, their, feed.weights)
                with torch.no_grad():
                    feed.note(potential.likelihood.sizes(model(images), their))
            else:
                some = torch.randint(TRAIN, (batch,), generator=draw)
                potential.backward_each(train[some], labels[some])
        else:
            found_gradient = by_importance(feed, step) if importance else gradient(in_epochs)
            for p, g in zip(params, found_gradient, strict=True):
                p.grad = g
        sampler.step()
        excess += float(sampler.kick_excess())
        if step % every or step <= BURN_IN * every:
            continue
        stiffest, image = power_iteration(times, stiffest, 10 if found else 30)
        with torch.no_grad():
            predicted.append(model(others).log_softmax(1))
            found.append(
                {
                    "training_loss": float(cross_entropy(model(train), labels)),
                    "curvature": norm(image),
                    "kinetic_temperature": float(sampler.kinetic_temperature()),
                }
            )
        if batch < TRAIN:
            two = [by_importance(reader, 2 * step + i) if importance else gradient() for i in (0, 1)]
            found[-1]["noise_temperature"] = float(sampler.noise_temperature(two[0], two[1]))
    row: dict[str, Any] = {"row": name, "seed": seed, "step_size": step_size, "batch": batch, "noise_rank": rank}
    row |= {"in_epochs": in_epochs, "noise_kronecker": kronecker, "importance": importance}
    row |= {"cycle": cycle, "follow": follow, "noise_examples": by_example}
    row |= {"kick_excess": excess / (UNITS * every)} if by_example else {}
    row |= {"temperature": 1.0, "augment": "none", "samples": len(found), "steps": UNITS * every}
    row |= {key: sum(each[key] for each in found) / len(found) for key in found[0]}
    losses = torch.tensor([each["training_loss"] for each in found])
    row["training_loss_error"] = float(losses.std() / math.sqrt(len(losses)))
    row["overshoot"] = row["curvature"] * step_size**2
    return row | scores(torch.stack(predicted), answers) | {"seconds": time.monotonic() - began}


def scores(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    """Of log-probabilities [samples, examples, classes]."""
    count, at = len(predicted), torch.arange(len(labels))
    alone = float(-predicted[:, at, labels].mean())
    average = predicted.exp().mean(0).log()
    geometric = float(-predicted.mean(0).log_softmax(1)[at, labels].mean())
    return {
        "nll_alone": alone,
        "nll": float(-average[at, labels].mean()),
        "error": float((average.argmax(1) != labels).double().mean()),
        "ambiguity": (alone - geometric) * count / (count - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", nargs="*", default=["*"], help="names, or patterns of them")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    options = parser.parse_args()
    chosen = [name for name in ROWS if any(fnmatch.fnmatch(name, each) for each in options.rows)]
    table = options.out / "small.json"
    kept = {(row["row"], row["seed"]): row for row in json.loads(table.read_text())} if table.exists() else {}
    cases = [(name, seed) for seed in options.seeds for name in chosen]
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(chain, *zip(*cases, strict=True)):
            kept[row["row"], row["seed"]] = row
            order = sorted(kept, key=lambda key: (list(ROWS).index(key[0]), key[1]))
            table.write_text(json.dumps([kept[key] for key in order], indent=1) + "\n")
            print(
                f"{row['row']:20} seed {row['seed']}  loss {row['training_loss']:.4f} ± "
                f"{row['training_loss_error']:.4f}  alone "
                f"{row['nll_alone']:.4f}  average {row['nll']:.4f}  ambiguity {row['ambiguity']:.4f}  λ "
                f"{row['curvature']:.3g}  h²λ {row['overshoot']:.3g}  noise T "
                f"{row.get('noise_temperature', math.nan):.2f}  {row['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
