"""Speed of the predictive: atmc's strategies, a plain loop over networks, and torch-uncertainty's ensemble.

    python benchmarks/predict.py --device cuda                     # ResNet++-56x32, 16 samples, 10,000 images
    python benchmarks/predict.py --depth 8 --width 8 --images 512 --size 16     # something for a CPU

Every row is the best over the batch sizes tried, each timed `--repeats` times after a warm-up, and the fastest of them
taken: other work on the machine only ever adds time. All rows average softmax probabilities. `x single` is the time
over K times that of one sample at its own best batch size; the aim is at most 1.1. The first call of `auto` includes
measuring which way is fastest. torch-uncertainty is compared where it is installed (`pip install --no-deps
torch-uncertainty` is enough: its ensemble needs only torch).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atmc.nn import build
from atmc.posterior import Posterior

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # CIFAR-10


def timed(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Seconds of the fastest of several runs after one to warm up."""

    def once() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    return min(once() for _ in range(repeats))


def torch_uncertainty() -> Any:
    """torch-uncertainty's `deep_ensembles`, without its package's own imports (lightning, torchvision, …)."""
    spec = importlib.util.find_spec("torch_uncertainty")
    if spec is None or not spec.submodule_search_locations:
        return None
    for place in ("methods/deep_ensembles.py", "models/wrappers/deep_ensembles.py"):
        path = Path(spec.submodule_search_locations[0]) / place
        if path.exists():
            inner = importlib.util.spec_from_file_location("tu_deep_ensembles", path)
            assert inner is not None
            assert inner.loader is not None
            module = importlib.util.module_from_spec(inner)
            inner.loader.exec_module(module)
            return module.deep_ensembles
    return None


def prepared(images: Tensor, dtype: torch.dtype) -> Tensor:
    """All images as the network takes them, on their device."""
    mean = torch.tensor(MEAN, device=images.device).view(1, -1, 1, 1)
    std = torch.tensor(STD, device=images.device).view(1, -1, 1, 1)
    x = ((images.float() / 255 - mean) / std).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x


@torch.inference_mode()
def plain_loop(models: list[nn.Module], x: Tensor, batch: int) -> Tensor:
    """What one writes without a library."""
    parts = []
    for piece in torch.split(x, batch):
        parts.append(torch.stack([model(piece).double().softmax(-1) for model in models]).mean(0))
    return torch.cat(parts)


@torch.inference_mode()
def ensemble(wrapper: nn.Module, count: int, x: Tensor, batch: int) -> Tensor:
    """The wrapper returns the logits of all members, one below the other."""
    parts = []
    for piece in torch.split(x, batch):
        logits = wrapper(piece).view(count, len(piece), -1)
        parts.append(logits.double().softmax(-1).mean(0))
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnetpp")
    parser.add_argument("--depth", type=int, default=56)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batches", type=int, nargs="+", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="also write the rows as JSON")
    args = parser.parse_args()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"in_channels": 3}
    if args.network == "mlp":
        shape = {"in_channels": 3, "image_size": args.size}
    models = [
        build(args.network, depth=args.depth, width=args.width, classes=10, **shape).to(device).eval()
        for _ in range(args.samples)
    ]
    images = torch.randint(0, 256, (args.images, 3, args.size, args.size), dtype=torch.uint8, device=device)
    sizes = args.batches or ([500, 2000, 5000] if device.type == "cuda" else [32, 128, 512])
    sizes = sorted({min(size, args.images) for size in sizes})
    posterior = Posterior(models, models[0].cpu(), mean=MEAN, std=STD)
    models[0].to(device)
    x = prepared(images, dtype)
    reference = plain_loop(models, x, sizes[0])

    ways: dict[str, Callable[[int], Any]] = {
        "one sample": lambda b: plain_loop(models[:1], x, b),
        "plain loop over networks": lambda b: plain_loop(models, x, b),
    }
    wrapped = torch_uncertainty()
    if wrapped is not None:
        members = wrapped(models).to(device).eval()
        ways["torch-uncertainty deep_ensembles"] = lambda b: ensemble(members, args.samples, x, b)
    strategies = ("loop", "together", *(["graph"] if device.type == "cuda" else []), "auto")
    for kind in strategies:
        ways[f"atmc {kind}"] = lambda b, kind=kind: posterior.predict(images, b, device, dtype, strategy=kind).probs

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    what = f"{args.network}-{args.depth}x{args.width}, {args.samples} samples, {args.images:,} images of {args.size} px"
    print(f"{what}, {args.dtype}, {name}")
    if wrapped is None:
        print("torch-uncertainty is not installed: not compared")
    rows: list[dict[str, Any]] = []
    single = 0.0
    for way, work in ways.items():
        first = time.perf_counter()
        found = work(sizes[-1])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        first = time.perf_counter() - first
        if way != "one sample":
            gap = float((found.to(reference) - reference).abs().max())
            assert gap < (0.1 if args.dtype == "bfloat16" else 5e-3), f"{way} differs from the plain loop by {gap}"
        best, batch = min((timed(partial(work, b), device, args.repeats), b) for b in sizes)
        single = best if way == "one sample" else single
        ratio = best / (single if way == "one sample" else single * args.samples)
        rows.append({"way": way, "seconds": best, "batch": batch, "ratio": ratio, "first_call": first})
        print(
            f"{way:36s} {best:8.3f} s   x single {ratio:5.2f}   batch {batch:5d}   first call {first:7.2f} s",
            flush=True,
        )
    if args.out:
        about = {key: str(value) for key, value in vars(args).items()}
        record = {"device": name, "torch": torch.__version__, "settings": about, "rows": rows}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
