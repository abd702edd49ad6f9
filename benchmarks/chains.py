"""Several chains together on one GPU: images per second of 1, 2 and 4 chains of each network, and the factor over one.

    python benchmarks/chains.py [--only frn20 wrn16 vit resnetpp] [--seconds 1.5] [--out results/networks]

Four chains are made, each a CUDA graph on a stream of its own, with data, augmentation, prior and ATMC. The first one
runs by itself, then the first two, then all. Medians over rounds that take turns. A minute on an H200.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from own_network import ViT
from train import Contestant, parse, recipe

COUNTS = (1, 2, 4)
COMPILED = ("vit", "resnetpp")
# What it is called; options of `train.py`; how the network is made where no recipe names it.
NETWORKS: dict[str, tuple[str, dict[str, Any], Callable[[], nn.Module] | None]] = {
    "frn20": ("ResNet-20-FRN, batch 256", {"network": "resnet-frn", "depth": 20, "width": 16, "batch": 256}, None),
    "wrn16": ("WRN-16-4, gn-ws", {"network": "wide-resnet", "norm": "gn-ws", "depth": 16, "width": 4}, None),
    "resnetpp": ("ResNet++-56×32", {"network": "resnetpp", "depth": 56, "width": 32}, None),
    "vit": ("ViT-tiny", {"network": "custom"}, ViT),
}


def together(key: str, options: argparse.Namespace) -> dict[str, Any]:
    """Images per second over all chains, by the number of chains."""
    name, changes, make = NETWORKS[key]
    settings = parse(["--device", options.device, "--train", str(options.train)])
    vars(settings).update(changes)
    settings.no_compile = key not in COMPILED  # the kernels of the others are fused as they are
    several = Contestant(recipe(settings, "atmc"), max(COUNTS), make=make)
    everyone, rates = several.chains, {count: [] for count in COUNTS}
    several.run(steps=20)
    for _ in range(options.rounds):
        for count in COUNTS:
            several.chains = everyone[:count]
            rates[count].append(several.run(options.seconds))
    found = {count: statistics.median(values) for count, values in rates.items()}
    print(f"{name}: " + ", ".join(f"{n} chains {rate:,.0f} img/s" for n, rate in found.items()), flush=True)
    return {"network": name, "batch": settings.batch, "images_per_second": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--train", type=int, default=50_000, help="examples")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    for key in options.only:
        rows.append(together(key, options))
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
            record = {"device": device, "torch": torch.__version__, "rows": rows}
            (options.out / "chains.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
