"""Images per second in training: ResNet++ and GroupNorm + WS against the BatchNorm ResNet of the same depth and width.

    python benchmarks/networks.py [--out results/networks] [--pairs '50 at 224 px'] [--contestants gn-ws resnet]

Forward, backward and an SGD step, bf16 activations, the whole step in one CUDA graph, on random images that are already
on the device. Blocks of ResNet++ and of the BatchNorm ResNet are compiled; GroupNorm + WS (`resnet-v2`) has kernels of
its own. Contestants take turns; medians of rounds. Pairs that are not run again keep their numbers.
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
    # As the rows of Imagenette train: how much of the speed do small crops and batches keep?
    "50 at 176 px": {"depth": 50, "width": 64, "classes": 10, "size": 176, "batch": 64},
}
CONTESTANTS = {"resnetpp": {"name": "resnetpp"}, "resnet": {"name": "resnet"}}
CONTESTANTS |= {"gn-ws": {"name": "resnet-v2", "norm": "gn-ws"}}


def captured(contestant: str, depth: int, width: int, classes: int, size: int, batch: int) -> Callable[[], None]:
    """One training step of a network in a CUDA graph; the closure keeps everything alive."""
    model: Any = build(**CONTESTANTS[contestant], depth=depth, width=width, classes=classes).cuda()
    if contestant != "gn-ws":
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
    parser.add_argument("--contestants", nargs="*", choices=CONTESTANTS, default=list(CONTESTANTS))
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "cuda.json"
    known = {row["network"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for pair in options.pairs:
        shape = PAIRS[pair]
        chosen = [name for name in options.contestants if name != "gn-ws" or shape["depth"] in (50, 101)]
        steps = {name: captured(name, **shape) for name in chosen}
        times = take_turns(steps, options.rounds, 50 if shape["size"] == 32 else 5)
        known[pair] = joined(known.get(pair), pair, times)
        del steps
        record = {
            "command": "python benchmarks/networks.py",
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "rows": [known[each] for each in PAIRS if each in known],
        }
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(said(known[pair]), flush=True)


def said(row: dict[str, Any]) -> str:
    return f"{row['network']:16s} " + "  ".join(f"{k} {v:9,.0f} img/s" for k, v in row["images_per_second"].items())


def joined(before: dict[str, Any] | None, pair: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """The row of a pair: what was timed now, and what was known of the others; `ratio` is ResNet++ over BatchNorm."""
    now = {name: PAIRS[pair]["batch"] / statistics.median(t) * 1e3 for name, t in times.items()}
    speed = {**(before or {}).get("images_per_second", {}), **now}
    row = {"network": pair, **PAIRS[pair], "images_per_second": speed}
    return row | ({"ratio": speed["resnetpp"] / speed["resnet"]} if {"resnetpp", "resnet"} <= set(speed) else {})


if __name__ == "__main__":
    main()
