"""Images per second in training: ResNet++ against the BatchNorm ResNet of the same depth and width.

    python benchmarks/networks.py [--out results/networks]

Forward, backward and an SGD step, bf16 activations, blocks compiled, the whole step in one CUDA graph, on random images
that are already on the device. Contestants take turns; medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from atmc.nn import build
from graph_timing import recorded, take_turns

PAIRS = {
    "56x32 at 32 px": {"depth": 56, "width": 32, "classes": 10, "size": 32, "batch": 128},
    "50 at 224 px": {"depth": 50, "width": 64, "classes": 1000, "size": 224, "batch": 128},
}


def captured(name: str, depth: int, width: int, classes: int, size: int, batch: int) -> Callable[[], None]:
    """One training step of a network in a CUDA graph; the closure keeps everything alive."""
    model = build(name, depth=depth, width=width, classes=classes).cuda()
    model.compile_blocks()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=torch.tensor(1e-4, device="cuda"), momentum=0.9, fused=True)
    images = torch.randn(batch, 3, size, size, device="cuda", dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device="cuda")

    def step() -> None:
        for p in params:
            p.grad = None
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return recorded(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/networks"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS), help="which pairs to run")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    for pair in options.pairs:
        shape = PAIRS[pair]
        steps = {name: captured(name, **shape) for name in ("resnetpp", "resnet")}
        repeats = 50 if shape["size"] == 32 else 5
        times = take_turns(steps, options.rounds, repeats)
        speed = {name: shape["batch"] / statistics.median(t) * 1e3 for name, t in times.items()}
        rows.append(
            {"network": pair, **shape, "images_per_second": speed, "ratio": speed["resnetpp"] / speed["resnet"]}
        )
        print(
            f"{pair:16s} ResNet++ {speed['resnetpp']:9,.0f} img/s   with BatchNorm {speed['resnet']:9,.0f} img/s   "
            f"ratio {rows[-1]['ratio']:.2f}",
            flush=True,
        )
        del steps
    options.out.mkdir(parents=True, exist_ok=True)
    record = {
        "command": "python benchmarks/networks.py",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
    }
    (options.out / "cuda.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
