"""Is bf16 honest in the HMC benchmark? The error it makes in a gradient, against the noise of the mini-batch.

    ATMC_DATA=data python benchmarks/hmc_precision.py [--steps 150] [--out results/hmc/precision.json]

ResNet-20-FRN after some steps of SGD, on two batches of 256. The noise is the difference of their gradients over √2.
What bf16 adds to it is the difference of the gradients of one batch in bf16 and in float32. Runs on a CPU in minutes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atmc.data import eval_batches, load
from atmc.nn import build


def gradient(model: torch.nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(x.to(dtype)).float(), y), list(model.parameters())))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    place = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    data = load("cifar10", "train")
    model = build("resnet-frn").to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    some = data.subset(torch.randperm(len(data))[: 128 * options.steps + 512], "train")
    batches = list(eval_batches(some, 128, place, workers=0))
    for x, y in batches[: options.steps]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    pair = [torch.cat([b[k] for b in batches[-4:]]).split(256) for k in (0, 1)]
    exact = [gradient(model, x, y, torch.float32) for x, y in zip(*pair, strict=True)]
    rough = gradient(model, pair[0][0], pair[1][0], torch.bfloat16)
    names = [name for name, _ in model.named_parameters()]

    def size(tensors: list[Tensor]) -> float:
        return float(sum(t.double().square().sum() for t in tensors)) ** 0.5

    noise = [(a - b) / 2**0.5 for a, b in zip(*exact, strict=True)]
    error = [a - b for a, b in zip(rough, exact[0], strict=True)]
    each = {n: round(size([e]) / max(size([s]), 1e-12), 4) for n, e, s in zip(names, error, noise, strict=True)}
    found: dict[str, Any] = {
        "device": place,
        "torch": torch.__version__,
        "sgd_steps": options.steps,
        "loss": float(loss.detach()),
        "gradient": size(exact[0]),
        "noise": size(noise),
        "bf16_error": size(error),
        "error_over_noise": size(error) / size(noise),
        "added_variance": (size(error) / size(noise)) ** 2,
        "worst_tensors": dict(sorted(each.items(), key=lambda item: -item[1])[:5]),
    }
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
